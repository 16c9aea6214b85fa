"""``python -m jitgrad``: the tour, and a look into the kernel cache."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from jitgrad import tour
from jitgrad._version import __version__
from jitgrad.errors import JitgradError
from jitgrad.kernels.disk_cache import default_cache
from jitgrad.kernels.report import cache_info, clear_cache

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code: 0, 1 where the tour finds a claim that does not hold.

    Raises:
        SystemExit: the arguments cannot be used (code 2, with a message), or ask for help.
    """
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        if options.command == "cache":
            if options.plot is not None:
                parser.error("--plot belongs to the tour, not to 'cache'")
            return _cache(options.clear)
        return _tour(parser, options.plot)
    except JitgradError as error:
        parser.exit(1, f"{parser.prog}: {error}\n")
    except BrokenPipeError:  # the reader of a pipe has seen enough; the interpreter flushes once more at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        parser.exit(130, "interrupted\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m jitgrad",
        description="Without a command: a short tour, which trains a small network on handwritten digits. "
        "It exits with 1 if anything that it shows does not hold.",
    )
    parser.add_argument("--version", action="version", version=f"jitgrad {__version__}")
    parser.add_argument(
        "--plot", metavar="FILE.png", type=Path, help="draw the losses, and the recorded graph cut by detach()"
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    cache = commands.add_parser("cache", help="show the kernels kept on disk, or remove them with --clear")
    cache.add_argument("--clear", action="store_true", help="remove every kernel from the disk")
    return parser


def _cache(clear: bool) -> int:
    if clear:
        removed = clear_cache()
        sys.stdout.write(f"removed     {removed} {'file' if removed == 1 else 'files'}\n")
    sys.stdout.write(f"{cache_info().disk()}\n")
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        default_cache().load("0" * 64)  # no such kernel: but a directory that is not safe to use says why
    for warning in found:
        sys.stderr.write(f"{warning.message}\n")
    return 1 if found else 0


def _tour(parser: argparse.ArgumentParser, plot: Path | None) -> int:
    drawing = None if plot is None else _drawing(parser, plot)
    result = tour.run()
    if drawing is not None:
        try:
            drawing.draw(result.learning, plot)
        except OSError as error:
            parser.exit(1, f"{parser.prog}: cannot write {plot}: {error.strerror or error}\n")
        sys.stdout.write(f"The losses and the recorded graph are drawn in {plot}.\n")
    problems = result.problems()
    if problems:
        sys.stdout.flush()
        sys.stderr.writelines(f"FAILED: {problem}\n" for problem in problems)
        return 1
    sys.stdout.write("Everything claimed above was checked, and holds.\n")
    return 0


def _drawing(parser: argparse.ArgumentParser, plot: Path) -> ModuleType:
    """The module that draws; whatever speaks against drawing is said before the tour, not after it."""
    try:
        drawing = importlib.import_module("jitgrad.tour.drawing")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "matplotlib":
            raise
        parser.error("--plot needs matplotlib, which is not installed: pip install 'jitgrad[plot]'")
    endings = sorted(drawing.ENDINGS)
    if plot.suffix.lower().removeprefix(".") not in endings:
        parser.error(f"--plot {plot}: the file name must end in one of {', '.join('.' + e for e in endings)}")
    if plot.is_dir():
        parser.error(f"--plot {plot} is a directory: give the name of a file")
    if not plot.parent.is_dir():
        parser.error(f"--plot {plot}: there is no directory {plot.parent}")
    if not os.access(plot if plot.exists() else plot.parent, os.W_OK):
        parser.error(f"--plot {plot} cannot be written: permission denied")
    return drawing


if __name__ == "__main__":
    sys.exit(main())
