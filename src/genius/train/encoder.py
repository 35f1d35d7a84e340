"""Stage 1: contrastive training (Eq. 2 and 3) of heads on frozen towers, or of whole towers.

Heads read the towers' vectors as a `FeatureSet`, extracted once. Whole towers read images and texts, opened batch by
batch: any encoder of `genius.encoders` that is a torch module. Knows nothing of codes.
"""

from __future__ import annotations

import inspect
import multiprocessing
from collections.abc import Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from genius.data.collection import Collection
from genius.data.features import FeatureSet
from genius.encoders.base import Encoder, sent_to_workers
from genius.encoders.towers import Heads
from genius.errors import GeniusError
from genius.features import Features
from genius.model.quantizer import score_fusion
from genius.pictures import open_all
from genius.train.config import EncoderStageConfig, Schedule
from genius.train.loop import Stage, step_seed
from genius.train.losses import contrastive, gather_rows
from genius.train.metrics import dense_hits, mean_hits
from genius.train.pairs import Draws, Order, PairBatch, PairStage, Positives, share
from genius.types import format_text, query_text

AHEAD = 2  # steps whose images are decoded before they are needed
DECODED = 32  # images that a process decodes at a time
EMBEDDED = 1024  # contents that whole towers embed at once
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


class TowersBatch(NamedTuple):
    rows: Tensor  # (B,) query numbers
    targets: Tensor  # (B,) pool rows, one positive of each
    pictures: list[Future[list[Image.Image]]]  # images of these queries, then of these items, in parts


class TowersStage(Stage):
    """The encoder as a submodule; an example is a query with one of its positives, drawn at every visit.

    Images are decoded ahead of the steps. With `config.chunk` the activations of a part of the batch are in memory at a time
    (gradient checkpointing), so that the batch, in which each example has all others as negatives, may be large.
    """

    name = "encoder"
    schedule = Schedule(warm_up=0.1)

    def __init__(
        self,
        collection: Collection,
        encoder: Encoder,
        config: EncoderStageConfig,
        seed: int,
        device: torch.device,
        validation: Collection | None = None,
    ) -> None:
        """Args:
        collection: What is trained on.
        encoder: A torch module with the encoder protocol.
        config: Of the stage.
        seed: Of the order and of the positives that are drawn.
        device: Of the encoder.
        validation: Held-out queries and the candidates they are ranked among; None: nothing is held out.
        """
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
        self.items, self.queries, pairs, times, _ = contents_of(collection)
        if pairs.numel() == 0:
            raise GeniusError("there are no (query, positive) pairs to train on")
        self.positives = Positives(pairs, len(self.queries))
        self.order = Order(torch.repeat_interleave(torch.arange(len(self.queries)), times), config.batch, seed)
        self.draws = Draws(self.order, self.positives, fixed=False, seed=seed)
        self.held_out: HeldOut | None = None
        if validation is not None:
            items, queries, pairs, _, tasks = contents_of(validation)
            self.held_out = HeldOut(items, queries, judged_rows(pairs, tasks, len(items)))
        self._shrink = sent_to_workers(encoder)
        self._pool: Executor | None = None
        self._ahead: dict[tuple[int, int], TowersBatch] = {}

    # -- batches -------------------------------------------------------------------------------------------------

    def batch(self, step: int, micro: int, rank: int, world: int) -> TowersBatch:
        first = step * self.accumulate + micro
        places = [divmod(first + i, self.accumulate) for i in range(AHEAD * self.accumulate + 1)]
        self._ahead = {place: batch for place, batch in self._ahead.items() if place in places}
        for place in places:
            if place not in self._ahead and place[0] < max(self.config.steps, step + 1):
                self._ahead[place] = self._begin(*place, rank, world)
        return self._ahead.pop((step, micro))

    def _begin(self, step: int, micro: int, rank: int, world: int) -> TowersBatch:
        """Draw a batch and have its images decoded."""
        rows, targets = self.draws(step, micro, self.accumulate, step_seed(self.seed, self.name, step, micro))
        rows = share(rows, rank, world)
        targets = share(targets, rank, world)
        return TowersBatch(rows, targets, self._decoded(self._contents(rows, targets)))

    def _contents(self, rows: Tensor, targets: Tensor) -> list[Content]:
        return [self.queries[i] for i in rows.tolist()] + [self.items[i] for i in targets.tolist()]

    def _decoded(self, contents: Sequence[Content]) -> list[Future[list[Image.Image]]]:
        sources = [image for image, _ in contents if image is not None]
        if self._pool is None:
            self._pool = self._workers()
        parts = [sources[i : i + DECODED] for i in range(0, len(sources), DECODED)]
        return [self._pool.submit(open_all, part, self._shrink) for part in parts]

    def _workers(self) -> Executor:
        if self.config.workers:  # spawned, not forked: a fork of a process with threads or a GPU may hang
            return ProcessPoolExecutor(self.config.workers, mp_context=multiprocessing.get_context("spawn"))
        return ThreadPoolExecutor(4, thread_name_prefix="genius-images")

    def finish(self) -> None:
        self._ahead.clear()
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None

    # -- a step --------------------------------------------------------------------------------------------------

    def forward(self, batch: TowersBatch) -> tuple[Tensor, dict[str, Tensor]]:
        rows, targets, pictures = batch
        query, target = score_fusion(self._features(self._contents(rows, targets), pictures)).chunk(2)
        everyone = gather_rows(targets.to(self.device))
        positive = self.positives.to(self.device).matches(rows.to(self.device), everyone, len(self.items))
        self.positives.to(torch.device("cpu"))
        with torch.autocast(query.device.type, enabled=False):
            loss, accuracy = contrastive(query, target, temperature=self.config.temperature, positive=positive)
        return loss, {"accuracy": accuracy}

    def _features(self, contents: Sequence[Content], pictures: Sequence[Future[list[Image.Image]]]) -> Features:
        """Both towers with gradients: (n, width) each, on the training device."""
        with_image = [i for i, (image, _) in enumerate(contents) if image is not None]
        with_text = [i for i, (_, text) in enumerate(contents) if text]
        images = [image for part in pictures for image in part.result()]
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
            rows = rows.index_copy(0, place, self._encoded(encode, values).float().to(self.device))
            mask[place] = True
        return rows, mask

    def _encoded(self, encode: Any, values: Sequence[Any]) -> Tensor:
        """One tower's vectors of all values. In chunks, only the vectors are kept for the way back."""
        chunk = self.config.chunk
        if not chunk or not torch.is_grad_enabled():
            vectors: Tensor = encode(self.encoder, values)
            return vectors
        parts = [values[i : i + chunk] for i in range(0, len(values), chunk)]
        return torch.cat([checkpoint(encode, self.encoder, part, use_reentrant=False) for part in parts])

    # -- validation ----------------------------------------------------------------------------------------------

    @torch.no_grad()
    def embed(self, contents: Sequence[Content]) -> Tensor:
        """Unit vectors (n, width) on the training device, `EMBEDDED` at a time."""
        parts = [contents[i : i + EMBEDDED] for i in range(0, len(contents), EMBEDDED)]
        half = self.device.type == "cuda"
        vectors = []
        following = self._decoded(parts[0])
        for number, part in enumerate(parts):
            pictures = following
            if number + 1 < len(parts):
                following = self._decoded(parts[number + 1])
            with torch.autocast(self.device.type, torch.bfloat16, enabled=half):
                vectors.append(score_fusion(self._features(part, pictures)).float())
        return torch.cat(vectors)

    def quick(self) -> float | None:
        if self.held_out is None:
            return None
        return mean_hits(self.embed(self.held_out.queries), self.embed(self.held_out.items), self.held_out.data)

    def validate(self) -> dict[str, float]:
        if self.held_out is None:
            return {}
        return dense_hits(self.embed(self.held_out.queries), self.embed(self.held_out.items), self.held_out.data)


class HeldOut(NamedTuple):
    """Held-out queries of whole towers."""

    items: list[Content]
    queries: list[Content]
    data: FeatureSet  # which items answer which query; it has no features


def contents_of(collection: Collection) -> tuple[list[Content], list[Content], Tensor, Tensor, Tensor]:
    """Items, queries, pairs (P, 2), visits (Q,) and tasks (Q,) of a collection."""
    items = list(collection.pool())
    row = {item.id: i for i, item in enumerate(items)}
    queries = list(collection.queries())
    pairs = [(i, row[p]) for i, judged in enumerate(queries) for p in judged.positives if p in row]
    return (
        [(item.image, format_text(item.text or "")) for item in items],
        [(judged.query.image, query_text(judged.query)) for judged in queries],
        torch.tensor(pairs, dtype=torch.long).reshape(-1, 2),
        torch.tensor([judged.times for judged in queries], dtype=torch.long),
        torch.tensor([judged.task for judged in queries], dtype=torch.long),
    )


def judged_rows(pairs: Tensor, tasks: Tensor, items: int) -> FeatureSet:
    """Pairs and tasks alone, for the metrics."""
    queries = torch.zeros(len(tasks), 1)
    pool = torch.zeros(items, 1)
    there = torch.ones(len(tasks), dtype=torch.bool)
    in_pool = torch.ones(items, dtype=torch.bool)
    ids = [str(i) for i in range(len(tasks))], [str(i) for i in range(items)]
    return FeatureSet(Features(queries, queries, there, there), Features(pool, pool, in_pool, in_pool), pairs, *ids, tasks=tasks)
