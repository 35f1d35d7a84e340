"""The rooms import one way, and so do the modules inside a room, imports inside functions and for types counted; and the product
never knows the laboratory or its tests."""

from __future__ import annotations

import ast
from collections.abc import Collection
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

SRC = Path(__file__).parents[2] / "src"

# A room may import those of the floors below it, and no other of its own floor. "words": the modules beside the rooms, and
# `pictures`, which `types` opens files with.
FLOORS: tuple[tuple[str, ...], ...] = (
    ("words",),
    ("encoders",),
    ("model",),
    ("search",),
    ("data",),
    ("index", "train"),
    ("fit", "evaluate", "serve", "export"),
    ("demo",),
    ("scale",),
    ("cli",),
)
LATE = {("genius.model.genius", "fit")}  # Genius.from_encoder, inside the function
FLOOR = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}


def room_of(module: str) -> str:
    parts = module.split(".")
    known = parts[0] == "genius" and len(parts) > 1 and (parts[1] in FLOOR or (SRC / "genius" / parts[1]).is_dir())
    return parts[1] if known and parts[1] != "pictures" else "words"


def imports(path: Path) -> set[str]:
    """Every module that a file imports, wherever in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
    return found


def test_rooms_import_one_way() -> None:
    wrong: set[str] = set()
    for path in SRC.rglob("*.py"):
        module = ".".join(path.relative_to(SRC).with_suffix("").parts)
        room = room_of(module)
        if module in ("genius.__init__", "genius.__main__"):  # the front doors: they open lazily, and nothing inside uses them
            continue
        for name in imports(path):
            if name.partition(".")[0] not in ("genius", "lab", "tests"):
                continue
            other = room_of(name)
            upward = other != room and FLOOR[other] >= FLOOR[room] and (module, other) not in LATE
            if upward or name == "genius" or not name.startswith("genius."):  # nobody inside comes in by the front door
                wrong.add(f"{module} ({room}) imports {name} ({other})")
    assert not wrong, "\n".join(sorted(wrong))


def modules(path: Path, known: Collection[str]) -> set[str]:
    """Those of `known` that a file imports: "from genius.index import writing" is the module writing, not the room's own door."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            found |= {name if name in known else node.module for name in names}
    return found & set(known)


def test_modules_import_one_way() -> None:
    files = {".".join(path.relative_to(SRC).with_suffix("").parts).removesuffix(".__init__"): path for path in SRC.rglob("*.py")}
    try:
        late = {(module, f"genius.{room}") for module, room in LATE}
        graph = {
            module: {other for other in modules(path, files) if other != module and (module, other) not in late}
            for module, path in files.items()
        }
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))
