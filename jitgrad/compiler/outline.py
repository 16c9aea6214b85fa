"""Outlining: a part of a kernel becomes a function, and parts whose sources are the same become one."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from string import digits
from typing import Final

from jitgrad.compiler.lines import arranged, is_comment, without_comments
from jitgrad.kernels.loops import indent

__all__ = ["Outlined"]

_WORD: Final = re.compile(r"(\w+)")
_GIVEN: Final = frozenset({"a", "b", "out", "tmp", "n", "c"})
_OWN: Final = frozenset({"t", "sum", "old", "new", "p", "r", "kept"})  # what may follow a number is kept: t3_e


class _Names(dict[str, str]):
    """What the words of a part of a kernel become: numbered by their first appearance, so that like parts are alike."""

    def __init__(self, places: Mapping[str, str]) -> None:
        self.places = places  # of temporaries
        self.own: dict[str, str] = {}
        self.given: dict[str, str] = {}  # arguments of the kernel and temporaries
        self.counts = {"x": 0, "n": 0, "c": 0}

    def __missing__(self, word: str) -> str:
        numbered, line, rest = word.partition("_")
        prefix = numbered.rstrip(digits)
        name = word
        if prefix == numbered:
            pass
        elif prefix in _OWN:
            name = self.own.setdefault(numbered, f"{prefix}{len(self.own)}") + line + rest
        elif prefix in _GIVEN and not line:
            place = self.places.get(word, word)
            if place not in self.given:
                kind = prefix if prefix in ("n", "c") else "x"
                self.given[place] = f"{kind}{self.counts[kind]}"
                self.counts[kind] += 1
            name = self.given[place]
        self[word] = name
        return name


class Outlined:
    """The functions of one kernel, ``step0`` and so on; ``places``: what temporaries are called in their place."""

    def __init__(self, places: Mapping[str, str]) -> None:
        self._places = places
        self._names: dict[str, str] = {}
        self._listings: list[str] = []
        self._addresses: dict[str, None] = {}

    def call(self, lines: Sequence[str]) -> str:
        """The call that stands for the lines: memory as pointers, then extents and numbers, in order of appearance."""
        names = _Names(self._places)
        words = _WORD.split("\n".join(without_comments(lines)))
        words[1::2] = [names[word] for word in words[1::2]]
        statements = "".join(words).split("\n")
        given = names.given
        order = sorted(given, key=lambda g: ("xnc".index(given[g][0]), int(given[g][1:])))
        head = ", ".join(given[g] for g in order)
        text = "\n".join([f"({head}):", *indent(statements, 1)])
        name = self._names.get(text)
        if name is None:
            name = self._names[text] = f"step{len(self._names)}"
            rest = iter(statements)
            named = [line if is_comment(line) else next(rest) for line in lines]
            self._listings.append("\n".join([f"def {name}({head}):", *indent(arranged(named), 1)]) + "\n")
        values = [f"at_{g}" if given[g][0] == "x" and not g.startswith("tmp") else g for g in order]
        self._addresses.update(dict.fromkeys(v for v in values if v.startswith("at_")))
        return f"{name}({', '.join(values)})"

    def addresses(self) -> list[str]:
        """The lines that take the addresses of arguments."""
        return [f"{name} = data({name.removeprefix('at_')})" for name in self._addresses]

    def source(self) -> str:
        """The functions, to be compiled."""
        return "".join(f"def {name}{text}\n\n" for text, name in self._names.items())

    def listing(self) -> str:
        """The functions with the user's lines as comments (of the first place that each stands for)."""
        return "".join(f"{text}\n" for text in self._listings)
