"""Functions of the index that other packages import list their parameters, as the public API does (tests/core)."""

from __future__ import annotations

import ast
from pathlib import Path

SRC = Path(__file__).parents[2] / "src" / "genius"


def imported_elsewhere() -> set[tuple[str, str]]:
    """(module of the index, name) of all that other packages import from it."""
    found = set()
    for path in SRC.rglob("*.py"):
        if path.is_relative_to(SRC / "index"):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("genius.index"):
                module = (node.module or "").removeprefix("genius.index").strip(".") or "__init__"
                found |= {(module, alias.name) for alias in node.names}
    return found


def test_functions_that_other_packages_import_list_their_parameters() -> None:
    missing = []
    names = imported_elsewhere()
    for path in sorted((SRC / "index").glob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef) and (path.stem, node.name) in names:
                parameters = [argument.arg for argument in (*node.args.args, *node.args.kwonlyargs)]
                documentation = ast.get_docstring(node) or ""
                if parameters and not all(f"    {name}: " in documentation for name in parameters):
                    missing.append(f"{path.stem}.{node.name}")
    assert len(names) > 60 and missing == []
