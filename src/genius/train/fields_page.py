"""Every field of a training config as a page: name, default, meaning, read off the dataclasses themselves."""

from __future__ import annotations

import inspect
import re
from typing import Any

from genius.train import config as configs

TABLES: dict[str, tuple[str, type[Any]]] = {
    "": ("The whole run", configs.TrainConfig),
    "run": ("`[run]`: what every stage's loop needs", configs.RunConfig),
    "model": ("`[model]`: sizes", configs.ModelConfig),
    "encoder": ("`[encoder]`: stage 1", configs.EncoderStageConfig),
    "quantizer": ("`[quantizer]`: stage 2", configs.QuantizerStageConfig),
    "generator": ("`[generator]`: stage 3", configs.GeneratorStageConfig),
}
FIELD = re.compile(r"    (\w+): ([^=#]+?) = ([^#]+?)(?:  # (.*))?$")


def fields_page() -> str:
    lines = [
        "# Fields of a training config",
        "",
        "Made by `genius train --fields` from the config itself. A field is set in a TOML file, or by `--set table.name=value`.",
    ]
    for table, (title, kind) in TABLES.items():
        lines += ["", f"## {title}", "", "| field | default | meaning |", "|---|---|---|"]
        for name, (default, meaning) in _fields(kind).items():
            lines.append(f"| `{table + '.' if table else ''}{name}` | `{default}` | {meaning} |")
    return "\n".join([*lines, ""])


def _fields(kind: type[Any]) -> dict[str, tuple[str, str]]:
    """Name -> (default, meaning), those of base classes first; a class may give a base's field another default."""
    found: dict[str, tuple[str, str]] = {}
    for owner in reversed(kind.__mro__[:-1]):
        above: list[str] = []
        for line in inspect.getsource(owner).splitlines():
            match = FIELD.match(line)
            if match is None:
                above = [*above, line.strip("# ").strip()] if line.startswith("    # ") else []
                continue
            name, _, default, beside = match.groups()
            meaning = " ".join([*above, beside or ""]).strip().replace("|", "\\|")
            above = []
            if "default_factory" in default and name != "search":
                continue  # a table of its own
            found[name] = (default if "factory" not in default else "{}", meaning or found.get(name, ("", ""))[1])
    return found
