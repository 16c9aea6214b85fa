"""A progress bar where somebody watches, a few plain lines where nobody does."""

from __future__ import annotations

import sys
from collections.abc import Iterator

try:
    from tqdm import tqdm
except ImportError:  # a nicety, of the extra "tour"
    tqdm = None

__all__ = ["Progress"]

_LINES = 5
_WIDTH = 30


class Progress:
    """Iterate over ``range(total)`` and show how far it is; ``note`` says how it goes.

    On a terminal this is tqdm's bar, or a plain one without tqdm; elsewhere (a file, a pipe) it is a line now
    and then, without control characters.
    """

    def __init__(self, total: int, label: str) -> None:
        self.total = total
        self.label = label
        self._terminal = sys.stdout.isatty()
        self._bar = None
        if self._terminal and tqdm is not None:
            # ascii: not every terminal has block characters; the size: some terminals say that they have no rows
            self._bar = tqdm(
                total=total, desc=f"  {label}", unit="epoch", file=sys.stdout, ascii=" -#", ncols=100, nrows=20
            )

    def __iter__(self) -> Iterator[int]:
        try:
            yield from range(self.total)
        finally:  # an interrupted loop must not leave the cursor inside of the bar
            if self._bar is not None:
                self._bar.close()
            elif self._terminal:
                sys.stdout.write("\n")

    def note(self, done: int, text: str) -> None:
        """Say that ``done`` rounds are done, and what the last one gave."""
        if self._bar is not None:
            self._bar.set_postfix_str(text, refresh=False)
            self._bar.update(done - self._bar.n)
        elif self._terminal:
            bar = "#" * (_WIDTH * done // self.total)
            sys.stdout.write(f"\r  {self.label}: [{bar:<{_WIDTH}}] {done:>3}/{self.total} {text}")
            sys.stdout.flush()
        elif done * _LINES // self.total > (done - 1) * _LINES // self.total:
            sys.stdout.write(f"  {self.label}: epoch {done:>3} of {self.total}, {text}\n")
            sys.stdout.flush()
