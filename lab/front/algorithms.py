"""The algorithms of the benchmark, each behind VIBE's two calls: `fit_ood(train, learn, learn_neighbors)` and `query`. One
thread each.

An algorithm gets unit vectors of the target modality alone and answers queries (Q, D) with rows (Q, k). `settings` are its
parameters at query time, a grid; constants of the build are the library's recommendation, written in the line of
`ALGORITHMS`. Whoever keeps codes only ranks candidates again by the same fp16 vectors, in Faiss (`IndexRefine`), and these
may lie on disk: they count as bytes on disk, not in memory. `save` and `load` keep a built index for later runs. Knows
libraries; nothing of timing or of data.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lab.front.metric import IP, POINTS, TRAINED_ON, add_blocks, faiss, fp16_store

os.environ.setdefault("LANCE_LOG", "error")

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]
Setting = Mapping[str, float]
EF = (10, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
NPROBE = (4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 384)
COMPARED = (50, 100, 150, 200, 300, 400, 600, 1000, 2000, 4000)  # vectors compared per query
THREADS = 1  # of builds


def grid(**axes: Sequence[float]) -> list[Setting]:
    return [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]


REFINED = grid(nprobe=NPROBE, compared=COMPARED)
BY_EF = grid(ef=EF)


class Store:
    """fp16 vectors of the items, which several indexes of one data set share."""

    def __init__(self) -> None:
        self.of: Any = None
        self.index: Any = None

    def stored(self, items: Floats) -> Any:
        """A Faiss index of the vectors."""
        if self.of is not items:
            self.of = items
            self.index = fp16_store(items)
        return self.index


STORE = Store()


def default_cells(items: Floats) -> int:
    return max(1, int(4 * len(items) ** 0.5) // 64) * 64


class Algorithm:
    """What every algorithm has."""

    settings: Sequence[Setting] = ()
    disk_bytes = 0  # per item

    def fit_ood(self, train: Floats, learn: Floats, learn_neighbors: NDArray[np.int32]) -> None:
        raise NotImplementedError

    def save(self, folder: Path) -> None:
        """Write the built index into an empty folder."""
        raise NotImplementedError

    def load(self, folder: Path, train: Floats, learn: Floats) -> None:
        """Read what `save` wrote for these items and training queries, in place of `fit_ood`."""
        raise NotImplementedError

    def set(self, setting: Setting) -> None:
        raise NotImplementedError

    def query(self, queries: Floats, k: int) -> Ints:
        raise NotImplementedError

    def add(self, items: Floats) -> None:
        raise NotImplementedError("no additions")

    @property
    def memory_bytes(self) -> int:
        """Of the whole index, without vectors that may lie on disk: what `save` writes."""
        with tempfile.TemporaryDirectory() as folder:
            self.save(Path(folder))
            return sum(file.stat().st_size for file in Path(folder).rglob("*") if file.is_file())


class Faiss(Algorithm):
    """An index by its factory string, refined over fp16 vectors where `refine`."""

    def __init__(self, factory: str, settings: Sequence[Setting], refine: bool = False, **build: int) -> None:
        self.factory = factory
        self.settings = settings
        self.refine = refine
        self.build = build
        self.base: Any = None

    def fit_ood(self, train: Floats, learn: Floats, learn_neighbors: NDArray[np.int32]) -> None:
        self.base = faiss.index_factory(train.shape[1], self.factory.format(cells=default_cells(train)), IP)
        if "ef_construction" in self.build:
            faiss.downcast_index(self.base).hnsw.efConstruction = self.build["ef_construction"]
        if not self.base.is_trained:
            ivf = faiss.extract_index_ivf(self.base)
            ivf.cp.max_points_per_centroid = POINTS
            sample = np.random.default_rng(0).permutation(len(train))[: max(TRAINED_ON, POINTS * ivf.nlist)]
            self.base.train(np.ascontiguousarray(train[np.sort(sample)], np.float32))
        add_blocks(self.base, train)
        self._refined(train)

    def save(self, folder: Path) -> None:
        faiss.write_index(self.base, str(folder / "index.faiss"))

    def load(self, folder: Path, train: Floats, learn: Floats) -> None:
        self.base = faiss.read_index(str(folder / "index.faiss"))
        self._refined(train)

    def _refined(self, train: Floats) -> None:
        self.index = self.base
        if self.refine:
            self.index = faiss.IndexRefine(self.base, STORE.stored(train))
            self.disk_bytes = 2 * train.shape[1]

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
    settings = BY_EF

    def fit_ood(self, train: Floats, learn: Floats, learn_neighbors: NDArray[np.int32]) -> None:
        import hnswlib

        self.index = hnswlib.Index("ip", train.shape[1])
        self.index.init_index(len(train) + 20_000, ef_construction=200, M=16)
        self.index.add_items(train, num_threads=THREADS)

    def save(self, folder: Path) -> None:
        self.index.save_index(str(folder / "index"))

    def load(self, folder: Path, train: Floats, learn: Floats) -> None:
        import hnswlib

        self.index = hnswlib.Index("ip", train.shape[1])
        self.index.load_index(str(folder / "index"), max_elements=len(train) + 20_000)

    def set(self, setting: Setting) -> None:
        self.index.set_ef(int(setting["ef"]))

    def query(self, queries: Floats, k: int) -> Ints:
        return np.asarray(self.index.knn_query(queries, k, num_threads=1)[0], np.int64)

    def add(self, items: Floats) -> None:
        self.index.add_items(items, num_threads=1)


class Usearch(Algorithm):
    settings = BY_EF

    def fit_ood(self, train: Floats, learn: Floats, learn_neighbors: NDArray[np.int32]) -> None:
        self.index: Any = self._empty(train)
        self.index.add(np.arange(len(train)), train, threads=THREADS)

    def _empty(self, train: Floats) -> Any:
        from usearch.index import Index

        return Index(ndim=train.shape[1], metric="ip", dtype="f16")  # connectivity 16, expansion_add 128

    def save(self, folder: Path) -> None:
        self.index.save(str(folder / "index"))

    def load(self, folder: Path, train: Floats, learn: Floats) -> None:
        self.index = self._empty(train)
        self.index.load(str(folder / "index"))

    def set(self, setting: Setting) -> None:
        self.index.expansion_search = int(setting["ef"])

    def query(self, queries: Floats, k: int) -> Ints:
        return np.asarray(self.index.search(queries, k, threads=1).keys).astype(np.int64).reshape(len(queries), k)

    def add(self, items: Floats) -> None:
        self.index.add(np.arange(len(self.index), len(self.index) + len(items)), items, threads=1)


class Scann(Algorithm):
    """Tree with SOAR, anisotropic 4-bit codes of two dimensions each, bfloat16 vectors for the refinement."""

    settings = grid(leaves=(5, 10, 20, 30, 50, 75, 100, 150, 200, 300, 450), compared=(30, 60, 100, 200, 400, 800))

    def fit_ood(self, train: Floats, learn: Floats, learn_neighbors: NDArray[np.int32]) -> None:
        import scann
        from scann.scann_ops.py.scann_builder import ReorderType

        leaves = int(2 * len(train) ** 0.5)
        builder = scann.scann_ops_pybind.builder(train, 10, "dot_product").set_n_training_threads(THREADS)
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

    def save(self, folder: Path) -> None:
        self.index.serialize(str(folder))

    def load(self, folder: Path, train: Floats, learn: Floats) -> None:
        import scann

        self.index = scann.scann_ops_pybind.load_searcher(str(folder))

    def set(self, setting: Setting) -> None:
        self.options = {"leaves_to_search": int(setting["leaves"]), "pre_reorder_num_neighbors": int(setting["compared"])}

    def query(self, queries: Floats, k: int) -> Ints:
        if len(queries) == 1:
            return np.asarray(self.index.search(queries[0], final_num_neighbors=k, **self.options)[0], np.int64)[None]
        return np.asarray(self.index.search_batched(queries, final_num_neighbors=k, **self.options)[0], np.int64)


class Lorann(Algorithm):
    """Reduced-rank regression per cluster, fitted to the training queries."""

    settings = grid(clusters=(4, 8, 16, 24, 32, 48, 64, 96, 128, 192), compared=(50, 100, 200, 400, 800))

    def fit_ood(self, train: Floats, learn: Floats, learn_neighbors: NDArray[np.int32]) -> None:
        import lorann

        clusters = 64 * max(1, int(len(train) ** 0.5 / 64))
        self.index = lorann.LorannIndex(train, clusters, 128, quantization_bits=8, rank=32, distance=lorann.IP)
        self.index.build(approximate=True, n_threads=THREADS, training_queries=learn)

    def save(self, folder: Path) -> None:
        self.index.save(str(folder / "index"))

    def load(self, folder: Path, train: Floats, learn: Floats) -> None:
        import lorann

        self.index = lorann.LorannIndex.load(str(folder / "index"))

    def set(self, setting: Setting) -> None:
        self.options = int(setting["clusters"]), int(setting["compared"])

    def query(self, queries: Floats, k: int) -> Ints:
        asked = queries[0] if len(queries) == 1 else queries
        return np.asarray(self.index.search(asked, k, *self.options, n_threads=1), np.int64).reshape(len(queries), k)


class Svs(Algorithm):
    """Vamana of Intel's Scalable Vector Search.

    Args:
        kind: "fp16"; "LVQ" (4 and 8 bits); "LeanVec" (half the width in 4 bits, fitted to the training queries, then 8 bits).
            The last two run on Intel processors only.
    """

    settings = BY_EF

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def fit_ood(self, train: Floats, learn: Floats, learn_neighbors: NDArray[np.int32]) -> None:
        import svs

        options = svs.VamanaBuildParameters(graph_max_degree=32, window_size=200, alpha=0.95)
        with tempfile.TemporaryDirectory() as folder:
            data = self._data(train, learn, f"{folder}/items.fvecs")
            self.index = svs.Vamana.build(options, data, svs.DistanceType.MIP, num_threads=THREADS)
        self.index.num_threads = 1

    def _data(self, train: Floats, learn: Floats, file: str) -> Any:
        import svs

        if self.kind == "fp16":
            return train.astype(np.float16)
        svs.write_vecs(train, file)
        vectors = svs.VectorDataLoader(file, svs.DataType.float32, dims=train.shape[1])
        if self.kind == "LVQ":
            return svs.LVQLoader(vectors, 4, 8, 32)
        width = train.shape[1] // 2
        sample = np.random.default_rng(0).permutation(len(train))[:100_000]
        matrices = svs.compute_leanvec_matrices(train[sample], learn, width)
        kinds = svs.LeanVecKind
        return svs.LeanVecLoader(vectors, width, kinds.lvq4, kinds.lvq8, *matrices)

    def save(self, folder: Path) -> None:
        self.index.save(str(folder / "config"), str(folder / "graph"), str(folder / "data"))

    def load(self, folder: Path, train: Floats, learn: Floats) -> None:
        import svs

        data = str(folder / "data")
        if self.kind == "fp16":
            loader = svs.VectorDataLoader(data, svs.DataType.float16, dims=train.shape[1])
        elif self.kind == "LVQ":
            loader = svs.LVQLoader(data, 32)
        else:
            loader = svs.LeanVecLoader(data)
        graph = svs.GraphLoader(str(folder / "graph"))
        self.index = svs.Vamana(str(folder / "config"), graph, loader, svs.DistanceType.MIP, num_threads=1)

    def set(self, setting: Setting) -> None:
        self.index.search_window_size = int(setting["ef"])

    def query(self, queries: Floats, k: int) -> Ints:
        return np.asarray(self.index.search(queries, k)[0]).astype(np.int64)


class SymphonyQG(Algorithm):
    """RaBitQ codes in the nodes of a graph."""

    settings = BY_EF

    def fit_ood(self, train: Floats, learn: Floats, learn_neighbors: NDArray[np.int32]) -> None:
        import rabitqlib

        self.index = rabitqlib.SymqgIndex(train.shape[1], 32, "ip")
        self.index.build(train, 200, THREADS)

    def save(self, folder: Path) -> None:
        self.index.save(str(folder / "index"))

    def load(self, folder: Path, train: Floats, learn: Floats) -> None:
        import rabitqlib

        self.index = rabitqlib.SymqgIndex.load(str(folder / "index"))

    def set(self, setting: Setting) -> None:
        self.ef = int(setting["ef"])

    def query(self, queries: Floats, k: int) -> Ints:
        found = self.index.search(queries, k, self.ef, 1)
        rows = next(part for part in found if np.asarray(part).dtype.kind in "ui")
        return np.asarray(rows).astype(np.int64).reshape(len(queries), k)


class DiskAnn(Algorithm):
    """DiskANN's graph, in memory. Vectors have length 1, so that the nearest are those of the largest inner product."""

    settings = BY_EF

    def fit_ood(self, train: Floats, learn: Floats, learn_neighbors: NDArray[np.int32]) -> None:
        import diskannpy

        self.temporary = tempfile.TemporaryDirectory()
        self.folder = Path(self.temporary.name)
        diskannpy.build_memory_index(train, "l2", str(self.folder), complexity=128, graph_degree=64, num_threads=THREADS)
        self._open()

    def _open(self) -> None:
        import diskannpy

        self.index = diskannpy.StaticMemoryIndex(str(self.folder), num_threads=1, initial_search_complexity=max(EF))

    def save(self, folder: Path) -> None:
        copy_files(self.folder, folder)

    def load(self, folder: Path, train: Floats, learn: Floats) -> None:
        self.folder = folder
        self._open()

    def set(self, setting: Setting) -> None:
        self.ef = int(setting["ef"])

    def query(self, queries: Floats, k: int) -> Ints:
        return np.asarray(self.index.batch_search(queries, k, self.ef, 1).identifiers, np.int64)


class Lance(Algorithm):
    """LanceDB's own index. It lies on disk with the vectors, and processor time counts all of its threads."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        if kind == "IVF_PQ":
            self.settings = grid(nprobe=(10, 20, 40, 80), compared=(100, 300, 1000))
        else:
            self.settings = grid(nprobe=(1, 4, 10), ef=(50, 100, 200, 400))

    def fit_ood(self, train: Floats, learn: Floats, learn_neighbors: NDArray[np.int32]) -> None:
        import lancedb
        import pyarrow as pa

        self.disk_bytes = 4 * train.shape[1]
        self.temporary = tempfile.TemporaryDirectory()
        self.folder = Path(self.temporary.name)
        width = train.shape[1]
        rows = pa.FixedSizeListArray.from_arrays(pa.array(train.ravel()), width)
        columns = {"vector": rows, "row": np.arange(len(train)), "rank": ranks(len(train))}
        self.table = lancedb.connect(str(self.folder)).create_table("items", pa.table(columns))
        self.table.create_scalar_index("rank")
        options: dict[str, Any] = {"num_partitions": default_cells(train) // 2, "num_sub_vectors": 16}
        if self.kind == "IVF_HNSW_SQ":  # graphs of a hundred thousand items
            options = {"num_partitions": max(1, len(train) // 100_000), "m": 20, "ef_construction": 200}
        self.table.create_index(metric="dot", vector_column_name="vector", index_type=self.kind, **options)

    def save(self, folder: Path) -> None:
        copy_files(self.folder, folder)

    def load(self, folder: Path, train: Floats, learn: Floats) -> None:
        import lancedb

        self.disk_bytes = 4 * train.shape[1]
        self.folder = folder
        self.table = lancedb.connect(str(folder)).open_table("items")

    def set(self, setting: Setting) -> None:
        self.setting = setting

    def query(self, queries: Floats, k: int, where: str | None = None) -> Ints:
        """`where`: a filter, applied before the search."""
        out = []
        for query in queries:
            asked = self.table.search(query).metric("dot").nprobes(int(self.setting["nprobe"]))
            if where is not None:
                asked = asked.where(where, prefilter=True)
            if "ef" in self.setting:
                asked = asked.ef(int(self.setting["ef"])).refine_factor(2)
            else:
                asked = asked.refine_factor(int(self.setting["compared"] / k))
            found = asked.select(["row", "_distance"]).limit(k).to_arrow()
            rows = found.column("row").to_numpy()
            out.append(np.pad(rows, (0, k - len(rows)), constant_values=-1))
        return np.stack(out)

    @property
    def memory_bytes(self) -> int:
        """Files of the index, which LanceDB reads into memory."""
        return sum(file.stat().st_size for file in self.folder.glob("items.lance/_indices/**/*") if file.is_file())


def ranks(items: int) -> Ints:
    """(N,) a random order of the items; a filter lets the first of them through."""
    return np.random.default_rng(0).permutation(items)


def copy_files(source: Path, folder: Path) -> None:
    for file in source.rglob("*"):
        if file.is_file():
            target = folder / file.relative_to(source)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(file.read_bytes())


ALGORITHMS: dict[str, Callable[[], Algorithm]] = {
    "Faiss flat": lambda: Faiss("Flat", grid()),
    "Faiss OPQ8 IVF-PQ8": lambda: Faiss("OPQ8_64,IVF{cells},PQ8", REFINED, True),
    "Faiss OPQ16 IVF-PQ16": lambda: Faiss("OPQ16_128,IVF{cells},PQ16", REFINED, True),
    "Faiss IVF-PQ32x4 fast-scan": lambda: Faiss("IVF{cells},PQ32x4fs", REFINED, True),
    "Faiss IVF-RaBitQ": lambda: Faiss("IVF{cells},RaBitQ", REFINED, True),
    "Faiss IVF-RaBitQ 4 bits": lambda: Faiss("IVF{cells},RaBitQ4", grid(nprobe=NPROBE)),
    "Faiss HNSW16": lambda: Faiss("HNSW16,Flat", BY_EF, ef_construction=200),
    "Faiss HNSW32": lambda: Faiss("HNSW32,Flat", BY_EF, ef_construction=200),
    "hnswlib": Hnswlib,
    "usearch": Usearch,
    "ScaNN": Scann,
    "LoRANN": Lorann,
    "SVS fp16": lambda: Svs("fp16"),
    "SVS LVQ4x8": lambda: Svs("LVQ"),
    "SVS LeanVec": lambda: Svs("LeanVec"),
    "SymphonyQG": SymphonyQG,
    "DiskANN": DiskAnn,
    "LanceDB IVF-PQ": lambda: Lance("IVF_PQ"),
    "LanceDB IVF-HNSW-SQ": lambda: Lance("IVF_HNSW_SQ"),
}
