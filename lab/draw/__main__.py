"""`python -m lab.draw`: write every picture of the documentation. `--record` runs the real search of the beam's picture again."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from lab.draw import beam, ideas
from lab.draw.svg import Svg

HERE = Path(__file__).parent
PICTURES = HERE.parents[1] / "docs" / "pictures"
RECORDED = HERE / "beam.json"


def pictures() -> dict[str, Svg]:
    """File name -> drawing."""
    recorded = json.loads(RECORDED.read_text(encoding="utf-8"))
    return {
        "beam.svg": beam.draw(recorded),
        "two-ways.svg": ideas.two_ways(),
        "residuals.svg": ideas.residuals(),
        "trie.svg": ideas.trie(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m lab.draw", description=__doc__)
    parser.add_argument("--record", action="store_true", help="search again before drawing")
    if parser.parse_args().record:
        RECORDED.write_text(json.dumps(beam.record(), indent=1) + "\n", encoding="utf-8")
    PICTURES.mkdir(exist_ok=True)
    for name, svg in pictures().items():
        (PICTURES / name).write_text(str(svg), encoding="utf-8")


if __name__ == "__main__":
    main()
