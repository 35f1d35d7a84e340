"""The algorithms of the benchmark, each behind VIBE's two calls: `fit_ood(train, learn, learn_neighbors)` and `query`. One
thread each.

An algorithm gets unit vectors of the target modality alone and answers queries (Q, D) with rows (Q, k). `settings` are its
parameters at query time, a grid; constants of the build are the library's recommendation, written in the line of
`ALGORITHMS`. Whoever keeps codes only ranks candidates again by the same fp16 vectors, in Faiss (`IndexRefine`), and these
may lie on disk: they count as bytes on disk, not in memory. Knows libraries; nothing of timing or of data.
"""

from __future__ import annotations

import re
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lab.front.metric import IP, POINTS, TRAINED_ON, Cells, MetricIVF, faiss, fp16_store

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]
Setting = Mapping[str, float]
KEPT: Path | None = None  # folder of indexes that were built before: Faiss writes there, and reads what is there
EF = (10, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)


def grid(**axes: Sequence[float]) -> list[Setting]:
    return [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]


NPROBE = (4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 384)
COMPARED = (50, 100, 150, 200, 300, 400, 600, 1000, 2000, 4000)  # vectors compared per query
REFINED = grid(nprobe=NPROBE, compared=COMPARED)


class Shared:
    """What several indexes of one data set share: cells and fp16 vectors. Each index is charged for the cells."""

    def __init__(self) -> None:
        self.of: Any = None
        self.cells: dict[int, Cells] = {}
        self.store: Any = None

    def stored(self, items: Floats) -> Any:
        """The fp16 vectors of the items."""
        if self.of is not items:
            self.of = items
            self.cells = {}
            self.store = fp16_store(items)
        return self.store

    def prepare(self, items: Floats, count: int) -> Cells:
        self.stored(items)
        if count not in self.cells:
            self.cells[count] = Cells.fit(items, count)
        return self.cells[count]


SHARED = Shared()


def default_cells(items: Floats) -> int:
    return max(1, int(4 * len(items) ** 0.5) // 64) * 64


class Algorithm:
    """What every algorithm has."""

    settings: Sequence[Setting] = ()
    disk_bytes = 0  # per item
    build_seconds = 0.0  # processor time, where `fit_ood` reuses what another one made; 0: what `fit_ood` takes
    memory_of = "the library's serialized index"

    def fit_ood(self, train: Floats, learn: Floats, learn_neighbors: NDArray[np.int32]) -> None:
        raise NotImplementedError

    def set(self, setting: Setting) -> None:
        raise NotImplementedError

    def query(self, queries: Floats, k: int) -> Ints:
        raise NotImplementedError

    def add(self, items: Floats) -> None:
        raise NotImplementedError("no additions")

    @property
    def memory_bytes(self) -> int:
        """Of the whole index, without vectors that may lie on disk."""
        raise NotImplementedError


class Metric(Algorithm):
    """Inverted lists with codes in the queries' metric (power .5) or in the original space (power 0)."""

    def __init__(
        self,
        code: str,
        refine: str = "fp16",
        cells: Callable[[Floats], int] = default_cells,
        settings: Sequence[Setting] = REFINED,
        **options: Any,
    ) -> None:
        self.inner = MetricIVF(code, refine, **options)
        self.cells = cells
        self.settings = settings

    def fit_ood(self, train: Floats, learn: Floats, learn_neighbors: NDArray[np.int32]) -> None:
        cells = SHARED.prepare(train, self.cells(train))
        start = time.process_time()
        self.inner.build(train, learn, cells, SHARED.store)
        self.build_seconds = cells.seconds + time.process_time() - start
        if self.inner.refine == "fp16":
            self.disk_bytes = 2 * train.shape[1]

    def set(self, setting: Setting) -> None:
        self.inner.set(int(setting["nprobe"]), int(setting.get("compared", 0)))

    def query(self, queries: Floats, k: int) -> Ints:
        found: Ints = self.inner.index.search(queries, k)[1]
        return found

    def add(self, items: Floats) -> None:
        self.inner.add(items)

    @property
    def memory_bytes(self) -> int:
        fine = self.inner.store if self.inner.refine not in ("", "fp16") else None
        return self.inner.code_bytes + (0 if fine is None else int(faiss.serialize_index(fine).nbytes))


class Faiss(Algorithm):
    """An index by its factory string, refined over fp16 vectors where `refine`."""

    def __init__(self, factory: str, settings: Sequence[Setting], refine: bool = False, **build: int) -> None:
        self.factory = factory
        self.settings = settings
        self.refine = refine
        self.build = build
        self.base: Any = None

    def fit_ood(self, train: Floats, learn: Floats, learn_neighbors: NDArray[np.int32]) -> None:
        if KEPT is None:
            self._build(train)
        else:
            file = KEPT / (re.sub(r"\W+", "_", self.factory) + f"_{len(train)}.faiss")
            seconds = file.with_suffix(".seconds")
            if not seconds.exists():
                self._build(train)
                faiss.write_index(self.base, str(file))
                seconds.write_text(str(self.build_seconds))
            self.base = faiss.read_index(str(file))
            self.build_seconds = float(seconds.read_text())
        self.index = self.base
        if self.refine:
            self.index = faiss.IndexRefine(self.base, SHARED.stored(train))
            self.disk_bytes = 2 * train.shape[1]

    def _build(self, train: Floats) -> None:
        start = time.process_time()
        self.base = faiss.index_factory(train.shape[1], self.factory.format(cells=default_cells(train)), IP)
        if "ef_construction" in self.build:
            faiss.downcast_index(self.base).hnsw.efConstruction = self.build["ef_construction"]
        if not self.base.is_trained:
            ivf = faiss.extract_index_ivf(self.base)
            ivf.cp.max_points_per_centroid = POINTS
            sample = np.random.default_rng(0).permutation(len(train))[: max(TRAINED_ON, POINTS * ivf.nlist)]
            self.base.train(np.ascontiguousarray(train[sample]))
        self.base.add(train)
        self.build_seconds = time.process_time() - start

    def set(self, setting: Setting) -> None:
        if "nprobe" in setting:
            faiss.extract_index_ivf(self.base).nprobe = int(setting["nprobe"])
        if "compared" in setting:
            self.index.k_factor = setting["compared"] / 10
        if "ef" in setting:
            faiss.downcast_index(self.base).hnsw.efSearch = int(setting["ef"])

    def query(self, queries: Floats, k: int) -> Ints:
        found: Ints = self.index.search(queries, k)[1]
        return found

    def add(self, items: Floats) -> None:
        self.base.add(items)

    @property
    def memory_bytes(self) -> int:
        return int(faiss.serialize_index(self.base).nbytes)


class Hnswlib(Algorithm):
    settings = grid(ef=EF)

    def fit_ood(self, train: Floats, learn: Floats, learn_neighbors: NDArray[np.int32]) -> None:
        import hnswlib

        self.index = hnswlib.Index("ip", train.shape[1])
        self.index.init_index(len(train) + 20_000, ef_construction=200, M=16)
        self.index.set_num_threads(1)
        self.index.add_items(train)

    def set(self, setting: Setting) -> None:
        self.index.set_ef(int(setting["ef"]))

    def query(self, queries: Floats, k: int) -> Ints:
        return np.asarray(self.index.knn_query(queries, k, num_threads=1)[0], np.int64)

    def add(self, items: Floats) -> None:
        self.index.add_items(items)

    @property
    def memory_bytes(self) -> int:
        return int(self.index.index_file_size())


class Usearch(Algorithm):
    settings = grid(ef=EF)

    def fit_ood(self, train: Floats, learn: Floats, learn_neighbors: NDArray[np.int32]) -> None:
        from usearch.index import Index

        self.index: Any = Index(ndim=train.shape[1], metric="ip", dtype="f16")  # connectivity 16, expansion_add 128
        self.index.add(np.arange(len(train)), train, threads=1)

    def set(self, setting: Setting) -> None:
        self.index.expansion_search = int(setting["ef"])

    def query(self, queries: Floats, k: int) -> Ints:
        return np.asarray(self.index.search(queries, k, threads=1).keys).astype(np.int64).reshape(len(queries), k)

    def add(self, items: Floats) -> None:
        self.index.add(np.arange(len(self.index), len(self.index) + len(items)), items, threads=1)

    @property
    def memory_bytes(self) -> int:
        return int(self.index.serialized_length)


class Scann(Algorithm):
    """Tree with SOAR, anisotropic 4-bit codes of two dimensions each, bfloat16 vectors for the refinement."""

    settings = grid(leaves=(10, 20, 30, 50, 75, 100, 150, 200, 300), compared=(30, 60, 100, 200, 400))

    def fit_ood(self, train: Floats, learn: Floats, learn_neighbors: NDArray[np.int32]) -> None:
        import scann
        from scann.scann_ops.py.scann_builder import ReorderType

        leaves = int(2 * len(train) ** 0.5)
        builder = scann.scann_ops_pybind.builder(train, 10, "dot_product").set_n_training_threads(1)
        builder = builder.tree(
            num_leaves=leaves,
            num_leaves_to_search=100,
            training_sample_size=min(len(train), POINTS * leaves),
            spherical=True,
            soar_lambda=1.5,
            overretrieve_factor=2,
        )
        builder = builder.score_ah(2, anisotropic_quantization_threshold=0.2).reorder(100, quantize=ReorderType.BFLOAT16)
        self.index = builder.build()

    def set(self, setting: Setting) -> None:
        self.options = {"leaves_to_search": int(setting["leaves"]), "pre_reorder_num_neighbors": int(setting["compared"])}

    def query(self, queries: Floats, k: int) -> Ints:
        if len(queries) == 1:
            return np.asarray(self.index.search(queries[0], final_num_neighbors=k, **self.options)[0], np.int64)[None]
        return np.asarray(self.index.search_batched(queries, final_num_neighbors=k, **self.options)[0], np.int64)

    @property
    def memory_bytes(self) -> int:
        return folder_bytes(self.index.serialize)


class Lorann(Algorithm):
    settings = grid(clusters=(8, 16, 24, 32, 48, 64, 96, 128), compared=(50, 100, 200, 400, 800))

    def fit_ood(self, train: Floats, learn: Floats, learn_neighbors: NDArray[np.int32]) -> None:
        import lorann

        clusters = 64 * max(1, int(len(train) ** 0.5 / 64))
        self.index = lorann.LorannIndex(train, clusters, 128, quantization_bits=8, rank=32, distance=lorann.IP)
        self.index.build(approximate=True, n_threads=1, training_queries=learn)

    def set(self, setting: Setting) -> None:
        self.options = int(setting["clusters"]), int(setting["compared"])

    def query(self, queries: Floats, k: int) -> Ints:
        asked = queries[0] if len(queries) == 1 else queries
        return np.asarray(self.index.search(asked, k, *self.options, n_threads=1), np.int64).reshape(len(queries), k)

    @property
    def memory_bytes(self) -> int:
        return folder_bytes(lambda folder: self.index.save(f"{folder}/index"))


class Svs(Algorithm):
    """Vamana over fp16 vectors. Its compressed vectors (LVQ, LeanVec) run on Intel processors only."""

    settings = grid(ef=EF)

    def fit_ood(self, train: Floats, learn: Floats, learn_neighbors: NDArray[np.int32]) -> None:
        import svs

        options = svs.VamanaBuildParameters(graph_max_degree=32, window_size=200, alpha=0.95)
        self.index = svs.Vamana.build(options, train.astype(np.float16), svs.DistanceType.MIP, num_threads=1)
        self.index.num_threads = 1

    def set(self, setting: Setting) -> None:
        self.index.search_window_size = int(setting["ef"])

    def query(self, queries: Floats, k: int) -> Ints:
        return np.asarray(self.index.search(queries, k)[0]).astype(np.int64)

    @property
    def memory_bytes(self) -> int:
        return folder_bytes(lambda folder: self.index.save(f"{folder}/config", f"{folder}/graph", f"{folder}/data"))


class SymphonyQG(Algorithm):
    """RaBitQ codes in the nodes of a graph."""

    settings = grid(ef=EF)

    def fit_ood(self, train: Floats, learn: Floats, learn_neighbors: NDArray[np.int32]) -> None:
        import rabitqlib

        self.index = rabitqlib.SymqgIndex(train.shape[1], 32, "ip")
        self.index.build(train, 200, 1)

    def set(self, setting: Setting) -> None:
        self.ef = int(setting["ef"])

    def query(self, queries: Floats, k: int) -> Ints:
        found = self.index.search(queries, k, self.ef, 1)
        rows = next(part for part in found if np.asarray(part).dtype.kind in "ui")
        return np.asarray(rows).astype(np.int64).reshape(len(queries), k)

    @property
    def memory_bytes(self) -> int:
        return folder_bytes(lambda folder: self.index.save(f"{folder}/index"))


class DiskAnn(Algorithm):
    """DiskANN's graph, in memory."""

    settings = grid(ef=EF)

    def fit_ood(self, train: Floats, learn: Floats, learn_neighbors: NDArray[np.int32]) -> None:
        import diskannpy

        self.folder = tempfile.TemporaryDirectory()
        diskannpy.build_memory_index(train, "l2", self.folder.name, complexity=128, graph_degree=64, num_threads=1)
        self.index = diskannpy.StaticMemoryIndex(self.folder.name, num_threads=1, initial_search_complexity=max(EF))

    def set(self, setting: Setting) -> None:
        self.ef = int(setting["ef"])

    def query(self, queries: Floats, k: int) -> Ints:
        return np.asarray(self.index.batch_search(queries, k, self.ef, 1).identifiers, np.int64)

    @property
    def memory_bytes(self) -> int:
        return sum(file.stat().st_size for file in Path(self.folder.name).rglob("*") if file.is_file())


class Lance(Algorithm):
    """LanceDB's own index; it lies on disk, and processor time counts all of its threads."""

    settings = grid(nprobe=(10, 20, 40, 80), compared=(100, 300, 1000))

    def fit_ood(self, train: Floats, learn: Floats, learn_neighbors: NDArray[np.int32]) -> None:
        import lancedb
        import pyarrow as pa

        self.folder = tempfile.mkdtemp()
        width = train.shape[1]
        rows = pa.FixedSizeListArray.from_arrays(pa.array(train.ravel()), width)
        self.table = lancedb.connect(self.folder).create_table("items", pa.table({"vector": rows, "row": np.arange(len(train))}))
        self.table.create_index(
            metric="dot",
            vector_column_name="vector",
            num_partitions=default_cells(train) // 2,
            num_sub_vectors=16,
            index_type="IVF_PQ",
        )

    def set(self, setting: Setting) -> None:
        self.setting = setting

    def query(self, queries: Floats, k: int) -> Ints:
        out = []
        for query in queries:
            asked = self.table.search(query).metric("dot").nprobes(int(self.setting["nprobe"]))
            found = asked.refine_factor(int(self.setting["compared"] / k)).select(["row"]).limit(k).to_arrow()
            out.append(found.column("row").to_numpy())
        return np.stack(out)

    @property
    def memory_bytes(self) -> int:
        return sum(file.stat().st_size for file in Path(self.folder).rglob("*") if file.is_file())

    def __del__(self) -> None:
        shutil.rmtree(getattr(self, "folder", "/nowhere"), ignore_errors=True)


def folder_bytes(save: Callable[[str], Any]) -> int:
    """Bytes of the files that `save` writes into a folder."""
    with tempfile.TemporaryDirectory() as folder:
        save(folder)
        return sum(file.stat().st_size for file in Path(folder).rglob("*") if file.is_file())


ALGORITHMS: dict[str, Callable[[], Algorithm]] = {
    "metric PQ16": lambda: Metric("PQ16"),
    "mixed metric PQ16": lambda: Metric("PQ16", items_share=0.25),
    "metric PQ8": lambda: Metric("PQ8"),
    "metric PQ32x4fs": lambda: Metric("PQ32x4fs"),
    "mixed metric PQ16 + PQ64": lambda: Metric("PQ16", "PQ64", items_share=0.25),
    "metric RaBitQ": lambda: Metric("RaBitQ", balance=True),
    "Faiss IVF-PQ16": lambda: Metric("PQ16", power=0),
    "Faiss IVF-PQ32x4 fast-scan": lambda: Metric("PQ32x4fs", power=0),
    "Faiss IVF-RaBitQ": lambda: Metric("RaBitQ", power=0),
    "Faiss OPQ8 IVF-PQ8": lambda: Faiss("OPQ8_64,IVF{cells},PQ8", REFINED, True),
    "Faiss OPQ16 IVF-PQ16": lambda: Faiss("OPQ16_128,IVF{cells},PQ16", REFINED, True),
    "Faiss IVF-RaBitQ 4 bits": lambda: Faiss("IVF{cells},RaBitQ4", grid(nprobe=NPROBE)),
    "Faiss IVF-RaBitQ (own cells)": lambda: Faiss("IVF{cells},RaBitQ", REFINED, True),
    "Faiss IVF-PQ32x4 fast-scan (own cells)": lambda: Faiss("IVF{cells},PQ32x4fs", REFINED, True),
    "Faiss HNSW16": lambda: Faiss("HNSW16,Flat", grid(ef=EF), ef_construction=200),
    "Faiss HNSW32": lambda: Faiss("HNSW32,Flat", grid(ef=EF), ef_construction=200),
    "hnswlib": Hnswlib,
    "usearch": Usearch,
    "ScaNN": Scann,
    "LoRANN": Lorann,
    "SVS Vamana": Svs,
    "SymphonyQG": SymphonyQG,
    "DiskANN": DiskAnn,
    "LanceDB": Lance,
}
