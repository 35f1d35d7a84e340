"""Stage 1: contrastive training (Eq. 2 and 3) of heads on frozen towers, or of whole towers.

Heads read the towers' vectors as a `FeatureSet`, extracted once. Whole towers read images and texts, opened batch by
batch: any encoder of `genius.encoders` that is a torch module. Knows nothing of codes.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from genius.data.collection import Collection
from genius.data.features import FeatureSet
from genius.encoders.base import Encoder
from genius.encoders.towers import Heads
from genius.errors import GeniusError
from genius.features import Features
from genius.model.quantizer import score_fusion
from genius.train.config import EncoderStageConfig
from genius.train.loop import Stage, step_seed
from genius.train.losses import contrastive, gather_rows
from genius.train.metrics import dense_hits
from genius.train.pairs import Draws, Order, PairBatch, PairStage, Positives, share
from genius.types import format_text, load_image, query_text

Content = tuple[Any, str]  # an image (or None) and a formatted text (or "")


class HeadsStage(PairStage):
    """Heads on frozen towers; an example is a query with one of its positives, drawn at every visit."""

    name = "encoder"

    def __init__(
        self,
        data: FeatureSet,
        validation: FeatureSet | None,
        width: int,
        config: EncoderStageConfig,
        seed: int,
        device: torch.device,
    ) -> None:
        super().__init__(data, validation, config, width, seed, device)
        self.config = config
        torch.manual_seed(seed)
        self.heads = Heads(data.queries.image.shape[1], data.queries.text.shape[1], width, config.hidden, config.dropout)

    def forward(self, batch: PairBatch) -> tuple[Tensor, dict[str, Tensor]]:
        query = self._embed(self.queries[batch.rows])
        target = self._embed(self.pool[batch.targets])
        negatives = None if batch.negatives is None else self._embed(self.pool[batch.negatives])
        with torch.autocast(query.device.type, enabled=False):  # similarities over a temperature need float32
            return self.contrast(batch, query, target, negatives, temperature=self.config.temperature)

    @torch.no_grad()
    def embed(self, features: Features) -> Tensor:
        was_training = self.heads.training
        self.heads.eval()  # without dropout
        vectors = score_fusion(self.heads.apply_chunked(features))
        self.heads.train(was_training)
        return vectors.to(self.pool.device)

    def _embed(self, towers: Features) -> Tensor:
        features = self.heads(towers)
        image = features.image.float()
        text = features.text.float()
        return F.normalize(score_fusion(Features(image, text, features.image_mask, features.text_mask)), dim=1)

    def validate(self) -> dict[str, float]:
        if self.held_out is None:
            return {}
        return dense_hits(self.embed(self.held_out.queries), self.embed(self.held_out.pool), self.held_out)


class TowersStage(Stage):
    """The encoder as a submodule; an example is a query with one of its positives, drawn at every visit."""

    name = "encoder"

    def __init__(
        self, collection: Collection, encoder: Encoder, config: EncoderStageConfig, seed: int, device: torch.device
    ) -> None:
        super().__init__()
        if not isinstance(encoder, nn.Module) or not any(True for _ in encoder.parameters()):
            raise GeniusError("this encoder cannot be trained: it is no torch module (train = 'heads' trains maps on top)")
        encoder.requires_grad_(True)
        self.encoder: Any = encoder
        self.config = config
        self.device = device
        self.width = encoder.width
        self.seed = seed
        # the protocol's own methods without their no_grad: one definition of what an encoder computes
        self._images = inspect.unwrap(type(encoder).encode_images)
        self._texts = inspect.unwrap(type(encoder).encode_texts)
        items = list(collection.pool())
        row = {item.id: i for i, item in enumerate(items)}
        queries = list(collection.queries())
        self.items: list[Content] = [(item.image, format_text(item.text or "")) for item in items]
        self.queries: list[Content] = [(judged.query.image, query_text(judged.query)) for judged in queries]
        pairs = torch.tensor(
            [(i, row[p]) for i, judged in enumerate(queries) for p in judged.positives if p in row], dtype=torch.long
        )
        if pairs.numel() == 0:
            raise GeniusError("there are no (query, positive) pairs to train on")
        self.positives = Positives(pairs.reshape(-1, 2), len(queries))
        times = torch.tensor([judged.times for judged in queries], dtype=torch.long)
        self.order = Order(torch.repeat_interleave(torch.arange(len(queries)), times), config.batch, seed)
        self.draws = Draws(self.order, self.positives, fixed=False, seed=seed)

    def batch(self, step: int, micro: int, rank: int, world: int) -> tuple[Tensor, Tensor]:
        rows, targets = self.draws(step, micro, self.accumulate, step_seed(self.seed, self.name, step, micro))
        return share(rows, rank, world), share(targets, rank, world)

    def forward(self, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        rows, targets = batch
        contents = [self.queries[i] for i in rows.tolist()] + [self.items[i] for i in targets.tolist()]
        query, target = score_fusion(self._features(contents)).chunk(2)
        everyone = gather_rows(targets.to(self.device))
        positive = self.positives.to(self.device).matches(rows.to(self.device), everyone, len(self.items))
        self.positives.to(torch.device("cpu"))
        with torch.autocast(query.device.type, enabled=False):
            loss, accuracy = contrastive(query, target, temperature=self.config.temperature, positive=positive)
        return loss, {"accuracy": accuracy}

    def _features(self, contents: Sequence[Content]) -> Features:
        """Both towers with gradients: (n, width) each, on the training device."""
        with_image = [i for i, (image, _) in enumerate(contents) if image is not None]
        with_text = [i for i, (_, text) in enumerate(contents) if text]
        with ThreadPoolExecutor(4) as pool:
            images = list(pool.map(lambda i: load_image(contents[i][0]), with_image))
        texts = [contents[i][1] for i in with_text]
        image, image_mask = self._tower(self._images, images, with_image, len(contents))
        text, text_mask = self._tower(self._texts, texts, with_text, len(contents))
        return Features(image, text, image_mask, text_mask)

    def _tower(self, encode: Any, values: Sequence[Any], places: list[int], count: int) -> tuple[Tensor, Tensor]:
        """Vectors (count, width) and mask (count,): those of `values` at `places`, zeros elsewhere."""
        rows = torch.zeros(count, self.width, device=self.device)
        mask = torch.zeros(count, dtype=torch.bool, device=self.device)
        if values:
            place = torch.tensor(places, device=self.device)
            rows = rows.index_copy(0, place, encode(self.encoder, values).float().to(self.device))
            mask[place] = True
        return rows, mask
