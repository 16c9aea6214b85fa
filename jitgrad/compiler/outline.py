"""Outlining: a part of a kernel becomes a function, and parts whose sources are the same become one."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from jitgrad.compiler.lines import arranged, is_comment, without_comments
from jitgrad.kernels.loops import indent

__all__ = ["Outlined"]

_GIVEN: Final = re.compile(r"\b(a|b|out|tmp|n|c)(\d+)\b")
_OWN: Final = re.compile(r"\b(t|sum|old|new|p|r)(\d+)(?=_|\b)")


class Outlined:
    """The functions of one kernel, ``step0`` and so on."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self._listings: list[str] = []
        self._addresses: dict[str, None] = {}

    def call(self, lines: Sequence[str]) -> str:
        """The call that stands for the lines: memory as pointers, then extents and numbers, in order of appearance."""
        own: dict[str, str] = {}
        given: dict[str, str] = {}
        counts = {"x": 0, "n": 0, "c": 0}

        def rename_own(match: re.Match[str]) -> str:
            return own.setdefault(match[0], f"{match[1]}{len(own)}")

        def rename_given(match: re.Match[str]) -> str:
            if match[0] not in given:
                kind = match[1] if match[1] in ("n", "c") else "x"
                given[match[0]] = f"{kind}{counts[kind]}"
                counts[kind] += 1
            return given[match[0]]

        named = []
        for line in lines:
            named.append(line if is_comment(line) else _GIVEN.sub(rename_given, _OWN.sub(rename_own, line)))
        order = sorted(given, key=lambda g: ("xnc".index(given[g][0]), int(given[g][1:])))
        head = ", ".join(given[g] for g in order)
        text = "\n".join([f"({head}):", *indent(without_comments(named), 1)])
        name = self._names.get(text)
        if name is None:
            name = self._names[text] = f"step{len(self._names)}"
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
