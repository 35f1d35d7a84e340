"""The MTEB adapter: the protocol on plain rows, and a tiny task through MTEB itself where it is installed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from shapes_encoder import ShapesEncoder

from genius.data.synthetic import COLOURS, SHAPES, SIZES, Thing
from genius.errors import GeniusError
from genius.evaluate.mteb import GeniusSearch
from genius.model.config import FusionConfig, GeneratorConfig, GeniusConfig, QuantizerConfig
from genius.model.genius import Genius
from genius.search import SearchParams

THINGS = [Thing(c, s, z, 4) for c in list(COLOURS)[:4] for s in SHAPES[:3] for z in SIZES]
CORPUS = [{"id": f"d{i}", "image": thing.draw()} for i, thing in enumerate(THINGS)]
QUERIES = [{"id": f"q{i}", "text": thing.text} for i, thing in enumerate(THINGS)]
WIDTH, LEVELS = 64, (3, 8, 8)


def model(encoder: bool = True) -> Genius:
    """Untrained, but re-ranking by the encoder's own embedding with a budget as large as the corpus finds everything."""
    torch.manual_seed(0)
    shape = GeneratorConfig(width=WIDTH, level_sizes=LEVELS, d_model=32, layers=1, heads=2, d_kv=16, d_ff=32, prefix_tokens=2)
    config = GeniusConfig(
        FusionConfig(WIDTH, 32, 32), QuantizerConfig(width=WIDTH, level_sizes=LEVELS), shape, rerank_embedding="score-fusion"
    )
    return Genius(config, ShapesEncoder(WIDTH) if encoder else None)


def adapter() -> GeniusSearch:
    found = GeniusSearch(model(), params=SearchParams(beams=50, rerank=100), chunk=5)
    found.index(CORPUS, encode_kwargs={"batch_size": 3}, task_metadata=None, hf_split="test", hf_subset="default", num_proc=None)
    return found


def test_finds_the_right_pictures() -> None:
    answers = adapter().search(QUERIES, task_metadata=SimpleNamespace(category="t2i"), top_k=3, encode_kwargs={}, num_proc=None)
    assert set(answers) == {q["id"] for q in QUERIES} and all(len(hits) == 3 for hits in answers.values())
    right = [max(hits, key=hits.__getitem__) == f"d{query[1:]}" for query, hits in answers.items()]
    assert sum(right) / len(right) > 0.9


def test_top_ranked_restricts_the_answers() -> None:
    ranked = {q["id"]: [f"d{i}", f"d{(i + 1) % len(THINGS)}"] for i, q in enumerate(QUERIES)}
    answers = adapter().search(QUERIES, top_k=10, top_ranked=ranked)
    assert all(set(hits) == set(ranked[query]) for query, hits in answers.items())


def test_errors_are_one_line() -> None:
    with pytest.raises(GeniusError, match="needs an encoder"):
        GeniusSearch(model(encoder=False))
    with pytest.raises(GeniusError, match="index a corpus first"):
        GeniusSearch(model()).search(QUERIES)
    with pytest.raises(GeniusError, match="corpus is empty"):
        GeniusSearch(model()).index([])


def test_a_tiny_task_through_mteb() -> None:
    mteb = pytest.importorskip("mteb", reason="mteb is not installed (extra 'mteb')")
    from datasets import Dataset
    from mteb.abstasks.retrieval import AbsTaskRetrieval
    from mteb.abstasks.retrieval_dataset_loaders import RetrievalSplitData
    from mteb.abstasks.task_metadata import TaskMetadata
    from mteb.models.models_protocols import SearchProtocol

    class Shapes(AbsTaskRetrieval):  # type: ignore[misc]
        metadata = TaskMetadata(
            name="GeniusShapes", type="Any2AnyRetrieval", category="t2i", modalities=["text", "image"], main_score="ndcg_at_10",
            description="coloured shapes", reference=None, dataset={"path": "none", "revision": "1"}, eval_splits=["test"],
            eval_langs=["eng-Latn"], date=None, domains=None, task_subtypes=None, license=None, annotations_creators=None,
            dialect=None, sample_creation=None, bibtex_citation=None,
        )  # fmt: skip

        def load_data(self, *_: Any, **__: Any) -> None:
            data = RetrievalSplitData(
                queries=Dataset.from_list(QUERIES),
                corpus=Dataset.from_dict({name: [row[name] for row in CORPUS] for name in ("id", "image")}),
                relevant_docs={q["id"]: {f"d{i}": 1} for i, q in enumerate(QUERIES)},
                top_ranked=None,
            )
            self.dataset = {"default": {"test": data}}
            self.data_loaded = True

    search = GeniusSearch(model(), params=SearchParams(beams=50, rerank=100), name="genius/shapes")
    assert isinstance(search, SearchProtocol)
    results = mteb.evaluate(search, Shapes(), cache=None, show_progress_bar=False)
    assert results.task_results[0].get_score() > 0.9
