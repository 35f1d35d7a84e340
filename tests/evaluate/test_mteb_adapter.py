"""The MTEB adapter and the index back-end: the protocols on plain rows and vectors, and tiny tasks through MTEB itself where it
is installed."""

from __future__ import annotations

import re
import zlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from shapes_encoder import ShapesEncoder

from genius.data.synthetic import COLOURS, SHAPES, SIZES, Thing
from genius.errors import GeniusError
from genius.evaluate.mteb import GeniusSearch, IndexBackend
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


# -- the index as a back-end ---------------------------------------------------------------------------------------


class WordsEncoder:
    """An MTEB encoder without weights: the sum of a random vector per word, not of length 1."""

    def __init__(self, similarity: str = "cosine") -> None:
        self.mteb_model_meta = SimpleNamespace(similarity_fn_name=similarity)

    def vectors(self, texts: list[str]) -> np.ndarray:
        return np.stack([sum(map(self._word, re.findall(r"\w+", text))) for text in texts]).astype(np.float32)

    @staticmethod
    def _word(word: str) -> np.ndarray:
        return np.random.default_rng(zlib.crc32(word.encode())).normal(size=48)

    def encode(self, inputs: Any, **_: Any) -> np.ndarray:
        return self.vectors([text for batch in inputs for text in batch["text"]])

    def similarity(self, a: Any, b: Any) -> torch.Tensor:
        return torch.nn.functional.normalize(torch.as_tensor(a)) @ torch.nn.functional.normalize(torch.as_tensor(b)).T

    def similarity_pairwise(self, a: Any, b: Any) -> torch.Tensor:
        return torch.nn.functional.cosine_similarity(torch.as_tensor(a), torch.as_tensor(b))


TEXTS = [thing.text for thing in THINGS]
ASKED = [f"{text.split()[1]} {number}" for number, text in enumerate(TEXTS)]


def exhaustive(queries: np.ndarray, documents: np.ndarray) -> np.ndarray:
    return np.asarray(WordsEncoder().similarity(queries, documents))


def test_the_back_end_ranks_as_exhaustive_search() -> None:
    encoder = WordsEncoder()
    documents = encoder.vectors(TEXTS)
    queries = encoder.vectors(ASKED)
    backend = IndexBackend(encoder)
    names = [f"d{row}" for row in range(len(TEXTS))]
    backend.add_documents(documents[:10], names[:10])
    backend.add_documents(torch.from_numpy(documents[10:]), names[10:])
    truth = exhaustive(queries, documents)
    scores, positions = backend.search(queries, top_k=7)
    assert np.allclose(scores, -np.sort(-truth, axis=1)[:, :7], atol=2e-3)
    assert np.allclose(np.take_along_axis(truth, np.array(positions), axis=1), scores, atol=2e-3)
    # re-ranking: positions are those of the query's own list, as MTEB's wrapper reads them
    lists = {"q0": ["d5", "d2", "d11"], "q1": [], "q2": ["d2"]}
    scores, positions = backend.search(queries[:3], 2, None, lists, {0: "q0", 1: "q1", 2: "q2"})
    best = sorted(range(3), key=lambda place: -truth[0, int(lists["q0"][place][1:])])[:2]
    assert positions == [best, [], [0]]
    backend.clear()
    with pytest.raises(GeniusError, match="add documents before"):
        backend.search(queries, 3)
    backend.add_documents(documents[:4], names[:4])
    assert [len(row) for row in backend.search(queries[:2], 100)[1]] == [4, 4]


def test_the_back_end_keeps_the_index_of_a_folder(tmp_path: Path) -> None:
    backend = IndexBackend(folder=tmp_path / "corpus.genius")
    backend.add_documents(np.eye(3), ["a", "b", "c"])
    backend.clear()
    from genius.index import Index

    assert len(Index.open(tmp_path / "corpus.genius")) == 3


def test_the_back_end_refuses_in_one_line() -> None:
    with pytest.raises(GeniusError, match="compared by MaxSim"):
        IndexBackend(WordsEncoder("MaxSim"))
    with pytest.raises(GeniusError, match="not of length 1"):
        IndexBackend(WordsEncoder("dot")).add_documents(np.eye(3) * 2, ["a", "b", "c"])
    backend = IndexBackend(WordsEncoder("dot"))
    backend.add_documents(np.eye(3), ["a", "b", "c"])
    with pytest.raises(GeniusError, match="twice"):
        backend.add_documents(np.eye(3), ["x", "b", "y"])
    with pytest.raises(GeniusError, match="NaN"):
        backend.add_documents(np.full((1, 3), np.nan), ["n"])
    with pytest.raises(GeniusError, match="4 wide"):
        backend.search(np.ones((1, 4)), 1)
    with pytest.raises(GeniusError, match="no document 'z'"):
        backend.search(np.ones((1, 3)), 1, None, {"q": ["z"]}, {0: "q"})
    with pytest.raises(GeniusError, match="2 ids for 1"):
        backend.add_documents(np.ones((1, 3)), ["e", "f"])


@pytest.mark.parametrize("kind", ["retrieval", "reranking"])
def test_any_encoder_of_mteb_over_an_index(kind: str) -> None:
    mteb = pytest.importorskip("mteb", reason="mteb is not installed (extra 'mteb')")
    from datasets import Dataset
    from mteb.abstasks.retrieval import AbsTaskRetrieval
    from mteb.abstasks.retrieval_dataset_loaders import RetrievalSplitData
    from mteb.abstasks.task_metadata import TaskMetadata
    from mteb.models import ModelMeta
    from mteb.models.models_protocols import EncoderProtocol
    from mteb.models.search_wrappers import SearchEncoderWrapper

    class Words(AbsTaskRetrieval):  # type: ignore[misc]
        metadata = TaskMetadata(
            name="GeniusWords", type="Retrieval", category="t2t", modalities=["text"], main_score="ndcg_at_10",
            description="parts of short texts", reference=None, dataset={"path": "none", "revision": "1"}, eval_splits=["test"],
            eval_langs=["eng-Latn"], date=None, domains=None, task_subtypes=None, license=None, annotations_creators=None,
            dialect=None, sample_creation=None, bibtex_citation=None,
        )  # fmt: skip

        def load_data(self, *_: Any, **__: Any) -> None:
            ranked = {f"q{i}": [f"d{(i + step) % len(TEXTS)}" for step in range(-2, 4)] for i in range(len(TEXTS))}
            data = RetrievalSplitData(
                queries=Dataset.from_list([{"id": f"q{i}", "text": text} for i, text in enumerate(ASKED)]),
                corpus=Dataset.from_list([{"id": f"d{i}", "text": text, "title": ""} for i, text in enumerate(TEXTS)]),
                relevant_docs={f"q{i}": {f"d{i}": 1} for i in range(len(TEXTS))},
                top_ranked=ranked if kind == "reranking" else None,
            )
            self.dataset = {"default": {"test": data}}
            self.data_loaded = True

    encoder = WordsEncoder()
    encoder.mteb_model_meta = ModelMeta.create_empty({"name": "genius/words", "revision": "1", "similarity_fn_name": "cosine"})
    assert isinstance(encoder, EncoderProtocol)

    def score(search: Any) -> dict[str, Any]:
        found = mteb.evaluate(search, Words(), cache=None, show_progress_bar=False).task_results[0].scores["test"][0]
        return {name: value for name, value in found.items() if name.startswith(("ndcg", "recall", "mrr_at"))}

    own = score(SearchEncoderWrapper(encoder))
    assert 0.2 < own["ndcg_at_10"] < 1.0
    assert score(SearchEncoderWrapper(encoder, index_backend=IndexBackend(encoder))) == pytest.approx(own, abs=1e-9)
