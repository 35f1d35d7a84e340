"""What a stage leaves for the next one, and the finished model: features through heads, z and codes, the model folder.

Knows the stages' modules; nothing of steps or losses.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from genius.data.features import FeatureSet
from genius.encoders.base import Encoder
from genius.encoders.towers import HEADS, Heads, write_heads
from genius.features import Features
from genius.model.bias_choice import JudgedQueries, choose
from genius.model.config import GeniusConfig
from genius.model.genius import Genius
from genius.model.query_bank import QueryBank
from genius.train.config import TrainConfig
from genius.train.generator import Frozen, GeneratorStage, ValidationSet, query_offsets
from genius.train.holdout import Split
from genius.train.losses import send
from genius.train.pairs import EmbeddedRows
from genius.train.quantizer import QuantizerStage
from genius.train.sources import join_heads

BANK_SIZE = 24_000  # queries that are stored with a model, at most: 6 MB at width 256
PER_DIRECTION = 4000  # of each direction, at most; chosen on held-out queries (`lab/results/bank_size.json`)


def through_heads(heads: Heads, data: FeatureSet) -> FeatureSet:
    """The same set with the heads' vectors in place of the towers'."""
    return dataclasses.replace(data, queries=heads.apply_chunked(data.queries), pool=heads.apply_chunked(data.pool))


def freeze(second: QuantizerStage, parts: Split, config: TrainConfig) -> tuple[Frozen, ValidationSet | None]:
    """z and codes that stage 3 reads. Codes are computed in passes; z once, or row by row where it is large."""
    width = config.model.width
    pool = EmbeddedRows(second.pool, second.embed, width)
    modality = second.pool.modality
    frozen = Frozen(pool, modality, second.codes(second.pool))
    send([frozen.codes])  # one ID per item, whichever process trains on it
    if config.generator.inputs != "items":
        frozen.queries = EmbeddedRows(second.queries, second.embed, width)
    if parts.offsets is not None:
        queries = second.embed(parts.offsets.queries)
        pairs = parts.offsets.pairs.to(queries.device)
        tasks = parts.offsets.tasks.to(queries.device)
        frozen.offsets = query_offsets(queries, tasks, pairs, pool, modality, config.seed)
    if parts.validation is None:
        return frozen, None
    candidates = second.embed(parts.validation.pool)
    codes = second.quantizer.encode(candidates, parts.validation.pool.modality.to(candidates.device))
    return frozen, ValidationSet(parts.validation, second.embed(parts.validation.queries), candidates, codes)


def assemble(config: TrainConfig, second: QuantizerStage, third: GeneratorStage) -> Genius:
    """One model of what stages 2 and 3 trained."""
    body = GeniusConfig(
        fusion=second.fusion.config,
        quantizer=second.quantizer.config,
        generator=third.generator.config,
        rerank_embedding=config.model.constants.rerank_embedding,
        search=config.search,
    )
    model = Genius(body).to(second.fusion.mix_output.weight.device)
    model.fusion.load_state_dict(second.fusion.state_dict())
    model.quantizer.load_state_dict(second.quantizer.state_dict())
    model.generator.load_state_dict(third.generator.state_dict())
    return model


def sampled_query_bank(second: QuantizerStage, parts: Split, seed: int) -> QueryBank:
    """A sample of queries that is stored with the model (`Genius.queries`); its item bias is chosen on held-out queries.

    Validation queries judge the whole bank; the other held-out queries, which are in it, judge the training queries of it.
    """
    queries, target, held_out = training_queries(parts, seed)
    bank = QueryBank.of(second.embed(queries), queries.modality, target, size=len(queries), seed=seed)
    data = parts.validation
    if data is None:
        return bank
    further = []
    if parts.offsets is not None:
        further.append((bank.subset(~held_out.numpy()), _judged(second, parts.offsets, data.pool_ids)))
    ids = {parts.train.pool_ids[row] for row in parts.train.pairs[:, 1].tolist()}
    shown = np.array([name in ids for name in data.pool_ids], bool)
    items = second.embed(data.pool)
    codes = second.quantizer.encode(items, data.pool.modality.to(items.device))
    return choose(
        bank,
        _judged(second, data, data.pool_ids),
        items.cpu(),
        data.pool.modality,
        further=further,
        shown=shown,
        reconstructed=F.normalize(second.quantizer.decode(codes), dim=1).cpu(),
    )


def _judged(second: QuantizerStage, data: FeatureSet, pool_ids: Sequence[str]) -> JudgedQueries:
    """Queries of a set, whose positives are rows of `pool_ids`: of a large pool only a part is validated on."""
    z = second.embed(data.queries).cpu().numpy()
    place = {name: row for row, name in enumerate(pool_ids)}
    rows = [place.get(name) for name in data.pool_ids]
    positives = [[row for row in (rows[item] for item in own) if row is not None] for own in data.positives()]
    return JudgedQueries(z, data.queries.modality.numpy(), _targets(data).numpy(), positives)


def training_queries(parts: Split, seed: int) -> tuple[Features, Tensor, Tensor]:
    """At most `PER_DIRECTION` queries of each direction and `BANK_SIZE` in all.

    Held-out queries come first: they stand where new queries will stand, while training queries were pulled towards
    their positives.

    Returns:
        The queries, their target modalities (n,), and which of them are held out (n,).
    """
    sets = [parts.train]
    if parts.offsets is not None:
        sets.insert(0, parts.offsets)
    targets = [_targets(part) for part in sets]
    directions = [3 * part.queries.modality + target for part, target in zip(sets, targets, strict=True)]
    values = torch.cat(directions).unique().tolist()
    # direction -> queries that are still wanted
    missing = dict.fromkeys(values, min(PER_DIRECTION, BANK_SIZE // len(values)))
    random = torch.Generator().manual_seed(seed)
    queries = []
    chosen_targets = []
    held_out = []
    for part, target, direction in zip(sets, targets, directions, strict=True):
        order = torch.randperm(len(part.queries), generator=random)
        rows = torch.cat([order[direction[order] == value][: missing[value]] for value in values])
        for value in values:
            missing[value] -= int((direction[rows] == value).sum())
        queries.append(part.queries[rows])
        chosen_targets.append(target[rows])
        held_out.append(torch.full((len(rows),), part is parts.offsets))
    return Features.cat(queries), torch.cat(chosen_targets), torch.cat(held_out)


def _targets(data: FeatureSet) -> Tensor:
    """(Q,) modality of each query's positives."""
    target = torch.zeros(len(data.queries), dtype=torch.long)
    target[data.pairs[:, 0]] = data.pool.modality[data.pairs[:, 1]]
    return target


def save_model(output: Path, model: Genius, heads: Heads | None, encoder: Encoder | None) -> None:
    """Write the model folder. Heads join their towers when the encoder has them; else they lie in a file of their own."""
    if heads is not None:
        write_heads(heads, output / HEADS)
        if encoder is not None:
            join_heads(encoder, heads)
    if encoder is not None:
        model._take(encoder)
    model.save_pretrained(output)
