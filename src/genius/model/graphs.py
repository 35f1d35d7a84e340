"""`GraphModel`: a model folder that works without torch, by its stored graphs (`genius.encoders.graphs`).

It embeds items and queries, says which modality a query wants, and assigns codes. The graphs were traced from the torch modules
and compute from the same weight files, so there is one implementation of each part. What needs the decoder itself (beam search,
its trace) loads the torch model when it is first used. A model of vectors of the user's own needs no graphs: their embedding is
their unit sum, and its bank of queries says which modality is wanted.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from genius.encoders import resolve
from genius.encoders.graphs import GraphEncoder, Graphs, has_graphs
from genius.errors import GeniusError
from genius.features import Features, check_finite
from genius.model.assignment import fill_codes
from genius.model.config import QuantizerConfig, encoder_uri, model_fingerprint, read_model_config
from genius.model.embedding import Embedder
from genius.model.query_bank import QueryBank
from genius.optional import LazyPart, has_torch, import_torch
from genius.weight_arrays import array_names, check_digests, read_arrays

if TYPE_CHECKING:
    from genius.model.genius import Genius

WEIGHTS = "model.safetensors"
ENCODER = "encoder"
LEAST_LENGTH = 1e-12
CHUNK = 4096  # rows that are fused at a time


@dataclass(frozen=True, slots=True)
class CodebookArrays:
    """The codebooks of a quantizer, one per level, as arrays."""

    config: QuantizerConfig
    codebooks: list[NDArray[np.float32]]


class GraphModel(Embedder):
    """A model that runs on numpy and onnxruntime; vectors and codes are numpy arrays. Always on the CPU.

    Args:
        source: A folder, `local-dir:PATH`, `hf-hub:OWNER/NAME[@REVISION]` or `bundled:NAME`.

    Raises:
        GeniusError: If there is no such model, it has no graphs, or a file is damaged or exchanged.

    >>> from genius.model.graphs import GraphModel
    >>> from genius import Query
    >>> GraphModel("bundled:mini").embed_queries([Query("a red bicycle")]).z.shape
    (1, 256)
    """

    device = "cpu"

    def __init__(self, source: str | Path) -> None:
        directory = resolve(source)
        self.directory = directory
        self.source = str(source)
        self.config = read_model_config(directory)
        self.graphs: Graphs | None = None
        self.encoder = None
        if not has_graphs(directory) and holds_vectors(directory):
            check_digests(directory)
        else:
            self.graphs = Graphs(directory)
            self._take(_encoder_of(directory, self.config.encoder))
        if self.graphs and self.encoder and self.encoder.fingerprint() != self.graphs.settings.get("encoder"):
            raise GeniusError(f"{directory} has graphs for another encoder: run genius export graphs again")
        self._learn_from(directory)

    def __repr__(self) -> str:
        return f"GraphModel({self.source!r}, {self.config.width} wide)"

    def to(self, device: str) -> GraphModel:
        """The model itself.

        Args:
            device: cpu or auto.

        Raises:
            GeniusError: For any other device: graphs run on the CPU.
        """
        if device not in ("cpu", "auto"):
            raise GeniusError(f"a model of stored graphs runs on the CPU, not on {device!r}")
        return self

    def embed(self, features: Features) -> tuple[Any, Any]:
        """Features -> (z, dense), unit vectors (N, D).

        Args:
            features: N items or queries.
        """
        features.check(self.config.width)
        if self.graphs is None:
            return _unit_sum(features)
        parts: list[list[NDArray[np.float32]]] = []
        for start in range(0, max(len(features), 1), CHUNK):
            image, text = features[start : start + CHUNK].masked()
            inputs: Any = {"image": image, "text": text}
            parts.append(self.graphs.run("fusion", inputs))
        outputs = [np.concatenate(part) for part in zip(*parts, strict=True)]
        return outputs[0], outputs[-1]

    def assign(self, z: NDArray[np.float32], modality: NDArray[np.int64]) -> NDArray[np.int64]:
        """Codes of unit vectors.

        Args:
            z: (N, D).
            modality: (N,) of the items.

        Returns:
            (N, M) codes, by the lines that the torch quantizer runs (`genius.model.assignment`).
        """
        check_finite(z, "vectors")  # type: ignore[arg-type]
        config = self.config.quantizer
        codes = np.empty((len(z), config.levels), np.int64)
        fill_codes(config, self._codebook, z, modality.astype(np.int64), codes)
        return codes

    def _codebook(self, level: int, modality: int | None) -> NDArray[np.float32]:
        codebook = self._codebooks[self.config.quantizer.codebook_number(level)]
        if modality is None:
            return codebook
        return codebook[self.config.quantizer.codebook_rows(level, modality)]

    @cached_property
    def _codebooks(self) -> list[NDArray[np.float32]]:
        config = self.config.quantizer
        if config.family != "residual":
            import_torch(f"the quantizer {config.family!r}")
            raise GeniusError(f"codes of the quantizer {config.family!r} are assigned by the torch model only")
        names = [f"quantizer.codes_{number}" for number in range(config.codebook_number(config.levels - 1) + 1)]
        arrays = read_arrays(self.directory / WEIGHTS, names)
        for number, name in enumerate(names):
            if arrays[name].shape != (config.codebook_size(number), config.width):
                raise GeniusError(
                    f"{self.directory / WEIGHTS}: {name} has shape {arrays[name].shape}, which does not fit the config"
                )
        return [arrays[name] for name in names]

    def reconstruct(self, codes: NDArray[np.int64]) -> NDArray[np.float32]:
        """(N, D) sums of code vectors.

        Args:
            codes: (N, M).
        """
        config = self.config.quantizer
        total = np.zeros((len(codes), config.width), np.float32)
        for level in range(config.levels):
            rows = codes[:, level]
            if config.has_modality_codebooks(level):
                rows = rows + codes[:, 0] * config.level_sizes[level]
            total += self._codebook(level, None)[rows]
        return total

    def modality_log_probs(self, z: NDArray[np.float32]) -> NDArray[np.float32]:
        """(N, 3) log p(modality | query): the decoder's first step.

        Args:
            z: (N, D) queries.

        Raises:
            GeniusError: For a model of vectors of the user's own, whose bank of queries has a probe for it.
        """
        if self.graphs is None:
            raise GeniusError(f"{self.directory} has no probe for the modality of queries")
        return self.graphs.run("modality", {"z": z})[0]

    @cached_property
    def quantizer(self) -> LazyPart:
        """What a search needs of the quantizer, loaded when it is first needed: its codebooks, where they are arrays."""
        return LazyPart(self.config.quantizer, self._quantizer)

    def _quantizer(self) -> Any:
        config = self.config.quantizer
        if config.family != "residual":
            return self.torch_model.quantizer
        codebooks = [self._codebooks[config.codebook_number(level)] for level in range(config.levels)]
        return CodebookArrays(config, codebooks)

    @cached_property
    def generator(self) -> LazyPart:
        """The torch decoder, loaded when it is first needed; its first step is a graph."""
        return LazyPart(self.config.generator, lambda: self.torch_model.generator, self.modality_log_probs)

    @cached_property
    def torch_model(self) -> Genius:
        """The same model in torch.

        Raises:
            GeniusError: If torch is not installed.
        """
        import_torch("a beam search and what reads the decoder")
        from genius.model.genius import Genius

        return Genius.from_pretrained(self.source)

    def fingerprint(self) -> str:
        """The torch model's."""
        if self.graphs is not None:
            return self.graphs.fingerprint
        path = self.directory / WEIGHTS
        return model_fingerprint(self.config, read_arrays(path, array_names(path)), None)


def _unit_sum(features: Features) -> tuple[Any, Any]:
    """(z, dense) of vectors that are their own embedding; both are the same."""
    image, text = features.masked()
    total: Any = image + text
    lengths = np.maximum(np.linalg.norm(total, axis=1, keepdims=True), LEAST_LENGTH)
    z = (total / lengths).astype(np.float32)
    return z, z


def holds_vectors(directory: Path) -> bool:
    """Whether a model folder is one of the user's own vectors: no encoder, and a fusion that is the unit sum.

    Args:
        directory: Of the model.
    """
    config = read_model_config(directory)
    if config.encoder is not None or (directory / ENCODER).exists():
        return False
    queries = QueryBank.load(directory, config.width)
    if queries is None or queries.probe_weight is None:
        return False
    if config.rerank_embedding != "fused" or config.quantizer.family != "residual":
        return False
    path = directory / WEIGHTS
    fusion = [name for name in array_names(path) if name.startswith("fusion.")]
    return bool(fusion) and not any(weight.any() for weight in read_arrays(path, fusion).values())


def _encoder_of(directory: Path, uri: str | None) -> GraphEncoder | None:
    """The encoder of a model folder: its own, the one that its config names, or none."""
    folder = directory / ENCODER
    if uri is not None:
        folder = resolve(encoder_uri(directory, uri))
        if (folder / ENCODER).is_dir():  # a model with an encoder
            folder = folder / ENCODER
    elif not folder.is_dir():
        return None
    return GraphEncoder.load(folder)


def load_model(source: str | Path, *, graphs: bool = False) -> Genius:
    """A model: `Genius`, or a `GraphModel`, which does what an index needs of one.

    Args:
        source: As for `Genius.from_pretrained`.
        graphs: Take stored graphs where there are any, though torch is installed: they start in a tenth of the time.

    Returns:
        A `GraphModel` if asked for or if torch is missing, else a `Genius`.

    Raises:
        GeniusError: If there is no such model; or it has no graphs and torch is not installed.
    """
    directory = resolve(source)
    if (graphs or not has_torch()) and (has_graphs(directory) or (directory.is_dir() and holds_vectors(directory))):
        return GraphModel(source)  # type: ignore[return-value]
    import_torch(f"the model {source}, which has no stored graphs,")
    from genius.model.genius import Genius

    return Genius.from_pretrained(source)
