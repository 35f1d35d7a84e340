"""What `bundled:mini` knows: `knows.json`, how closely its codes describe drawings like those it was made from, and
`instructions.json`, the wordings that it was trained with: the library's and those of the icon benchmark.

python -m lab.known src/genius/bundled/mini ICONS

ICONS is the benchmark (docs/icons.md). Needs the demo's drawings: pip install 'genius-search[demo]'.
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path

from genius.data.mbeir import INSTRUCTIONS, read_instructions
from genius.demo import demo_items
from genius.encoders.base import encode_items
from genius.instructions import KnownInstructions
from genius.model.genius import Genius
from genius.model.known_items import knows, save_knows
from genius.types import TEMPLATES

ITEMS, SEED = 1500, 0


def known_instructions(icons: Path) -> KnownInstructions:
    """Wordings by direction, the library's first."""
    wordings = {direction: list(own) for direction, own in TEMPLATES.items()}
    for (_, query, target), prompts in read_instructions(icons / INSTRUCTIONS).items():
        wordings[query, target] += prompts
    return KnownInstructions(wordings)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("icons", type=Path)
    args = parser.parse_args()
    folder = args.model
    model = Genius.from_pretrained(folder)
    assert model.encoder is not None
    items = random.Random(SEED).sample(demo_items(), ITEMS)
    features, _, _ = encode_items(model.encoder, items)
    z, _ = model.embed(features)
    found = knows(model.reconstruct, z, features.modality, model.encode(features), "drawings: icons and emoji")
    save_knows(folder, found)
    known_instructions(args.icons).save(folder)
    print(found)


if __name__ == "__main__":
    main()
