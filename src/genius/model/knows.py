"""What a model knows: how closely its codes describe items like those it was made from. Stored beside it as `knows.json`.

Codes describe what is like their own items closely, and anything else less so: the distance of z to what its codes stand for says
whether pictures look unlike what a model knows, and whether a collection has outgrown its codes. Knows codes and z.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from genius.errors import GeniusError
from genius.files import read_json, write_whole
from genius.types import Modality

if TYPE_CHECKING:
    from genius.model.quantizer import ResidualQuantizer

KNOWS = "knows.json"
MAX_KNOWS = 1 << 16  # bytes of it
USUAL = 0.75  # share of a model's own items that lie within the distance that is stored
STRANGE = 0.7  # share of other items beyond it from which they look unlike what the model knows
MARGIN = 0.02  # codes of a small collection describe it nearly without error: rounding must not count
FEW = 20  # items that say nothing yet


@dataclass(frozen=True, slots=True)
class Knows:
    """Figures about a model's own items."""

    items: int  # that codes were fitted to
    reach: Mapping[str, float]  # kind -> the distance of z to its codes that `USUAL` of these items keep
    about: str = ""  # what these items are, in a few words
    fit: Mapping[str, Any] = field(default_factory=dict)  # of a model fitted without pairs: how, and what it keeps

    def to_dict(self) -> dict[str, Any]:
        return {"items": self.items, "reach": dict(self.reach), "about": self.about, "fit": dict(self.fit)}

    def strange(self, distance: Tensor, modality: Tensor) -> dict[str, float]:
        """Kind -> share of these items beyond reach, for the kinds that look unlike what is known."""
        out = {}
        for kind, reach in self.reach.items():
            own = distance[modality == int(Modality.parse(kind))]
            if len(own) >= FEW and (share := (own > reach + MARGIN).float().mean().item()) >= STRANGE:
                out[kind] = share
        return out


@torch.no_grad()
def distances(quantizer: ResidualQuantizer, z: Tensor, codes: Tensor) -> Tensor:
    """(N,) how far items z (N, D) are from what their codes (N, M) stand for."""
    far: Tensor = (z - quantizer.decode(codes)).norm(dim=1)
    return far


def knows(quantizer: ResidualQuantizer, z: Tensor, modality: Tensor, codes: Tensor, about: str = "") -> Knows:
    """Of the items that a model was made from, or others like them."""
    far, reach = distances(quantizer, z, codes), {}
    for kind in Modality:
        own = far[modality == int(kind)]
        if len(own) >= FEW:
            reach[kind.label] = round(torch.quantile(own[:100_000], USUAL).item(), 4)
    return Knows(len(z), reach, about)


def save_knows(directory: Path, known: Knows) -> None:
    text = json.dumps(known.to_dict(), indent=2) + "\n"
    write_whole(directory / KNOWS, lambda path: path.write_text(text, encoding="utf-8"))


def load_knows(directory: Path) -> Knows | None:
    """None where a model brings no such file."""
    path = directory / KNOWS
    try:
        body = read_json(path, MAX_KNOWS)
    except FileNotFoundError:
        return None
    try:
        reach = {Modality.parse(str(kind)).label: float(value) for kind, value in body["reach"].items()}
        return Knows(int(body["items"]), reach, str(body.get("about", "")), dict(body.get("fit", {})))
    except (GeniusError, KeyError, TypeError, ValueError, AttributeError, OverflowError):
        raise GeniusError(f"{path} is not what it should be: it says how closely codes describe their items") from None
