"""Packages import one way, and so do the modules of a package; imports inside functions and for types count, but for the
type of a package's own class in its helpers. The product imports neither `lab` nor tests."""

from __future__ import annotations

import ast
from collections.abc import Collection
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

SRC = Path(__file__).parents[2] / "src"

# A package may import those of the layers below it, and no other of its own layer. "base": the modules beside the packages, and
# `pictures`, which `types` opens files with.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("base",),
    ("encoders",),
    ("model",),
    ("search",),
    ("data",),
    ("index", "train"),
    ("integrations",),
    ("fit", "evaluate", "serve", "export"),
    ("demo",),
    ("scale",),
    ("cli",),
)
LATE = {("genius.model.genius", "fit"), ("genius.index.index", "fit")}  # Genius.from_encoder, Index.reencode: in the functions
LAYER = {package: number for number, packages in enumerate(LAYERS) for package in packages}


def package_of(module: str) -> str:
    parts = module.split(".")
    known = parts[0] == "genius" and len(parts) > 1 and (parts[1] in LAYER or (SRC / "genius" / parts[1]).is_dir())
    return parts[1] if known and parts[1] != "pictures" else "base"


def imports(path: Path) -> set[str]:
    """Every module that a file imports, wherever in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
    return found


def test_packages_import_one_way() -> None:
    wrong: set[str] = set()
    for path in SRC.rglob("*.py"):
        module = ".".join(path.relative_to(SRC).with_suffix("").parts).removesuffix(".__init__")
        package = package_of(module)
        if module in (
            "genius",
            "genius.__main__",
        ):  # public entry points, which import lazily
            continue
        for name in imports(path):
            if name.partition(".")[0] not in ("genius", "lab", "tests"):
                continue
            other = package_of(name)
            upward = other != package and LAYER[other] >= LAYER[package] and (module, other) not in LATE
            if upward or name == "genius" or not name.startswith("genius."):  # nothing inside imports the public API
                wrong.add(f"{module} ({package}) imports {name} ({other})")
    assert not wrong, "\n".join(sorted(wrong))


OWN_TYPES = {"genius.index": {"Index"}}  # package -> classes that its helpers name as a type: `Index` calls them with itself


def for_types(tree: ast.Module) -> set[ast.AST]:
    """Nodes below `if TYPE_CHECKING`, which never run."""
    guarded = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    return {inner for node in guarded for inner in ast.walk(node)}


def modules(path: Path, known: Collection[str]) -> set[str]:
    """Those of `known` that a file imports: "from genius.index import writing" is the module writing, not the package."""
    found: set[str] = set()
    tree = ast.parse(path.read_text(encoding="utf-8"))
    types = for_types(tree)
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.ImportFrom)
            and node in types
            and {a.name for a in node.names} <= OWN_TYPES.get(node.module or "", set())
        ):
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            found |= {name if name in known else node.module for name in names}
    return found & set(known)


def test_modules_import_one_way() -> None:
    files = {".".join(path.relative_to(SRC).with_suffix("").parts).removesuffix(".__init__"): path for path in SRC.rglob("*.py")}
    try:
        graph = {
            module: {other for other in modules(path, files) if other != module and (module, package_of(other)) not in LATE}
            for module, path in files.items()
        }
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))


def test_nothing_outside_its_package_reaches_into_an_index() -> None:
    """State of `Index` and of its table is used in `genius.index` alone."""
    guarded = {"live", "store", "lock", "write_lock", "current", "change", "sure", "rebuild"}
    wrong = []
    for path in SRC.rglob("*.py"):
        if "index" in path.relative_to(SRC).parts[:-1]:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) in ("index", "self.index", "self._index"):
                private = node.attr.startswith("_") and not node.attr.startswith("__")
                if private or node.attr in guarded:
                    wrong.append(f"{path.relative_to(SRC)}:{node.lineno} uses {ast.unparse(node)}")
    assert not wrong, "\n".join(wrong)
