"""`python -m lab.draw`: write every picture of the documentation. `--record` searches and measures again what they show."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from lab.draw import beam, figures, ideas
from lab.draw.svg import Svg

HERE = Path(__file__).parent
PICTURES = HERE.parents[1] / "docs" / "pictures"
RECORDED = {"beam.json": beam.record, "figures.json": figures.record}


def pictures() -> dict[str, Svg]:
    """File name -> drawing."""
    seen, measured = (json.loads((HERE / name).read_text(encoding="utf-8")) for name in RECORDED)
    return {
        "beam.svg": beam.draw(seen),
        "codes.svg": figures.cards(measured),
        "plane.svg": figures.plane(measured),
        "answers.svg": figures.sheet(measured),
        "two-ways.svg": ideas.two_ways(),
        "residuals.svg": ideas.residuals(),
        "trie.svg": ideas.trie(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m lab.draw", description=__doc__)
    parser.add_argument("--record", action="store_true", help="search and measure again before drawing")
    if parser.parse_args().record:
        for name, record in RECORDED.items():
            (HERE / name).write_text(json.dumps(record(), indent=1) + "\n", encoding="utf-8")
    PICTURES.mkdir(exist_ok=True)
    for name, svg in pictures().items():
        (PICTURES / name).write_text(str(svg), encoding="utf-8")


if __name__ == "__main__":
    main()
