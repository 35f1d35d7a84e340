"""Is this the encoder that these features came from? Asked before a model trained on features is given an encoder.

Widths must fit, the stamp that extraction left must name the same weights, and where the pictures and texts are at hand a few
rows are encoded again and must agree. Knows features, stamps and encoders; nothing of models.
"""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path

import torch
import torch.nn.functional as F

from genius.data.collection import Collection
from genius.data.extract import STAMP
from genius.data.features import FeatureSet
from genius.encoders.base import Encoder, encode_items
from genius.errors import GeniusError
from genius.types import Item, Modality

ROWS, LOOKED_AT = 4, 20_000  # encoded again of each kind, and how far into the pool they are looked for
AGREE = 0.99  # cosine of a row with itself: half precision and other devices round


def check_widths(encoder: Encoder, image: int, text: int, uri: str) -> None:
    """Vectors of this encoder, or of its towers where heads come later, are as wide as the features."""
    towers = getattr(encoder, "heads", None)
    own = {(encoder.width, encoder.width)}
    if towers is not None:
        own.add((int(towers.image_width), int(towers.text_width)))
    if (image, text) not in own:
        raise GeniusError(f"the encoder {uri} is {encoder.width} wide, the features {image} and {text}: they are not its own")


def check_stamp(encoder: Encoder, folder: Path, uri: str) -> bool:
    """Whether the folder says which encoder made it; if it names another, one clear line."""
    path = folder / STAMP
    if not path.is_file():
        return False
    try:
        made_by = str(json.loads(path.read_text(encoding="utf-8"))["encoder"])
    except (OSError, ValueError, KeyError, TypeError):
        raise GeniusError(f"cannot read {path}") from None
    if made_by.removesuffix("-towers") != encoder.fingerprint():
        raise GeniusError(f"the features in {folder} were made by another encoder than {uri}")
    return True


def check_rows(encoder: Encoder, features: FeatureSet, collection: Collection, uri: str) -> int:
    """Encode a few candidates of each kind again and compare; how many were."""
    row = {name: i for i, name in enumerate(features.pool_ids)}
    chosen: dict[Modality, list[Item]] = {modality: [] for modality in Modality}
    for item in islice(collection.pool(), LOOKED_AT):
        if item.id in row and len(chosen[item.modality]) < ROWS:
            chosen[item.modality].append(item)
    items = [item for some in chosen.values() for item in some]
    if not items:
        raise GeniusError(f"none of the features' candidates is in {collection.name}: nothing to compare with")
    again = encode_items(encoder, items)[0]
    stored = features.pool[torch.tensor([row[item.id] for item in items])]
    for kind in ("image", "text"):
        mask = getattr(again, f"{kind}_mask")
        if not torch.equal(mask, getattr(stored, f"{kind}_mask").cpu()):
            raise GeniusError(f"{collection.name} and the features disagree about which candidates have a {kind}")
        if not mask.any():
            continue
        old, new = getattr(stored, kind)[mask].float().cpu(), getattr(again, kind)[mask].float().cpu()
        alike = F.cosine_similarity(old, new, dim=1)
        if alike.min() < AGREE:
            worst = [item for item, has in zip(items, mask.tolist(), strict=True) if has][int(alike.argmin())]
            raise GeniusError(
                f"the features were not made by {uri}: the {kind} of {worst.id} encoded again has a cosine of {alike.min():.2f}"
            )
    return len(items)
