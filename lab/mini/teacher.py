"""The teacher of language: all-MiniLM-L6-v2, run once over the corpus. It is not part of the shipped model."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor

from genius.weight_arrays import unpack

LONGEST = 64  # tokens


def tokenise(folder: Path, texts: list[str]) -> tuple[Tensor, Tensor]:
    """The teacher's token ids of all texts one after another (int32), and how many each has."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "teacher-tokenizer.json"))
    tokenizer.enable_truncation(LONGEST)
    tokenizer.no_padding()
    parts, lengths = [], np.zeros(len(texts), np.int32)
    for start in range(0, len(texts), 50_000):
        rows = [e.ids for e in tokenizer.encode_batch(texts[start : start + 50_000])]
        lengths[start : start + len(rows)] = [len(r) for r in rows]
        parts.append(np.fromiter((i for r in rows for i in r), np.int32))
    return torch.from_numpy(np.concatenate(parts)), torch.from_numpy(lengths)


@torch.no_grad()
def teach(folder: Path, flat: Tensor, lengths: Tensor, device: torch.device, tokens: int = 65_536) -> Tensor:
    """(n, 384) unit vectors of tokenised texts, half precision on a GPU. `tokens`: of one pass, padding included."""
    from transformers import BertConfig, BertModel

    config = BertConfig(**json.loads((folder / "teacher-config.json").read_text()))
    model = BertModel(config, add_pooling_layer=False)
    missing, unexpected = model.load_state_dict(unpack(load_file(folder / "teacher.safetensors")), strict=False)
    assert not [m for m in missing if "position_ids" not in m] and not unexpected, (missing, unexpected)
    half = device.type == "cuda"
    model = model.to(device, torch.bfloat16 if half else torch.float32).eval()
    order = lengths.argsort()  # texts of one length together: little padding
    counts = lengths[order].tolist()
    flat, lengths, order = flat.to(device), lengths.long().to(device), order.to(device)
    starts = lengths.cumsum(0) - lengths
    out = torch.empty(len(lengths), config.hidden_size, dtype=torch.float16 if half else torch.float32, device=device)
    at = 0
    while at < len(order):
        size = max(1, tokens // counts[min(len(order) - 1, at + tokens // counts[at] - 1)])
        rows = order[at : at + size]
        longest = counts[min(len(order), at + size) - 1]
        place = torch.arange(longest, device=device)[None]
        mask = place < lengths[rows][:, None]
        ids = torch.where(mask, flat[(starts[rows][:, None] + place).clamp(max=len(flat) - 1)].long(), 0)
        states = model(input_ids=ids, attention_mask=mask.long()).last_hidden_state.float()
        weight = mask[..., None].float()
        out[rows] = F.normalize((states * weight).sum(1) / weight.sum(1), dim=1).to(out.dtype)
        at += size
    return out
