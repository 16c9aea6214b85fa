"""Comments in emitted source: which of the user's lines the statements below come from.

They are for the reader alone. What is compiled, and what kernels are known by, is the source without them, so that a moved
or edited comment, or another call site, compiles nothing.
"""

from __future__ import annotations

import linecache
import os
from collections.abc import Sequence
from typing import Final

from jitgrad.core.graph import Node

__all__ = ["UserLines", "arranged", "is_comment", "without_comments"]

_WIDEST: Final = 80


class UserLines:
    """The comments of one kernel."""

    def __init__(self) -> None:
        self._files: set[str] = set()
        self._comments: dict[tuple[str | None, bool], list[str]] = {}

    def comment(self, node: Node) -> list[str]:
        """The comment for the statements of a node, as one line; none where its origin is not known."""
        key = (node.where, node.backward)
        found = self._comments.get(key)
        if found is None:
            found = self._comments[key] = self._written(*key)
        return found

    def _written(self, where: str | None, backward: bool) -> list[str]:
        if where is None:
            return ["# gradient"] if backward else []
        file, _, number = where.rpartition(":")
        if file not in self._files:  # a file may have been edited and imported again
            self._files.add(file)
            linecache.checkcache(file)
        text = linecache.getline(file, int(number)).strip()
        if len(text) > _WIDEST:
            text = text[: _WIDEST - 3].rstrip() + "..."
        # without directories: the same program gives the same text wherever it lies
        place = f"{os.path.basename(file)}:{number}"
        return [f"# {'gradient, ' if backward else ''}{place}{f': {text}' if text else ''}"]


def is_comment(line: str) -> bool:
    """Whether a line is for readers alone; it quotes the user's text, which may contain anything."""
    return "#" in line and line.lstrip()[0] == "#"


def _depth(line: str) -> int:
    return len(line) - len(line.lstrip())


def _is_load(line: str) -> bool:
    return " = load(" in line and line.partition(" = ")[2].startswith("load(")


def without_comments(lines: Sequence[str]) -> list[str]:
    """The statements alone."""
    return [line for line in lines if not is_comment(line)]


def arranged(lines: Sequence[str]) -> list[str]:
    """The lines with one comment above each run of statements that come from the same line of the user.

    Elements that are loaded for a statement belong to it, so its comment stands above them (but a load with a comment of
    its own, a gather).
    """
    moved: list[str] = []
    for line in lines:
        at = len(moved)
        if is_comment(line):
            while at and _is_load(moved[at - 1]) and _depth(moved[at - 1]) == _depth(line):
                if at > 1 and is_comment(moved[at - 2]):
                    break
                at -= 1
        moved.insert(at, line)
    kept: list[str] = []
    said = None
    for line, following in zip(moved, [*moved[1:], "#"], strict=True):
        if is_comment(line):
            if is_comment(following) or _depth(following) < _depth(line) or line.lstrip() == said:
                continue  # there is no statement to it, or the run goes on
            said = line.lstrip()
        kept.append(line)
    return kept
