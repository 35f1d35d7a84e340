"""The rivals of the front, each behind the same four calls: build, search, add, size. One thread each.

A rival is given vectors of the wanted kind alone (an index a kind, the way that hobbles nobody), float32 and of unit length, and
answers questions (Q, D) with rows (Q, k). `settings` are its dials at search time, from quick to thorough. Those that keep codes
only come twice: as they are, and with the best candidates compared again by vectors that lie on disk, as ours are.
Knows libraries; nothing of our own search.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]
TRAINED_ON = 100_000  # vectors that quantizers are trained on, at most


class Rival(Protocol):
    name: str
    settings: Sequence[Mapping[str, int]]

    def build(self, vectors: Floats) -> None: ...
    def search(self, queries: Floats, k: int, setting: Mapping[str, int]) -> Ints: ...
    def add(self, vectors: Floats) -> None: ...

    @property
    def nbytes(self) -> int:
        """In memory (LanceDB: on disk), without vectors that lie on disk only."""
        ...


class Faiss:
    """Any Faiss index by its factory string. `refine`: vectors on disk, for the second look."""

    def __init__(self, name: str, factory: str, settings: Sequence[Mapping[str, int]], **built: int) -> None:
        self.name, self.factory, self.settings, self.built = name, factory, settings, built

    def build(self, vectors: Floats) -> None:
        import faiss

        faiss.omp_set_num_threads(1)
        self.faiss, cells = faiss, max(16, int(4 * len(vectors) ** 0.5))
        self.vectors = vectors
        self.index = faiss.index_factory(vectors.shape[1], self.factory.format(cells=cells), faiss.METRIC_INNER_PRODUCT)
        inner: Any = faiss.downcast_index(self.index)
        if "ef_construction" in self.built:
            inner.hnsw.efConstruction = self.built["ef_construction"]
        random = np.random.default_rng(0)
        if not self.index.is_trained:
            some = random.choice(len(vectors), min(len(vectors), TRAINED_ON), replace=False)
            owners: list[Any] = [inner, getattr(inner, "pq", None)]
            for owner in owners:
                if hasattr(owner, "cp"):
                    owner.cp.niter, owner.cp.min_points_per_centroid = 10, 1
            self.index.train(vectors[some])
        self.index.add(vectors)

    def search(self, queries: Floats, k: int, setting: Mapping[str, int]) -> Ints:
        inner: Any = self.faiss.downcast_index(self.index)
        if "nprobe" in setting:
            self.faiss.extract_index_ivf(self.index).nprobe = setting["nprobe"]
        if "ef" in setting:
            inner.hnsw.efSearch = setting["ef"]
        again = setting.get("refine", 0)
        rows: Ints = self.index.search(queries, max(k, again))[1]
        return refined(self.vectors, queries, rows, k) if again else rows

    def add(self, vectors: Floats) -> None:
        self.index.add(vectors)

    @property
    def nbytes(self) -> int:
        return int(self.faiss.serialize_index(self.index).nbytes)


def refined(vectors: NDArray[Any], queries: Floats, rows: Ints, k: int) -> Ints:
    """The best k of each question's candidates by the vectors themselves."""
    out = np.full((len(queries), k), -1, np.int64)
    for q, own in enumerate(rows):
        own = own[own >= 0]
        best = np.argsort(-(np.asarray(vectors[own], np.float32) @ queries[q]))[:k]
        out[q, : len(best)] = own[best]
    return out


class Usearch:
    name = "usearch HNSW, fp16"
    settings: Sequence[Mapping[str, int]] = [{"ef": ef} for ef in (16, 32, 64, 128, 256)]

    def build(self, vectors: Floats) -> None:
        from usearch.index import Index

        self.index: Any = Index(ndim=vectors.shape[1], metric="ip", dtype="f16", connectivity=16, expansion_add=40)
        self.index.add(np.arange(len(vectors)), vectors, threads=1)

    def search(self, queries: Floats, k: int, setting: Mapping[str, int]) -> Ints:
        self.index.expansion_search = setting["ef"]
        found = self.index.search(queries, k, threads=1)
        return np.asarray(found.keys).astype(np.int64).reshape(len(queries), k)

    def add(self, vectors: Floats) -> None:
        self.index.add(np.arange(len(self.index), len(self.index) + len(vectors)), vectors, threads=1)

    @property
    def nbytes(self) -> int:
        return int(self.index.serialized_length)


class Scann:
    """Tree, anisotropic product codes (half a byte for two numbers), vectors for the second look."""

    name = "ScaNN"
    settings: Sequence[Mapping[str, int]] = [
        {"leaves": leaves, "reorder": reorder} for leaves, reorder in ((20, 50), (50, 100), (100, 200), (200, 400))
    ]

    def build(self, vectors: Floats) -> None:
        import scann

        self.size = vectors.nbytes + len(vectors) * vectors.shape[1] // 4
        leaves = max(16, int(2 * len(vectors) ** 0.5))
        builder = scann.scann_ops_pybind.builder(vectors, 10, "dot_product")
        builder = builder.tree(num_leaves=leaves, num_leaves_to_search=100, training_sample_size=min(len(vectors), TRAINED_ON))
        self.index = builder.score_ah(2, anisotropic_quantization_threshold=0.2).reorder(100).set_n_training_threads(1).build()

    def search(self, queries: Floats, k: int, setting: Mapping[str, int]) -> Ints:
        options = {"leaves_to_search": setting["leaves"], "pre_reorder_num_neighbors": setting["reorder"]}
        if len(queries) == 1:
            return np.asarray(self.index.search(queries[0], final_num_neighbors=k, **options)[0], np.int64)[None]
        return np.asarray(self.index.search_batched(queries, final_num_neighbors=k, **options)[0], np.int64)

    def add(self, vectors: Floats) -> None:
        raise NotImplementedError("not measured")

    @property
    def nbytes(self) -> int:
        return int(self.size)


class Lance:
    """LanceDB's own index, on disk; processor time counts all of its threads."""

    def __init__(self, kind: str) -> None:
        self.name, self.kind = f"LanceDB {kind}", kind
        self.settings = [{"nprobe": nprobe, "refine": refine} for nprobe, refine in ((20, 0), (20, 10), (40, 20), (80, 40))]

    def build(self, vectors: Floats) -> None:
        import lancedb
        import pyarrow as pa

        self.folder = Path(tempfile.mkdtemp())
        self.pa, self.width = pa, vectors.shape[1]
        database = lancedb.connect(self.folder)
        self.table = database.create_table("front", self._arrow(vectors, 0))
        cells = max(8, int(len(vectors) ** 0.5))
        options: dict[str, Any] = {"num_sub_vectors": 16} if self.kind == "IVF_PQ" else {}
        self.table.create_index(metric="dot", vector_column_name="vector", index_type=self.kind, num_partitions=cells, **options)

    def _arrow(self, vectors: Floats, first: int) -> Any:
        flat = self.pa.array(np.ascontiguousarray(vectors).reshape(-1))
        column = self.pa.FixedSizeListArray.from_arrays(flat, self.width)
        return self.pa.table({"row": np.arange(first, first + len(vectors)), "vector": column})

    def search(self, queries: Floats, k: int, setting: Mapping[str, int]) -> Ints:
        out = np.full((len(queries), k), -1, np.int64)
        for q, query in enumerate(queries):
            search = self.table.search(query).distance_type("dot").select(["row"]).limit(k).nprobes(setting["nprobe"])
            found = (search.refine_factor(setting["refine"]) if setting["refine"] else search).to_arrow()["row"].to_numpy()
            out[q, : len(found)] = found
        return out

    def add(self, vectors: Floats) -> None:
        self.table.add(self._arrow(vectors, self.table.count_rows()))
        self.table.optimize()

    @property
    def nbytes(self) -> int:
        return sum(path.stat().st_size for path in (self.folder / "front.lance" / "_indices").rglob("*") if path.is_file())

    def close(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


PROBES = (1, 2, 4, 8, 16, 32, 64)


def _probes(*refine: int) -> list[dict[str, int]]:
    alone = [{"nprobe": nprobe} for nprobe in (4, 16, 64)]
    return alone + [{"nprobe": nprobe, "refine": again} for again in refine for nprobe in PROBES[1:]]


RIVALS: dict[str, Callable[[], Any]] = {
    "flat": lambda: Faiss("Faiss flat", "Flat", [{}]),
    "hnsw": lambda: Faiss(
        "Faiss HNSW16", "HNSW16", [{"ef": ef} for ef in (16, 32, 64, 128, 256, 512, 640, 768)], ef_construction=40
    ),
    "ivfpq": lambda: Faiss("Faiss IVF, PQ 16 B fast-scan", "IVF{cells},PQ32x4fs", _probes(100, 400, 1600)),
    # half the codes, so that with lists of numbers and centroids a million items take less than 24 bytes each
    "ivfpq-small": lambda: Faiss("Faiss IVF, PQ 8 B fast-scan", "IVF{cells},PQ16x4fs", _probes(100, 400, 1600, 6400)),
    "opq-small": lambda: Faiss("Faiss IVF, OPQ 8 B", "OPQ8,IVF{cells},PQ8", _probes(100, 400, 1600, 6400)),
    "ivfpq8": lambda: Faiss("Faiss IVF, PQ 16 B of 8 bits", "IVF{cells},PQ16", _probes(100, 400, 1600)),
    "opq": lambda: Faiss("Faiss IVF, OPQ 16 B", "OPQ16,IVF{cells},PQ16", _probes(100, 400, 1600)),
    "ivfrq": lambda: Faiss("Faiss IVF, residual quantizer 16 B", "IVF{cells},RQ16x8", _probes(100, 400, 1600)),
    "rabitq": lambda: Faiss("Faiss IVF, RaBitQ 1 bit", "IVF{cells},RaBitQ", _probes(100, 400, 1600)),
    "usearch": Usearch,
    "scann": Scann,
    "lance-pq": lambda: Lance("IVF_PQ"),
    "lance-rq": lambda: Lance("IVF_RQ"),
}
