"""The teacher of language: all-MiniLM-L6-v2, run once over the corpus. It is not part of the shipped model."""

from __future__ import annotations

import json
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor

from genius.packing import unpack


@torch.no_grad()
def teach(folder: Path, texts: list[str], device: torch.device, batch: int = 2048) -> Tensor:
    """(n, 384) unit vectors, half precision on a GPU."""
    from tokenizers import Tokenizer
    from transformers import BertConfig, BertModel

    config = BertConfig(**json.loads((folder / "teacher-config.json").read_text()))
    model = BertModel(config, add_pooling_layer=False)
    missing, unexpected = model.load_state_dict(unpack(load_file(folder / "teacher.safetensors")), strict=False)
    assert not [m for m in missing if "position_ids" not in m] and not unexpected, (missing, unexpected)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    model = model.to(device, dtype).eval()
    tokenizer = Tokenizer.from_file(str(folder / "teacher-tokenizer.json"))
    tokenizer.enable_truncation(64)
    tokenizer.no_padding()
    order = sorted(range(len(texts)), key=lambda i: len(texts[i]))  # texts of one length together: little padding
    out = torch.empty(
        len(texts), config.hidden_size, dtype=torch.float16 if device.type == "cuda" else torch.float32, device=device
    )
    for start in range(0, len(order), batch * 16):
        some = order[start : start + batch * 16]
        rows = [e.ids for e in tokenizer.encode_batch([texts[i] for i in some])]
        for k in range(0, len(some), batch):
            part = rows[k : k + batch]
            longest = max(map(len, part))
            ids = torch.tensor([r + [0] * (longest - len(r)) for r in part], device=device)
            mask = torch.tensor([[1] * len(r) + [0] * (longest - len(r)) for r in part], device=device)
            states = model(input_ids=ids, attention_mask=mask).last_hidden_state.float()
            weight = mask[..., None].float()
            pooled = (states * weight).sum(1) / weight.sum(1)
            out[torch.tensor(some[k : k + batch], device=device)] = F.normalize(pooled, dim=1).to(out.dtype)
    return out
