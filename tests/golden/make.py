"""Write `tests/golden/tied/`: a small model, inputs, and everything it made of them on the day this was run.

Run by hand, only when a change of behaviour is meant:  python tests/golden/make.py
`tests/golden/tiny/` is the same of a model of version 0.1, with a free row for each code; it is never written again.
"""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import save_file

from genius.features import Features
from genius.model.config import FusionConfig, GeneratorConfig, GeniusConfig, QuantizerConfig
from genius.model.genius import Genius
from genius.search import CodeTrie
from genius.search.beam import beam_search

FOLDER = Path(__file__).parent / "tied"
LEVELS = (3, 8, 8, 8)


def outputs(model: Genius, items: Features, queries: Features) -> dict[str, torch.Tensor]:
    z, dense = model.embed(queries)
    codes = model.encode(items)
    trie = CodeTrie.build(codes, LEVELS)
    out = {"item_codes": codes, "query_z": z, "query_dense": dense, "item_z": model.embed(items)[0]}
    found = beam_search(model.generator, trie, z, 10)
    out["plain_codes"], out["plain_scores"] = found.codes, found.scores
    return {key: value.contiguous() for key, value in out.items()}


def main() -> None:
    torch.manual_seed(7)
    shape = {"d_model": 32, "layers": 2, "heads": 2, "d_kv": 16, "d_ff": 48, "prefix_tokens": 4}
    generator = GeneratorConfig(16, LEVELS, **shape, normalizer="level", head="codebooks")  # type: ignore[arg-type]
    quantizer = QuantizerConfig(16, LEVELS, modality_codebooks_from=1, encode_sweeps=2)
    model = Genius(GeniusConfig(FusionConfig(16, 24, 24), quantizer, generator))
    with torch.no_grad():  # as after training: nothing is zero
        for name, weight in model.generator.codebook_head.named_parameters():
            if name.startswith("residual_shift"):
                weight += 0.05 * torch.randn_like(weight)
    kind = torch.arange(60) % 3
    items = Features(torch.randn(60, 16), torch.randn(60, 16), kind != 1, kind != 0)
    queries = Features(torch.randn(6, 16), torch.randn(6, 16), torch.arange(6) % 2 == 0, torch.ones(6, dtype=torch.bool))
    model.quantizer.initialise(model.embed(items)[0], items.modality)
    model.save_pretrained(FOLDER)
    sides = (("items", items), ("queries", queries))
    inputs = {f"{side}_{part}": getattr(rows, part) for side, rows in sides for part in Features.__dataclass_fields__}
    save_file({**inputs, **outputs(model, items, queries)}, FOLDER / "outputs.safetensors")


if __name__ == "__main__":
    main()
