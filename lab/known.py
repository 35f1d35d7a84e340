"""What `bundled:mini` knows, as its `knows.json`: how closely its codes describe drawings like those it was made from.

python -m lab.known src/genius/bundled/mini        (needs the demo's drawings: pip install 'genius-search[demo]')
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path

from genius.demo import demo_items
from genius.encoders.base import encode_items
from genius.model.genius import Genius
from genius.model.known_items import knows, save_knows

ITEMS, SEED = 1500, 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    folder = parser.parse_args().model
    model = Genius.from_pretrained(folder)
    assert model.encoder is not None
    items = random.Random(SEED).sample(demo_items(), ITEMS)
    features, _, _ = encode_items(model.encoder, items)
    z, _ = model.embed(features)
    found = knows(model.reconstruct, z, features.modality, model.encode(features), "drawings: icons and emoji")
    save_knows(folder, found)
    print(found)


if __name__ == "__main__":
    main()
