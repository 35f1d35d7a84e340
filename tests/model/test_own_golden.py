"""Stored models still give what they gave: codes, embeddings and beams of `tests/golden/tiny` (version 0.1) and `tied`."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from genius.features import Features
from genius.model.genius import Genius

FOLDER = Path(__file__).parents[1] / "golden"


@pytest.mark.parametrize("name", ["tiny", "tied"])
def test_outputs_have_not_changed(name: str) -> None:
    spec = importlib.util.spec_from_file_location("golden_make", FOLDER / "make.py")
    assert spec is not None and spec.loader is not None
    make = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(make)
    stored = load_file(FOLDER / name / "outputs.safetensors")
    parts = list(Features.__dataclass_fields__)
    items, queries = (Features(*(stored[f"{side}_{part}"] for part in parts)) for side in ("items", "queries"))
    found = make.outputs(Genius.from_pretrained(FOLDER / name), items, queries)
    assert len(found) == 6
    for part, value in found.items():
        if value.dtype == torch.int64:
            assert torch.equal(value, stored[part]), part
        else:
            torch.testing.assert_close(value, stored[part], atol=1e-5, rtol=1e-4, msg=part)
