"""Public functions list their parameters: whatever docs/api.md shows, whatever a documentation page imports, and whatever a
module's `__all__` or a package's `__init__` exposes."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SHOWN = re.compile(r"^::: (genius[\w.]*)\.(\w+)$", re.MULTILINE)
OF_EXTRAS = {
    "genius.integrations.langchain": "langchain_core",
    "genius.integrations.llamaindex": "llama_index",
}
"""Module -> package without which it cannot be imported."""
SOURCE = ROOT / "src" / "genius"
IMPORTED = re.compile(r"^(?:>>> )?from (genius[\w.]*) import ([\w, ]+)$", re.MULTILINE)


def exposed_names() -> set[tuple[str, str]]:
    """(module, name) of every name in an `__all__`, and of what a package's `__init__` without one defines."""
    names: set[tuple[str, str]] = set()
    for file in SOURCE.rglob("*.py"):
        parts = file.relative_to(SOURCE.parent).with_suffix("").parts
        module = ".".join(parts).removesuffix(".__init__")
        body = ast.parse(file.read_text(encoding="utf-8")).body
        lists = [node.value for node in body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"]
        if lists:
            names.update((module, name) for name in ast.literal_eval(lists[0]))
        elif file.name == "__init__.py":
            names.update((module, node.name) for node in body if isinstance(node, ast.FunctionDef | ast.ClassDef))
    return {(module, name) for module, name in names if not name.startswith("_")}


def public_names() -> dict[str, Any]:
    """Dotted name -> class or function."""
    names = exposed_names()
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        names.update(SHOWN.findall(text))
        for module, imported in IMPORTED.findall(text):
            names.update((module, name.strip()) for name in imported.split(","))
    found = {}
    for module, name in sorted(names):
        needed = OF_EXTRAS.get(module)
        if needed is not None and importlib.util.find_spec(needed) is None:
            continue
        member = getattr(importlib.import_module(module), name)
        if inspect.isclass(member) or inspect.isfunction(member):
            found[f"{module}.{name}"] = member
    return found


def functions(name: str, member: Any) -> Iterator[tuple[str, Any, str]]:
    """(name, function, documentation): a function itself, or the public methods of a class with its constructor."""
    if inspect.isfunction(member):
        yield name, member, member.__doc__ or ""
        return
    for own, value in vars(member).items():
        if isinstance(value, classmethod | staticmethod):
            value = value.__func__
        value = inspect.unwrap(value)
        if not inspect.isfunction(value):
            continue
        generated = hasattr(member, "__dataclass_fields__") or getattr(member, "_is_protocol", False)
        if own == "__init__" and not generated:
            yield f"{name}()", value, f"{member.__doc__ or ''}\n{value.__doc__ or ''}"
        elif not own.startswith("_"):
            yield f"{name}.{own}", value, value.__doc__ or ""


def unlisted(function: Any, documentation: str) -> list[str]:
    """Parameters that the `Args:` of a docstring do not name."""
    parameters = [name for name in inspect.signature(function).parameters if name not in ("self", "cls")]
    _, _, listed = inspect.cleandoc(documentation).partition("Args:\n")
    return [
        name
        for name in parameters
        if not re.search(rf"^\s+\*{{0,2}}{name}(, \w+)*:|^\s+[\w, ]*\b{name}[\w, ]*:", listed, re.MULTILINE)
    ]


NAMES = public_names()


@pytest.mark.parametrize("name", NAMES)
def test_every_public_function_lists_its_parameters(name: str) -> None:
    faults = {own: missing for own, function, text in functions(name, NAMES[name]) if (missing := unlisted(function, text))}
    assert not faults


def test_the_public_names_are_found() -> None:
    assert {"genius.index.Index", "genius.model.genius.Genius", "genius.export.export_onnx"} <= NAMES.keys()
    assert {"genius.pictures.load_image", "genius.serve.create_app"} <= NAMES.keys()
    assert len(NAMES) > 120


def test_a_missing_parameter_is_noticed() -> None:
    def half(a: int, b: int) -> None:
        """Say.

        Args:
            a: One.
        """

    assert unlisted(half, half.__doc__ or "") == ["b"]
