"""Sphinx configuration: ``sphinx-build -W docs docs/_build``."""

import re
import sys
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

project = "jitgrad"
author = "The jitgrad developers"
project_copyright = "2026, The jitgrad developers"
release = re.search(r'__version__ = "(.+)"', (ROOT / "jitgrad/_version.py").read_text(encoding="utf-8"))[1]

extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["_build"]
nitpicky = False
myst_heading_anchors = 3
suppress_warnings = ["misc.highlighting_failure"]

highlight_language = "none"
html_theme = "alabaster"
html_theme_options = {
    "description": "Gradients for NumPy-style Python, compiled by Numba",
    "page_width": "1000px",
}
html_show_sourcelink = False

autodoc_member_order = "groupwise"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"

BULLET = re.compile(r"[-*] ")


def as_text(line: str) -> str:
    """Keep ``code`` as code and take every other character of a line as it stands."""
    pieces = re.split(r"(`+)(.+?)\1", line)
    return "".join(
        re.sub(r"([\\*_|`])", r"\\\1", piece) if i % 3 == 0 else f"``{piece}``"
        for i, piece in enumerate(pieces)
        if i % 3 != 1
    )


def as_rst(lines: list[str]) -> Iterator[str]:
    """Turn a docstring into reStructuredText.

    Docstrings here are plain text: paragraphs, lists with dashes, code between backticks, indented blocks and
    examples with prompts. Read as reStructuredText, a formula such as ``x**2`` would be markup.
    """
    for blank, group in groupby(lines, key=lambda line: not line.strip()):
        block = [] if blank else list(group)
        if not block:
            yield ""
        elif block[0].lstrip().startswith(">>>"):
            yield from (line.removeprefix(block[0][: -len(block[0].lstrip())]) for line in block)
        elif all(line.startswith(" ") for line in block):
            yield from ("::", "", *block)
        else:
            for line in block:
                bullet = BULLET.match(line)
                if bullet:
                    yield ""
                # A continuation line belongs to its bullet, or to the paragraph, whatever its indentation.
                inside = not bullet and BULLET.match(block[0])
                mark = bullet[0] if bullet else "  " if inside else ""
                yield mark + as_text(line.removeprefix(mark).strip())
        yield ""


def convert_docstring(
    app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]
) -> None:
    lines[:] = as_rst(lines)


def setup(app: Sphinx) -> None:
    app.connect("autodoc-process-docstring", convert_docstring)
