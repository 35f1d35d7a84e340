"""Do items look like those that a model knows? Stored with a model as `knows.json`.

Codes describe items like their own closely, and others less so. The distance of z to its reconstruction says whether
images look unlike what a model was fitted to, and whether a collection has outgrown its codes. Knows z and codes;
nothing of indexes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from genius.errors import GeniusError
from genius.features import as_numpy
from genius.files import read_json, write_json
from genius.types import Modality

KNOWS = "knows.json"
MAX_KNOWS = 1 << 16  # bytes of it
USUAL = 0.75  # share of a model's own items within the distance that is stored
STRANGE = 0.7  # share of other items beyond it from which they look unlike the model's own
MARGIN = 0.02  # codes of a small collection describe it nearly without error: rounding must not count
FEW = 20  # fewer items say nothing


@dataclass(frozen=True, slots=True)
class Knows:
    """Statistics of a model's own items."""

    items: int  # that codes were fitted to
    usual_distance: Mapping[str, float]  # modality -> distance of z to its reconstruction that `USUAL` of these items keep
    about: str = ""  # what these items are, in a few words
    fit: Mapping[str, Any] = field(default_factory=dict)  # of a model fitted without pairs: how, and what it keeps

    @property
    def fitted(self) -> bool:
        """Whether codes and decoder were fitted to items; not, where an index is small enough to be compared whole."""
        return bool(self.fit.get("fitted", True))

    def to_dict(self) -> dict[str, Any]:
        return {"items": self.items, "usual_distance": dict(self.usual_distance), "about": self.about, "fit": dict(self.fit)}

    def strange(self, distance: NDArray[np.float32], modality: NDArray[np.int64]) -> dict[str, float]:
        """Modality -> share of these items beyond `usual_distance`, for modalities that look unlike the model's own items.

        Args:
            distance: (N,) of items to their reconstructions (`distances`).
            modality: (N,) of the items.
        """
        out = {}
        for label, limit in self.usual_distance.items():
            distances = distance[modality == int(Modality.parse(label))]
            if len(distances) < FEW:
                continue
            share = float((distances > limit + MARGIN).mean())
            if share >= STRANGE:
                out[label] = share
        return out


def distances(decode: Callable[[Any], Any], z: Any, codes: Any) -> NDArray[np.float32]:
    """Distances of items to the reconstructions of their codes.

    Args:
        decode: Codes (N, M) -> reconstructions (N, D).
        z: (N, D) the items, a tensor or an array.
        codes: (N, M) theirs, likewise.

    Returns:
        (N,) distances.
    """
    error = as_numpy(z) - as_numpy(decode(codes))
    distance: NDArray[np.float32] = np.linalg.norm(error, axis=1).astype(np.float32)
    return distance


def knows(decode: Callable[[Any], Any], z: Any, modality: Any, codes: Any, about: str = "") -> Knows:
    """Statistics of the items that a model was fitted to, or of items like them.

    Args:
        decode: Codes (N, M) -> reconstructions (N, D).
        z: (N, D) the items, a tensor or an array.
        modality: (N,) theirs.
        codes: (N, M) theirs.
        about: What these items are, in a few words.
    """
    distance = distances(decode, z, codes)
    modality = as_numpy(modality)
    usual_distance = {}
    for value in Modality:
        modality_distances = distance[modality == int(value)]
        if len(modality_distances) >= FEW:
            usual_distance[value.label] = round(float(np.quantile(modality_distances[:100_000], USUAL)), 4)
    return Knows(len(z), usual_distance, about)


def save_knows(directory: Path, known: Knows) -> None:
    write_json(directory / KNOWS, known.to_dict(), indent=2)


def load_knows(directory: Path) -> Knows | None:
    """None where a model brings no such file."""
    path = directory / KNOWS
    try:
        body = read_json(path, MAX_KNOWS)
    except FileNotFoundError:
        return None
    try:
        stored = body.get("usual_distance", body.get("reach"))  # "reach": its name in the first release
        usual_distance = {Modality.parse(str(label)).label: float(value) for label, value in stored.items()}
        return Knows(int(body["items"]), usual_distance, str(body.get("about", "")), dict(body.get("fit", {})))
    except (GeniusError, KeyError, TypeError, ValueError, AttributeError, OverflowError):
        raise GeniusError(f"{path} is invalid: expected the number of items and their usual distance by modality") from None
