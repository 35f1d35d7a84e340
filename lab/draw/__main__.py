"""`python -m lab.draw`: draw every diagram of the documentation. `--record` searches and measures again what they show."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from lab.draw import beam, figures, ideas
from lab.draw.svg import Svg

HERE = Path(__file__).parent
PICTURES = HERE.parents[1] / "docs" / "pictures"
MEASURED = {"beam.json": beam.record, "figures.json": figures.record}


def pictures() -> dict[str, Svg | str]:
    """File name -> drawing."""
    search = json.loads((HERE / "beam.json").read_text(encoding="utf-8"))
    measured = json.loads((HERE / "figures.json").read_text(encoding="utf-8"))
    return {
        "beam.svg": beam.draw(search),
        "codes.svg": figures.codes(measured),
        "plane.svg": figures.plane(measured),
        "results.svg": figures.sheet(measured),
        "two-ways.svg": ideas.two_ways(),
        "plans.svg": ideas.plans(),
        "residuals.svg": ideas.residuals(),
        "trie.svg": ideas.trie(),
        "logo.svg": ideas.logo(),
        "favicon.svg": ideas.favicon(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m lab.draw", description=__doc__)
    parser.add_argument("--record", action="store_true", help="search and measure again before drawing")
    if parser.parse_args().record:
        for name, record in MEASURED.items():
            (HERE / name).write_text(json.dumps(record(), indent=1) + "\n", encoding="utf-8")
    PICTURES.mkdir(exist_ok=True)
    for name, svg in pictures().items():
        (PICTURES / name).write_text(str(svg), encoding="utf-8")


if __name__ == "__main__":
    main()
