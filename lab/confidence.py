"""Calibrate a model's probabilities on questions that its training has not seen, and say how well they hold.

    python -m lab.confidence VECTORS --model bundled:mini --output lab/results/confidence.json [--install FOLDER]

VECTORS is what `lab.icons.vectors` wrote. Validation questions over the whole pool; half of them fit, half judge. `--install`
writes the weights, fitted on all, into a model folder's config.json: `genius train` does the same for every model it trains.
"""

from __future__ import annotations

import argparse
import datetime
import json
from pathlib import Path

from genius import Genius
from genius.train.calibration import calibrate
from lab.icons.vectors import load


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("vectors", type=Path)
    parser.add_argument("--model", default="bundled:mini")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--install", type=Path)
    args = parser.parse_args()
    model, honest = Genius.from_pretrained(args.model), load(args.vectors)["val"]
    weights, values = calibrate(model, honest)
    body = {
        "model": args.model,
        "data": "icons, validation questions",
        "questions": len(honest.queries),
        "candidates": len(honest.pool),
        "date": datetime.date.today().isoformat(),
        "seed": 0,
        "figures": {name: round(value, 4) for name, value in values.items()},
    }
    args.output.write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(body["figures"], indent=1))
    if args.install is not None:
        config = json.loads((args.install / "config.json").read_text(encoding="utf-8"))
        config["model"]["confidence"] = weights
        (args.install / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
