"""A stored model still gives what it gave: codes, embeddings and beams of `tests/golden/tiny`."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import torch
from safetensors.torch import load_file

from genius.features import Features
from genius.model.genius import Genius

FOLDER = Path(__file__).parents[1] / "golden"


def test_outputs_have_not_changed() -> None:
    spec = importlib.util.spec_from_file_location("golden_make", FOLDER / "make.py")
    assert spec is not None and spec.loader is not None
    make = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(make)
    stored = load_file(FOLDER / "tiny" / "outputs.safetensors")
    parts = list(Features.__dataclass_fields__)
    items, queries = (Features(*(stored[f"{side}_{part}"] for part in parts)) for side in ("items", "queries"))
    found = make.outputs(Genius.from_pretrained(FOLDER / "tiny"), items, queries)
    assert len(found) == 10
    for name, value in found.items():
        if value.dtype == torch.int64:
            assert torch.equal(value, stored[name]), name
        else:
            torch.testing.assert_close(value, stored[name], atol=1e-5, rtol=1e-4, msg=name)
