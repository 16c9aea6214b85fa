"""Everything the documentation shows is run: the Python blocks of README.md and docs/, and the docstrings.

A block is a fence tagged ``python``. With ``>>>`` prompts it is a doctest, without them it is code that must
not raise. The blocks of one page share one namespace, as a reader would type them into one session.
"""

import ast
import doctest
import importlib
import re
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
FENCE = re.compile(r"^ *(`{3,}|~{3,}|:{3,})(.*)$")
# Tags under which Python code would be shown but not run.
EVASIONS = {"py", "python3", "pycon", "ipython", "{code-block}", "{code}", "{doctest}", "{testcode}"}
SHELL = re.compile(r"^ *[$%!]", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A fenced block of a page: the words after the fence, the number of its first line, and its lines."""

    tags: tuple[str, ...]
    line: int
    code: str


def fenced_blocks(lines: list[str], first: int = 1) -> Iterator[Block]:
    """Yield the fenced blocks of Markdown lines, those inside of directives included."""
    start: int | None = None
    closing = ""
    tags: tuple[str, ...] = ()
    for number, line in enumerate(lines):
        fence = FENCE.match(line)
        if start is None and fence:
            start, closing, tags = number, fence[1], tuple(fence[2].split())
        elif start is not None and fence and fence[1].startswith(closing) and not fence[2].strip():
            body = lines[start + 1 : number]
            if tags and tags[0].startswith("{") and tags[0] not in EVASIONS:
                yield from fenced_blocks(body, first + start + 1)
            else:
                yield Block(tags, first + start + 1, "\n".join(body) + "\n")
            start = None
    if start is not None:
        raise ValueError(f"the fence in line {first + start} is never closed")


def faults(text: str) -> list[str]:
    """Say where a page shows Python code in a way that would keep it from being run."""
    blocks = list(fenced_blocks(text.splitlines()))
    found = [
        f"line {b.line}: tag the block 'python', not {b.tags[0]!r}" for b in blocks if b.tags and b.tags[0] in EVASIONS
    ]
    found += [
        f"line {b.line}: unknown tags {b.tags[1:]}"
        for b in blocks
        if b.tags[:1] == ("python",) and b.tags[1:] not in ((), ("no-run",))
    ]
    found += [
        f"line {b.line}: 'no-run' is for lines that begin with $, % or !"
        for b in blocks
        if b.tags == ("python", "no-run") and not SHELL.search(b.code)
    ]
    run = {n for b in blocks if b.tags[:1] == ("python",) for n in range(b.line, b.line + b.code.count("\n"))}
    found += [
        f"line {n}: a prompt outside of a python block"
        for n, line in enumerate(text.splitlines(), 1)
        if line.lstrip().startswith(">>>") and n not in run
    ]
    return found


def run_doctest(test: doctest.DocTest) -> str:
    """Run one doctest in its own globals and return its report, empty where everything is as shown."""
    report: list[str] = []
    doctest.DocTestRunner(optionflags=FLAGS).run(test, out=report.append, clear_globs=False)
    return "".join(report)


def run_page(text: str, path: str, namespace: dict[str, object]) -> None:
    """Run the Python blocks of a page one after the other."""
    for block in fenced_blocks(text.splitlines()):
        if block.tags != ("python",):
            continue
        if ">>>" in block.code:
            test = doctest.DocTestParser().get_doctest(block.code, namespace, path, path, block.line - 1)
            test.globs = namespace  # get_doctest copies it
            if report := run_doctest(test):
                pytest.fail(report, pytrace=False)
        else:
            # Line numbers of the page, so that tracebacks show its lines.
            exec(compile("\n" * (block.line - 1) + block.code, path, "exec"), namespace)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_page(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = page.read_text(encoding="utf-8")
    assert faults(text) == []
    session = types.ModuleType("documentation_page")
    monkeypatch.setitem(sys.modules, session.__name__, session)  # for dataclasses and pickle
    monkeypatch.chdir(tmp_path)
    run_page(text, str(page), vars(session))


def shows_examples(path: Path) -> bool:
    """Whether a docstring of the module has an example."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return any(">>>" in (ast.get_docstring(n) or "") for n in ast.walk(tree) if isinstance(n, documented))


MODULES = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for path in sorted((ROOT / "jitgrad").rglob("*.py"))
    if path.name != "__main__.py" and shows_examples(path)
]


def docstring_tests(module: types.ModuleType) -> list[doctest.DocTest]:
    """Return the doctests of a module; ``jg`` and ``np`` are in the namespace of each."""
    names = {**vars(module), "jg": importlib.import_module("jitgrad"), "np": np}
    tests = doctest.DocTestFinder().find(module, module.__name__, globs=names)
    # The finder sees functions and classes only. A decorator may have made an operation of a function.
    seen = {test.name for test in tests}
    source = Path(str(module.__file__))
    for node in ast.parse(source.read_text(encoding="utf-8")).body:
        name = f"{module.__name__}.{getattr(node, 'name', '')}"
        if isinstance(node, ast.FunctionDef) and name not in seen:
            text = getattr(vars(module).get(node.name), "__doc__", None) or ""
            tests.append(doctest.DocTestParser().get_doctest(text, names, name, str(source), node.lineno))
    return tests


@pytest.mark.parametrize("name", MODULES)
def test_docstrings(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tests = [test for test in docstring_tests(importlib.import_module(name)) if test.examples]
    assert tests, f"{name} shows examples that no public object carries"
    monkeypatch.chdir(tmp_path)
    if report := "".join(run_doctest(test) for test in tests):
        pytest.fail(report, pytrace=False)


PAGE = """\
# A page

```python
>>> a = 1
>>> a
1
```

````{note}
```python
b = a + 1
```
````

```python no-run
$ jitgrad
```

```
text
```
"""


class TestTheTest:
    def test_blocks_of_one_page_share_a_namespace(self) -> None:
        assert faults(PAGE) == []
        namespace: dict[str, object] = {}
        run_page(PAGE, "page", namespace)
        assert namespace["b"] == 2

    def test_line_numbers_are_those_of_the_page(self) -> None:
        with pytest.raises(ZeroDivisionError) as caught:
            run_page(PAGE.replace("a + 1", "a / 0"), "page", {})
        assert caught.traceback[-1].lineno + 1 == PAGE.splitlines().index("b = a + 1") + 1

    def test_wrong_output_fails(self) -> None:
        with pytest.raises(pytest.fail.Exception, match=r"line 5[\s\S]*Expected:\s+2\s+Got:\s+1"):
            run_page(PAGE.replace("\n1\n", "\n2\n"), "page", {})

    @pytest.mark.parametrize(
        ("block", "fault"),
        [
            ("```py\n1\n```", "tag the block 'python'"),
            ("```{code-block} python\n1\n```", "tag the block 'python'"),
            ("```python norun\n1\n```", "unknown tags"),
            ("```python no-run\n1\n```", "'no-run' is for"),
            ("    >>> 1", "a prompt outside"),
            ("```\n>>> 1\n```", "a prompt outside"),
        ],
    )
    def test_code_that_would_not_be_run_is_found(self, block: str, fault: str) -> None:
        assert [fault in found for found in faults(block)] == [True]

    def test_open_fence(self) -> None:
        with pytest.raises(ValueError, match="line 2 is never closed"):
            faults("\n```python\n1\n")
