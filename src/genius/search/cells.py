"""`Cells`: vectors as product codes in an inverted file, in the metric of queries (Faiss IVF-PQ).

- Cells are spherical k-means of the vectors; an item belongs to the nearest cell *in the original space*.
- Codes describe the residual x - mean(cell), after x -> A x with A = C^(1/2), C = E[q q^T] of queries, and a rotation (OPQ): the
  quantization error counts where queries look. Queries see A^-T q, so inner products stay what they were.
- A search ranks cells by q . mean(cell) and scans the codes in the best ones.

Knows vectors and rows; nothing of modalities, filters' meaning or files.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import faiss as _faiss
import numpy as np
from numpy.typing import NDArray

from genius.search.arrays import Floats, Ints
from genius.search.vectors import Vectors

faiss: Any = _faiss  # its type stubs lag behind it
CODE_BYTES = 16  # product codes of 8 bits per item, at least
WIDTH_PER_CODE = 16  # dimensions per code of wide vectors: 48 bytes at 768
POINTS_PER_CELL = 64  # vectors per cell that k-means sees
KMEANS_ITERATIONS = 8
CODE_SAMPLE = 20_000  # residuals that product codes are fitted to
ITEM_SHARE = 0.25  # of the items' second moment in the metric of codes
CODE_ITERATIONS = 12
SEED = 1
BLOCK = 16_384  # vectors that are assigned to cells together


class Cells:
    """The codes of one modality in an inverted file.

    Args:
        arrays: `centroids` (cells, D) unit vectors that items are assigned by, `means` (cells, D) of their items,
            `item_transform` and `query_transform` (D, D), `codebooks` (S, 256, D / S), and, sorted by cell, `codes` (n, S) uint8,
            `rows` (n,) and `sizes` (cells,).
        fitted: Items that centroids and codebooks were fitted to.
    """

    def __init__(self, arrays: dict[str, NDArray[Any]], fitted: int) -> None:
        self.centroids: Floats = np.ascontiguousarray(arrays["centroids"], np.float32)
        self.means: Floats = np.ascontiguousarray(arrays["means"], np.float32)
        self.item_transform: Floats = np.ascontiguousarray(arrays["item_transform"], np.float32)
        self.query_transform: Floats = np.ascontiguousarray(arrays["query_transform"], np.float32)
        self.codebooks: Floats = np.ascontiguousarray(arrays["codebooks"], np.float32)
        self.fitted = fitted
        self.count, self.width = self.means.shape
        self.index = self._inverted_file()
        self._parameters: dict[int, Any] = {}  # of unfiltered searches, by cells probed
        self._fill(self.index, arrays["codes"], np.asarray(arrays["rows"], np.int64), arrays["sizes"])

    @classmethod
    def build(cls, vectors: Vectors, rows: Ints, metric: Floats | None) -> Cells:
        """Fit cells and codes to the vectors of some rows.

        Args:
            vectors: By row.
            rows: (n,) of one modality, ascending.
            metric: (D, D) C = E[q q^T] of queries; None: the identity.
        """
        count = max(1, int(4 * len(rows) ** 0.5) // 64) * 64
        generator = np.random.default_rng(SEED)
        chosen = np.sort(generator.permutation(len(rows))[: POINTS_PER_CELL * count])
        sample = vectors.arrays.host(vectors.take(rows[chosen]))
        width = sample.shape[1]
        kmeans = faiss.Kmeans(
            width,
            count,
            niter=KMEANS_ITERATIONS,
            spherical=True,
            seed=SEED,
            min_points_per_centroid=1,
            max_points_per_centroid=POINTS_PER_CELL,
        )
        kmeans.train(sample)
        centroids = np.ascontiguousarray(kmeans.centroids, np.float32)
        nearest = faiss.IndexFlatIP(width)
        nearest.add(centroids)
        cell = np.empty(len(rows), np.int64)
        means = np.zeros((count, width), np.float64)
        for first, block in _blocks(vectors, rows):
            own = nearest.search(block, 1)[1][:, 0]
            cell[first : first + len(block)] = own
            _add_by_cell(means, own, block)
        sizes = np.bincount(cell, minlength=count)
        means = np.where(sizes[:, None] > 0, means / np.maximum(sizes, 1)[:, None], centroids).astype(np.float32)
        root, inverse = _roots(_mixed(metric, sample), width)
        residuals = (sample - means[cell[chosen]])[generator.permutation(len(sample))[:CODE_SAMPLE]] @ root
        rotation, codebooks = _fit_codes(np.ascontiguousarray(residuals), width)
        item_transform = np.ascontiguousarray(root @ rotation.T)
        quantizer = _product_quantizer(codebooks)
        codes = np.empty((len(rows), len(codebooks)), np.uint8)
        for first, block in _blocks(vectors, rows):
            own = cell[first : first + len(block)]
            codes[first : first + len(block)] = quantizer.compute_codes(
                np.ascontiguousarray((block - means[own]) @ item_transform)
            )
        order = np.argsort(cell, kind="stable")
        arrays: dict[str, NDArray[Any]] = {
            "centroids": centroids,
            "means": means,
            "item_transform": item_transform,
            "query_transform": inverse @ rotation.T,
            "codebooks": codebooks,
            "codes": codes[order],
            "rows": rows[order],
            "sizes": sizes,
        }
        return cls(arrays, len(rows))

    def __len__(self) -> int:
        return int(self.index.ntotal)

    def _inverted_file(self) -> Any:
        """An empty one. Its own quantizer only gives the centroids that residuals are relative to."""
        subspaces = len(self.codebooks)
        coarse = faiss.IndexFlatIP(self.width)
        coarse.add(np.ascontiguousarray(self.means @ self.item_transform))
        index = faiss.IndexIVFPQ(coarse, self.width, self.count, subspaces, 8, faiss.METRIC_INNER_PRODUCT)
        index.own_fields = True
        coarse.this.disown()
        index.by_residual = True
        faiss.copy_array_to_vector(self.codebooks.ravel(), index.pq.centroids)
        index.is_trained = True
        return index

    @staticmethod
    def _fill(index: Any, codes: NDArray[Any], rows: Ints, sizes: NDArray[Any]) -> None:
        """Append codes (n, S) and rows (n,), sorted by cell, of which each cell has `sizes`."""
        codes = np.ascontiguousarray(codes, np.uint8)
        rows = np.ascontiguousarray(rows, np.int64)
        ends = np.cumsum(sizes)
        lists = index.invlists
        for cell in np.flatnonzero(sizes).tolist():
            end = int(ends[cell])
            start = end - int(sizes[cell])
            lists.add_entries(cell, end - start, faiss.swig_ptr(rows[start:end]), faiss.swig_ptr(codes[start:end]))
        index.ntotal += len(rows)

    def extended(self, vectors: Vectors, rows: Ints) -> Cells:
        """These items and those of more rows, coded by the same cells and codebooks; these stay as they are."""
        nearest = faiss.IndexFlatIP(self.width)
        nearest.add(self.centroids)
        quantizer = self.index.pq
        cells = []
        codes = []
        for _, block in _blocks(vectors, rows):
            own = nearest.search(block, 1)[1][:, 0]
            cells.append(own)
            codes.append(quantizer.compute_codes(np.ascontiguousarray((block - self.means[own]) @ self.item_transform)))
        cell = np.concatenate(cells)
        order = np.argsort(cell, kind="stable")
        grown = object.__new__(Cells)
        grown.__dict__.update(self.__dict__)
        grown.index = faiss.clone_index(self.index)
        sizes = np.bincount(cell, minlength=self.count)
        self._fill(grown.index, np.concatenate(codes)[order], rows[order], sizes)
        return grown

    def search(self, queries: Floats, count: int, probes: int, allowed: RowSelector | None = None) -> tuple[Floats, Ints]:
        """Scan the codes of the best cells.

        Args:
            queries: (Q, D).
            count: Candidates per query.
            probes: Cells per query.
            allowed: Rows that may be found; None: all.

        Returns:
            Scores by codes and rows, (Q, count) each, best first; rows are -1 where fewer are in the cells.
        """
        cell_scores = queries @ self.means.T
        if probes < self.count:
            cells = np.argpartition(cell_scores, self.count - probes, axis=1)[:, self.count - probes :]
            cell_scores = cell_scores[np.arange(len(queries))[:, None], cells]
        else:
            cells = np.tile(np.arange(self.count), (len(queries), 1))
        cells = np.ascontiguousarray(cells)  # Faiss reads these arrays by their addresses
        transformed = np.ascontiguousarray(queries @ self.query_transform)
        scores = np.empty((len(queries), count), np.float32)
        rows = np.empty((len(queries), count), np.int64)
        pointer = faiss.swig_ptr
        self.index.search_preassigned_c(
            len(queries),
            pointer(transformed),
            count,
            pointer(cells),
            pointer(cell_scores),
            pointer(scores),
            pointer(rows),
            False,
            self._search_parameters(probes, allowed),
        )
        return scores, rows

    def _search_parameters(self, probes: int, allowed: RowSelector | None) -> Any:
        if allowed is not None:
            return faiss.SearchParametersIVF(nprobe=probes, sel=allowed.selector)
        if probes not in self._parameters:
            self._parameters[probes] = faiss.SearchParametersIVF(nprobe=probes)
        return self._parameters[probes]

    def arrays(self) -> dict[str, NDArray[Any]]:
        """What `Cells(arrays, fitted)` is made of."""
        lists = self.index.invlists
        sizes = np.array([lists.list_size(cell) for cell in range(self.count)], np.int64)
        codes = np.empty((len(self), len(self.codebooks)), np.uint8)
        rows = np.empty(len(self), np.int64)
        ends = np.cumsum(sizes)
        for cell in np.flatnonzero(sizes).tolist():
            size = int(sizes[cell])
            own = slice(int(ends[cell]) - size, int(ends[cell]))
            codes[own] = faiss.rev_swig_ptr(lists.get_codes(cell), size * codes.shape[1]).reshape(size, -1)
            rows[own] = faiss.rev_swig_ptr(lists.get_ids(cell), size)
        return {
            "centroids": self.centroids,
            "means": self.means,
            "item_transform": self.item_transform,
            "query_transform": self.query_transform,
            "codebooks": self.codebooks,
            "codes": codes,
            "rows": rows,
            "sizes": sizes,
        }


def _blocks(vectors: Vectors, rows: Ints) -> Iterator[tuple[int, Floats]]:
    """First position among `rows` and (n, D) of consecutive blocks."""
    for first in range(0, len(rows), BLOCK):
        yield first, vectors.arrays.host(vectors.take(rows[first : first + BLOCK]))


def _add_by_cell(sums: NDArray[np.float64], cell: Ints, block: Floats) -> None:
    """Add each vector of a block (n, D) to the sum of its cell (n,)."""
    order = np.argsort(cell, kind="stable")
    cells, starts = np.unique(cell[order], return_index=True)
    sums[cells] += np.add.reduceat(block[order], starts, axis=0)


def _mixed(metric: Floats | None, items: Floats) -> Floats | None:
    """The metric of queries with a share of the items' own second moment.

    Queries that the metric was not fitted to (image queries where texts were expected) then find as much as in the original
    space; with the metric of queries alone they lost .01 to .02 of recall@10. The fitted ones lose nothing.
    """
    if metric is None:
        return None
    second_moment = items.T @ items / len(items)
    mixed: Floats = (1 - ITEM_SHARE) * metric / metric.trace() + ITEM_SHARE * second_moment / second_moment.trace()
    return mixed


def _roots(metric: Floats | None, width: int) -> tuple[Floats, Floats]:
    """C^(1/2) and C^(-1/2)."""
    if metric is None:
        identity = np.eye(width, dtype=np.float32)
        return identity, identity
    values, vectors = np.linalg.eigh(metric.astype(np.float64))
    roots = np.sqrt(np.maximum(values, 1e-6 * values.max()))
    root = (vectors * roots) @ vectors.T
    inverse = (vectors / roots) @ vectors.T
    return root.astype(np.float32), inverse.astype(np.float32)


def _fit_codes(residuals: Floats, width: int) -> tuple[Floats, Floats]:
    """Rotation (D, D) and codebooks (S, 256, D / S) for residuals (n, D).

    Principal directions are dealt out to subspaces of like variance (parametric OPQ), then each subspace is clustered. On vectors
    of photos that left a smaller error than iterated OPQ did, in half the time.
    """
    subspaces = max(CODE_BYTES, width // WIDTH_PER_CODE)
    while width % subspaces:
        subspaces //= 2
    rotation = _balanced_directions(residuals, subspaces)
    quantizer = faiss.ProductQuantizer(width, subspaces, 8)
    quantizer.cp.niter = CODE_ITERATIONS
    quantizer.cp.seed = SEED
    quantizer.cp.min_points_per_centroid = 1
    quantizer.cp.max_points_per_centroid = CODE_SAMPLE
    points = residuals @ rotation.T
    if len(points) < 256:  # k-means wants as many points as centroids
        points = np.tile(points, (256 // len(points) + 1, 1))
    quantizer.train(np.ascontiguousarray(points))
    codebooks = faiss.vector_to_array(quantizer.centroids).reshape(subspaces, 256, -1)
    return rotation, codebooks


def _balanced_directions(points: Floats, subspaces: int) -> Floats:
    """(D, D) principal directions, ordered so that every subspace gets like shares of the variance (in the geometric mean)."""
    values, vectors = np.linalg.eigh((points.T @ points).astype(np.float64))
    size = len(values) // subspaces
    members: list[list[int]] = [[] for _ in range(subspaces)]
    weight = [0.0] * subspaces
    for direction in reversed(range(len(values))):
        open_ones = [place for place in range(subspaces) if len(members[place]) < size]
        place = min(open_ones, key=lambda one: weight[one])
        members[place].append(direction)
        weight[place] += np.log(max(values[direction], 1e-12)) + 30  # the logarithm of a product, kept positive
    order = [direction for own in members for direction in own]
    return np.ascontiguousarray(vectors[:, order].T, np.float32)


def _product_quantizer(codebooks: Floats) -> Any:
    subspaces, _, part = codebooks.shape
    quantizer = faiss.ProductQuantizer(subspaces * part, subspaces, 8)
    faiss.copy_array_to_vector(codebooks.ravel(), quantizer.centroids)
    return quantizer


class RowSelector:
    """Rows that a search may return, as Faiss reads them.

    Args:
        mask: (N,) bool.
    """

    def __init__(self, mask: NDArray[np.bool_]) -> None:
        self._bits = np.packbits(mask, bitorder="little")  # Faiss keeps a pointer to it
        self.selector = faiss.IDSelectorBitmap(self._bits)
