"""The page of all fields of a training config: `python -m lab.config_fields > docs/training-fields.md`."""

from __future__ import annotations

import inspect
import re
from typing import Any

from genius.train import config as configs

FIELD = re.compile(r"    (\w+): ([^=#]+?) = ([^#]+?)(?:  # (.*))?$")  # a line of a config's class


def fields_page() -> str:
    """A Markdown page of every field of a training config: name, default and comment, read from the dataclasses."""
    tables: dict[str, tuple[str, type[Any]]] = {
        "": ("The whole run", configs.TrainConfig),
        "run": ("`[run]`: what every stage's loop needs", configs.RunConfig),
        "model": ("`[model]`: sizes", configs.ModelConfig),
        "encoder": ("`[encoder]`: stage 1", configs.EncoderStageConfig),
        "quantizer": ("`[quantizer]`: stage 2", configs.QuantizerStageConfig),
        "generator": ("`[generator]`: stage 3", configs.GeneratorStageConfig),
    }
    lines = [
        "# Fields of a training config",
        "",
        "Made by `python -m lab.config_fields` from the config itself. "
        "A field is set in a TOML file, or by `--set table.name=value`.",
    ]
    for table, (title, config) in tables.items():
        prefix = f"{table}." if table else ""
        lines += ["", f"## {title}", "", "| field | default | meaning |", "|---|---|---|"]
        for name, (default, meaning) in _fields(config).items():
            lines.append(f"| `{prefix}{name}` | `{default}` | {meaning} |")
    return "\n".join([*lines, ""])


def _fields(config: type[Any]) -> dict[str, tuple[str, str]]:
    """Name -> (default, meaning), those of base classes first; a class may give a base's field another default."""
    fields: dict[str, tuple[str, str]] = {}
    for owner in reversed(config.__mro__[:-1]):
        above: list[str] = []
        for line in inspect.getsource(owner).splitlines():
            match = FIELD.match(line)
            if match is None:
                if line.startswith("    # "):
                    above.append(line.strip("# ").strip())
                else:
                    above = []
                continue
            name, _, default, comment = match.groups()
            meaning = " ".join([*above, comment or ""]).strip().replace("|", "\\|")
            above = []
            if "default_factory" in default and name != "search":
                continue  # a table of its own
            if "factory" in default:
                default = "{}"
            fields[name] = (default, meaning or fields.get(name, ("", ""))[1])
    return fields


if __name__ == "__main__":
    print(fields_page(), end="")
