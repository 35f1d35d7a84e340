"""Inverted lists with codes in the queries' metric, every part exchangeable: the recipe behind the scan, and its
experiments.

The error of a code counts where queries look: codes minimise (x - y)^T C (x - y) with C = E[q q^T] over a bank of queries.
With A = C^(1/2) items become A x and queries A^-1 q, so inner products are unchanged; cells are found in the original space,
since distances of the transformed vectors say little about inner products. Everything after the assignment runs in Faiss.
Knows nothing of measuring.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from typing import Any

import faiss as faiss_library
import numpy as np
from numpy.typing import NDArray

faiss: Any = faiss_library  # its stubs know little of what is used here
Floats = NDArray[Any]  # float32
IP = faiss.METRIC_INNER_PRODUCT
TRAINED_ON = 65_536  # residuals that rotations and codebooks are trained on, at most
POINTS = 64  # items of a cell that k-means sees, at most
BLOCK = 262_144  # items that are added together


@dataclass
class Cells:
    """Spherical k-means of the items in the original space; shared by every index that needs cells there."""

    centroids: Floats  # (L, D) unit length
    cell: NDArray[np.int64]  # (N,)
    seconds: float  # processor time

    @classmethod
    def fit(cls, items: Floats, count: int, seed: int = 0) -> Cells:
        start = time.process_time()
        means = faiss.Kmeans(
            items.shape[1], count, niter=10, spherical=True, max_points_per_centroid=POINTS, min_points_per_centroid=1, seed=seed
        )
        means.train(items)
        return cls(means.centroids, assign(means.centroids, items), time.process_time() - start)

    def means(self, rows: Floats) -> Floats:
        """(L, D) mean of the rows of each cell; an empty cell keeps a mean of zero."""
        order = np.argsort(self.cell, kind="stable")
        counts = np.bincount(self.cell, minlength=len(self.centroids))
        sums = np.zeros((len(counts), rows.shape[1]), np.float32)
        filled = counts > 0
        starts = np.r_[0, np.cumsum(counts)[:-1]][filled]
        sums[filled] = np.add.reduceat(rows[order], starts, axis=0)
        return sums / np.maximum(counts, 1)[:, None].astype(np.float32)


def assign(centroids: Floats, items: Floats) -> NDArray[np.int64]:
    coarse = faiss.IndexFlatIP(items.shape[1])
    coarse.add(centroids)
    return np.concatenate([coarse.search(items[at : at + 65_536], 1)[1][:, 0] for at in range(0, len(items), 65_536)])


def metric(bank: Floats, shrinkage: float = 0.1, power: float = 0.5) -> tuple[Floats, Floats]:
    """A (D, D) = C^power, symmetric, and its inverse; `shrinkage` is the share of the mean diagonal that is added to C."""
    values, vectors = np.linalg.eigh(bank.T.astype(np.float64) @ bank / len(bank))
    values = np.maximum(values, 0)
    values += shrinkage * values.mean()
    values /= values.mean()
    to = (vectors * values**power) @ vectors.T
    back = (vectors * values**-power) @ vectors.T
    return to.astype(np.float32), back.astype(np.float32)


def balanced(bank: Floats, residuals: Floats, shrinkage: float = 0.1) -> tuple[Floats, Floats]:
    """A for codes whose error is the same in all directions, whatever the residual (RaBitQ): it grows with |A r| |A^-1 q|.

    The least product is where both have the same covariance: A S A = A^-1 C A^-1, so A^2 is the geometric mean of S^-1 and
    C. Where items and queries are spread alike it is the identity, and the metric of the queries alone would do harm.
    """
    moments = []
    for rows in (residuals, bank):
        moment = rows.T.astype(np.float64) @ rows / len(rows)
        moments.append(moment / np.trace(moment) * len(moment) + shrinkage * np.eye(len(moment)))
    root, inverse = _roots(moments[0])
    square = inverse @ _roots(root @ moments[1] @ root)[0] @ inverse
    to, back = _roots(square)
    return to.astype(np.float32), back.astype(np.float32)


def _roots(matrix: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Of a symmetric positive matrix: its square root, and the inverse of that."""
    values, vectors = np.linalg.eigh(matrix)
    values = np.maximum(values, 1e-9 * values.max())
    return (vectors * values**0.5) @ vectors.T, (vectors * values**-0.5) @ vectors.T


def linear(matrix: Floats) -> Any:
    """A Faiss transform q -> matrix q."""
    out = faiss.LinearTransform(matrix.shape[1], matrix.shape[0], False)
    faiss.copy_array_to_vector(np.ascontiguousarray(matrix).ravel(), out.A)
    out.is_trained = True
    return out


class MetricIVF:
    """Faiss inverted lists of codes in a metric, with a second, finer code for the refinement.

    Args:
        code: "PQ16" (8 bits), "PQ32x4fs" (4 bits, fast-scan), "RaBitQ", "RaBitQ2" ... (bits of a dimension), "RaBitQfs".
        refine: "fp16", "SQ8", "SQ4", "PQ64" or "RaBitQ2" ...: what candidates are ranked by; "" for the code itself.
        shrinkage, power: of the metric; power 0 is the original space.
        bank: queries that the metric is fitted on, at most (the first ones).
        balance: the metric of `balanced`, in place of that of queries alone.
        items_share: of the items' own second moment in C, so that queries of another kind lose less.
    """

    def __init__(
        self,
        code: str,
        refine: str = "fp16",
        *,
        shrinkage: float = 0.1,
        power: float = 0.5,
        bank: int = 100_000,
        balance: bool = False,
        items_share: float = 0.0,
    ) -> None:
        self.code = code
        self.refine = refine
        self.shrinkage = shrinkage
        self.power = power
        self.bank = bank
        self.balance = balance
        self.items_share = items_share

    def build(self, items: Floats, learn: Floats, cells: Cells, store: Any = None) -> None:
        """`store`: a Faiss index of the original vectors, in place of one of its own, where `refine` is "fp16"."""
        width = items.shape[1]
        self.cells = cells
        sample = np.random.default_rng(0).permutation(len(items))[:TRAINED_ON]
        if self.balance:
            original = items[sample] - cells.means(items)[cells.cell[sample]]
            self.to, self.back = balanced(learn[: self.bank], original, self.shrinkage)
        else:
            bank = learn[: self.bank]
            if self.items_share:
                weight = (self.items_share / (1 - self.items_share) * len(bank) / len(sample)) ** 0.5
                bank = np.concatenate([bank, weight * items[sample]])
            self.to, self.back = metric(bank, self.shrinkage, self.power)
        rows = items @ self.to
        means = cells.means(rows)
        residuals = rows[sample] - means[cells.cell[sample]]
        self.rotation = self._rotation(residuals)
        rows = rows @ self.rotation.T
        residuals = residuals @ self.rotation.T
        coarse = faiss.IndexFlatIP(width)
        coarse.add(np.ascontiguousarray(means @ self.rotation.T))
        self.ivf = self._inverted_lists(coarse, residuals)
        self._add_core(rows, cells.cell, 0)
        if "fs" in self.code:
            kind = faiss.IndexIVFPQFastScan if self.code.startswith("PQ") else faiss.IndexIVFRaBitQFastScan
            self.ivf = kind(self.ivf, 32)
        pre = linear(self.rotation @ self.back)
        if self.refine == "fp16":
            self.store = store if store is not None else fp16_store(items)
            base = faiss.IndexPreTransform(pre, self.ivf)
            base.ntotal = self.ivf.ntotal
            self.index = faiss.IndexRefine(base, self.store)
            self.refined = self.index
        elif self.refine:
            self.store = self._fine_store(rows, sample)
            self.refined = faiss.IndexRefine(self.ivf, self.store)
            self.refined.ntotal = self.ivf.ntotal
            self.index = faiss.IndexPreTransform(pre, self.refined)
        else:
            self.store = None
            self.refined = None
            self.index = faiss.IndexPreTransform(pre, self.ivf)
        self.index.ntotal = self.ivf.ntotal
        self.index.is_trained = True
        self._keep = (coarse, pre, getattr(self, "store", None), getattr(self, "refined", None))

    def _rotation(self, residuals: Floats) -> Floats:
        width = residuals.shape[1]
        if not self.code.startswith("PQ"):  # RaBitQ wants a random one
            rotation = np.linalg.qr(np.random.default_rng(0).standard_normal((width, width)))[0]
            return rotation.astype(np.float32)
        opq = faiss.OPQMatrix(width, int(re.findall(r"\d+", self.code)[0]))
        opq.niter = 10
        opq.train(np.ascontiguousarray(residuals[:16_384]))
        rotation = faiss.vector_to_array(opq.A).reshape(width, width).copy()
        return np.asarray(rotation)

    def _inverted_lists(self, coarse: Any, residuals: Floats) -> Any:
        width, count = coarse.d, coarse.ntotal
        residuals = np.ascontiguousarray(residuals)
        if self.code.startswith("PQ"):
            bits = 4 if "x4" in self.code else 8
            ivf = faiss.IndexIVFPQ(coarse, width, count, int(re.findall(r"\d+", self.code)[0]), bits, IP)
            ivf.by_residual = True
            ivf.pq.cp.niter = 15
            ivf.pq.cp.max_points_per_centroid = 2 * POINTS
            ivf.pq.train(residuals)
        else:
            bits = int((re.findall(r"\d+", self.code) or ["1"])[0])
            ivf = faiss.IndexIVFRaBitQ(coarse, width, count, IP, True, bits)
            ivf.train_encoder(len(residuals), faiss.swig_ptr(residuals), None)
        ivf.is_trained = True
        return ivf

    def _add_core(self, rows: Floats, cell: NDArray[np.int64], first: int) -> None:
        rows = np.ascontiguousarray(rows)
        names = np.arange(first, first + len(rows), dtype=np.int64)
        self.ivf.add_core(len(rows), faiss.swig_ptr(rows), faiss.swig_ptr(names), faiss.swig_ptr(np.ascontiguousarray(cell)))

    def _fine_store(self, rows: Floats, sample: NDArray[np.int64]) -> Any:
        width = rows.shape[1]
        store = faiss.index_factory(width, self.refine, IP)
        if self.refine.startswith("PQ"):
            store.pq.cp.niter = 10
            store.pq.cp.max_points_per_centroid = POINTS
        store.train(np.ascontiguousarray(rows[sample]))
        store.add(np.ascontiguousarray(rows))
        return store

    def add(self, items: Floats) -> None:
        """Codes of new items in their nearest cells; nothing is trained again."""
        first = self.ivf.ntotal
        rows = np.ascontiguousarray((items @ self.to) @ self.rotation.T)
        cell = assign(self.cells.centroids, items)
        self._add_core(rows, cell, first)
        if self.store is not None:
            self.store.add(items if self.refine == "fp16" else rows)
        for index in (self.index, self.refined, getattr(self.index, "base_index", None)):
            if index is not None:
                index.ntotal = self.ivf.ntotal

    def set(self, nprobe: int, compared: int = 0) -> None:
        self.ivf.nprobe = nprobe
        if self.refined is not None:
            self.refined.k_factor = compared / 10

    @property
    def code_bytes(self) -> int:
        return int(faiss.serialize_index(self.ivf).nbytes)


def fp16_store(items: Floats) -> Any:
    store = faiss.IndexScalarQuantizer(items.shape[1], faiss.ScalarQuantizer.QT_fp16, IP)
    store.train(np.asarray(items[:1], np.float32))
    add_blocks(store, items)
    return store


def add_blocks(index: Any, items: Floats) -> None:
    """Halves of a memory-mapped file never lie in memory as float32 all at once."""
    step = BLOCK if items.dtype == np.float16 else len(items)
    for at in range(0, len(items), step):
        index.add(np.asarray(items[at : at + step], np.float32))
