"""Sphinx configuration: ``sphinx-build -W docs docs/_build``."""

import importlib
import inspect
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
os.environ["COLUMNS"] = "80"  # for the help of the command line

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

SPELLED = {"neg": "-x", "pos": "+x", "abs": "abs(x)", "~": "~x"}
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


def convert_docstring(app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    lines[:] = as_rst(lines)


# --------------------------------------------------------------------------- tables made from the package itself


def load(name: str) -> Any:
    """A module of the package; imported late, since the path to it is set above."""
    return importlib.import_module(name)


def sentence(obj: object) -> str:
    """The first sentence of a docstring, as reStructuredText."""
    paragraph = " ".join(inspect.cleandoc(obj.__doc__ or "").split("\n\n")[0].split())
    return as_text(re.split(r"(?<=\.) (?=[A-Z`])", paragraph)[0])


def table(head: Iterable[str], rows: Iterable[Iterable[str]], widths: str) -> Iterator[str]:
    """A table of reStructuredText cells."""
    yield from (".. list-table::", "   :header-rows: 1", f"   :widths: {widths}", "")
    for row in [head, *rows]:
        for i, cell in enumerate(row):
            yield f"   {' ' if i else '*'} - {cell}"
    yield ""


def operation_tables() -> Iterator[str]:
    """What there is, by the module that defines it."""
    catalog = load("jitgrad.ops.catalog").operations()
    for name, members in groupby(catalog.items(), key=lambda item: item[1].function.__module__):
        module = load(name)
        yield from (
            f".. rubric:: {sentence(module).split(':')[0].rstrip('.')}",
            "",
            f"``{name.replace('.', '/')}.py``",
            "",
        )
        rows = []
        for full, op in members:
            also = f" ({', '.join(f'``{alias}``' for alias in op.aliases)})" if op.aliases else ""
            ways = [f"``{SPELLED.get(op.operator, op.operator)}``"] if op.operator else []
            ways += [f"``x.{op.method}``"] if op.method else []
            rows.append(
                (
                    f":func:`{full} <jitgrad.{full}>`{also}",
                    sentence(op),
                    ", ".join(ways),
                    "" if op.differentiable else "none",
                )
            )
        yield from table(("function", "what it gives", "also", "derivative"), rows, "25 50 15 10")


def operations_in_full() -> Iterator[str]:
    for full in sorted(load("jitgrad.ops.catalog").operations()):
        yield from (f".. autofunction:: jitgrad.{full}", "")


def tensor_members() -> Iterator[str]:
    """The tensor class, without the operations that are methods too."""
    tensor = load("jitgrad").Tensor
    known = {n.rpartition(".")[2] for n in load("jitgrad.ops.catalog").public_names()}
    own = [n for n in vars(tensor) if not n.startswith("_") and n not in known and n.removesuffix("_") not in known]
    yield from (".. autoclass:: jitgrad.Tensor", f"   :members: {', '.join(own)}", "")


def error_table() -> Iterator[str]:
    module = load("jitgrad.errors")
    rows = []
    for name in module.__all__:
        kind = getattr(module, name)
        if inspect.isclass(kind):
            bases = ", ".join(f"``{b.__name__}``" for b in kind.__bases__)
            rows.append((f"``{name}``", bases, sentence(kind)))
    yield from table(("class", "is a", "meaning"), rows, "20 30 50")


def setting_table() -> Iterator[str]:
    """The table that stands in the docstring of the module."""
    paragraphs = inspect.cleandoc(load("jitgrad.config").__doc__).split("\n\n")
    yield from "\n\n".join(paragraphs[1:]).splitlines()


def constant_table() -> Iterator[str]:
    package = load("jitgrad")
    plain = [n for n in package.__all__ if not callable(getattr(package, n)) and not n.startswith("__")]
    plain = [n for n in plain if not isinstance(getattr(package, n), ModuleType)]
    dtypes = [n for n in package.__all__ if isinstance(getattr(package, n), type) and n[-1:] in "0123456789_"]
    yield from (f"Constants: {', '.join(f'``{n}``' for n in plain)}.", "")
    yield from (f"Dtypes, which are NumPy's: {', '.join(f'``{n}``' for n in dtypes)}.", "")


def command_line() -> Iterator[str]:
    yield from ("::", "")
    yield from ("   " + line for line in load("jitgrad.__main__")._parser().format_help().splitlines())


class Generated(SphinxDirective):
    """``.. generated:: NAME``: text that is made when the page is built, and so cannot be out of date."""

    required_arguments = 1
    makers: ClassVar[dict[str, Callable[[], Iterator[str]]]] = {
        "operations": operation_tables,
        "operations-in-full": operations_in_full,
        "tensor": tensor_members,
        "errors": error_table,
        "settings": setting_table,
        "constants": constant_table,
        "command-line": command_line,
    }

    def run(self) -> list[nodes.Node]:
        text = "\n".join(self.makers[self.arguments[0]]())
        return list(self.parse_text_to_nodes(text))


def check_reference(app: Sphinx, env: BuildEnvironment) -> None:
    """Every public function and class has its entry in the reference."""
    package = load("jitgrad")
    described = env.get_domain("py").data["objects"]
    operations = load("jitgrad.ops.catalog").public_names()
    found = [(f"jitgrad.{n}", getattr(package, n)) for n in package.__all__ if n not in operations]
    found += [(f"jitgrad.autograd.{n}", getattr(package.autograd, n)) for n in package.autograd.__all__]
    for name, obj in found:
        ours = getattr(obj, "__module__", "").startswith("jitgrad") and callable(obj)
        elsewhere = name.removeprefix("jitgrad.autograd.") in package.__all__ or obj is package.tensor
        if ours and not elsewhere and name not in described:
            logging.getLogger(__name__).warning("docs/reference.md does not describe %s", name)


def setup(app: Sphinx) -> None:
    app.add_directive("generated", Generated)
    app.connect("autodoc-process-docstring", convert_docstring)
    app.connect("env-check-consistency", check_reference)
