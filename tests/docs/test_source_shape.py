"""Modules and functions stay short enough to be read at once, and are named for what they hold."""

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "poise"
MODULES = sorted(SOURCE.rglob("*.py"))
MAX_MODULE_LINES, MAX_FUNCTION_LINES = 400, 60
names = pytest.mark.parametrize("module", MODULES, ids=lambda module: str(module.relative_to(SOURCE)))


@names
def test_a_module_is_at_most_400_lines(module: Path) -> None:
    assert len(module.read_text().splitlines()) <= MAX_MODULE_LINES


@names
def test_a_function_is_at_most_60_lines(module: Path) -> None:
    """A command's flags are not counted: its parameters are a table rather than code."""
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0].lineno if module.parent.name == "cli" else node.lineno
            assert (node.end_lineno or 0) - first < MAX_FUNCTION_LINES, node.name


@names
def test_a_module_says_what_it_is_and_is_named_for_it(module: Path) -> None:
    if module.name == "__init__.py" and module.parent != SOURCE:
        assert module.read_text() == ""
    else:
        assert ast.get_docstring(ast.parse(module.read_text())), "a docstring of one to three lines"
    for part in module.relative_to(SOURCE).with_suffix("").parts:
        assert not {"utils", "util", "helpers", "misc", "common", "manager"} & set(part.split("_")), part
