"""Whether an index holds things that its model does not know, or more than its codes were fitted to: one line for people.

Looks at a sample of what is stored, embeddings and codes; encodes nothing.
"""

from __future__ import annotations

import numpy as np
import torch

from genius.index.folder import INSIDE
from genius.index.opened import OpenIndex
from genius.model.confidence import distances
from genius.search import SearchParams
from genius.types import Modality

SAMPLE = 400  # items that are looked at
OUTGROWN = 4  # times as many items as codes were fitted to
NAMES = {"image": "pictures", "text": "texts", "pair": "pictures with texts"}
HELP = "a model fitted to them finds more: genius index FILES -o NEW.genius --encoder hf-hub:openai/clip-vit-base-patch32"


def unlike(state: OpenIndex) -> dict[str, float]:
    """Kind -> share of the index's items that its model's codes describe badly, for the kinds that look strange to it."""
    model = state.model
    if model.knows is None or model.config.rerank_embedding != "fused":
        return {}
    with state.lock:
        live = state.current()
        alive, engine = np.flatnonzero(~live.dead), live.engine()
        reader = live.reader
    if engine is None or engine.vectors is None or not len(alive):
        return {}
    picked = alive[np.linspace(0, len(alive) - 1, min(SAMPLE, len(alive))).astype(np.int64)]
    z, codes = engine.vectors.take(torch.from_numpy(picked).to(model.device)), torch.from_numpy(live.codes_of(picked))
    found = reader.rows(live.seqs[picked], ["modality"])
    kinds = torch.tensor([int(Modality.parse(found[int(seq)]["modality"])) for seq in live.seqs[picked]])
    return model.knows.strange(distances(model.quantizer, z, codes.to(model.device)).cpu(), kinds)


def advice(state: OpenIndex) -> str | None:
    """One line that says what is wrong and what helps; None: nothing is."""
    known = state.model.knows
    if known is None:
        return None
    with state.lock:
        count = state.current().alive
    if state.about.source == INSIDE:
        if count <= SearchParams.of_model(state.model).rerank:
            return None  # all items are compared anyhow
        if count < OUTGROWN * known.items and not unlike(state):
            return None
        return (
            f"this index has outgrown its codes, which were fitted to {known.items:,} of its {count:,} items: "
            f"genius index FILES -o {state.path.name} --refit fits new ones"
        )
    strange = unlike(state)
    if not strange:
        return None
    what = " and ".join(NAMES[kind] for kind in strange)
    return f"the {what} here look unlike what this model knows ({known.about or 'what it was trained on'}); {HELP}"
