"""The on-ramp on real photos that pip installs: two dozen samples of scikit-image, asked with parts of them.

No CLIP can be shipped, so the bundled encoder stands in for one: it knows drawings, and words find no photos with it, but a part
of a photo often finds the whole. Knows where the sample photos lie; how they are indexed is `genius.fit`.
"""

from __future__ import annotations

import importlib.util
import random
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from genius.fit.folder import index_with_encoder
from genius.fit.questions import cut_out
from genius.index import Index
from genius.index.ingest import IngestConfig
from genius.pictures.load import load_image

ENCODER = "bundled:mini"
SAMPLES = {"skimage": "data", "sklearn": "datasets/images"}  # package -> where its pictures lie
LEAST = 200  # pixels of the shorter side of what counts as a photo


@dataclass(frozen=True, slots=True)
class Found:
    """A part of a photo, and what it found."""

    part: Image.Image
    photo: str  # the file that it was cut out of
    first: str  # the file that was found first


def sample_photos() -> list[Path]:
    """Pictures of the packages that are installed; none is imported."""
    found = []
    for package, folder in SAMPLES.items():
        spec = importlib.util.find_spec(package)
        for place in spec.submodule_search_locations or () if spec is not None else ():
            files = sorted(path for path in (Path(place) / folder).glob("*") if path.suffix in (".png", ".jpg"))
            found += [path for path in files if _large(path)]
    return found


def ask_with_parts(photos: list[Path], output: Path, seed: int = 0) -> list[Found]:
    """Index photos as `genius index PHOTOS -o OUTPUT --encoder bundled:mini` does, and ask with a part of each."""
    index_with_encoder(photos, output, ENCODER, IngestConfig())
    rng, found = random.Random(seed), []
    with Index.open(output) as index:
        for path in photos:
            part = cut_out(load_image(path), rng)
            first = index.search(image=part, target="image", k=1)[0]
            found.append(Found(part, path.name, Path(str(first.item.image)).name))
    return found


def _large(path: Path) -> bool:
    with Image.open(path) as picture:
        return min(picture.size) >= LEAST
