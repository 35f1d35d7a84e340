"""`Genius`: encoder + fusion + quantizer + generator as one model that saves, loads and has a fingerprint.

On disk (and on a hub) a model is a folder: `config.json`, `model.safetensors`, and `encoder/` if it brings its
own. Never pickle. The encoder is optional: a model converted from published checkpoints works on features.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from genius.config import to_dict
from genius.encoders import GRAPHS
from genius.encoders.base import Encoder, find_device
from genius.errors import GeniusError, said
from genius.features import Features
from genius.files import write_json, write_whole
from genius.instructions import FILE as INSTRUCTIONS
from genius.model.config import (
    CONFIG,
    FORMAT,
    SCALES,
    GeniusConfig,
    current_name,
    encoder_uri,
    model_fingerprint,
    read_model_config,
)
from genius.model.embedding import Embedder
from genius.model.generator import Generator
from genius.model.known_items import KNOWS, Knows, save_knows
from genius.model.quantizer import Fusion, ResidualQuantizer, build_quantizer, score_fusion
from genius.model.query_bank import FILE as QUERIES
from genius.model.query_bank import QueryBank
from genius.types import Item
from genius.weight_arrays import check_digests, tensor_names, unpack, write_digests
from genius.weight_files import build, check_fit, pack, read_shapes, read_tensors

WEIGHTS = "model.safetensors"
ENCODER = "encoder"


class Fitting(Protocol):
    """An encoder on its way to becoming a model (`genius.fit.Unfitted`)."""

    def fit(self, items: Iterable[Item]) -> Genius: ...


class Network(nn.Module):
    """The weights of a model, named as in its file."""

    def __init__(self, config: GeniusConfig) -> None:
        super().__init__()
        self.fusion = Fusion(config.fusion)
        self.quantizer = build_quantizer(config.quantizer)
        self.generator = Generator(config.generator, self.quantizer)
        self.eval()


class Genius(Embedder):
    """The model: pictures and words -> vectors -> codes, and how likely each code is.

    Get one with `Genius.from_pretrained("bundled:mini")`, or fit one to your own items with
    `Genius.from_encoder(uri).fit(items)`; then `Index(path, model)` holds items and searches them.

    Args:
        config: sizes and settings, without the weights.
        encoder: what turns pictures and texts into vectors; None for a model that works on stored features only.

    Attributes:
        config: as given.
        encoder: as given. Its weights have their own files and fingerprint.
        network: the weights as a torch module with the parts `fusion`, `quantizer` and `generator`.
        source: where it was loaded from, so that an index can find its model again.
        knows: how closely its codes describe the items it was made from.
        queries: a sample of the queries it was trained on (`genius.model.query_bank`); None for a model without one.
        instructions: those it was trained with (`genius.instructions`), into which others are put; None: not known.

    Examples:
        >>> from genius import Genius, Item, Query
        >>> model = Genius.from_pretrained("bundled:mini")
        >>> model
        Genius('bundled:mini', 256 wide, IDs of 3 x 512 x 512 x 512 x 512 x 512 x 512 x 512 x 512, encoder MiniEncoder)
        >>> model.embed_queries([Query("a red bicycle")]).z.shape
        torch.Size([1, 256])
    """

    def __init__(self, config: GeniusConfig, encoder: Encoder | None = None) -> None:
        self.config = config
        self.network = Network(config)
        self.source: str | None = None
        self.knows: Knows | None = None
        self.queries: QueryBank | None = None
        self._take(encoder)

    def __repr__(self) -> str:
        sizes = " x ".join(map(str, self.config.quantizer.level_sizes))
        encoder = "no encoder"
        if self.encoder is not None:
            encoder = f"encoder {type(self.encoder).__name__}"
        return f"Genius({self.source or 'not saved'!r}, {self.config.width} wide, IDs of {sizes}, {encoder})"

    @property
    def fusion(self) -> Fusion:
        """Two vectors of an item or a query -> one, z."""
        return self.network.fusion

    @property
    def quantizer(self) -> ResidualQuantizer:
        """z -> codes, and back."""
        return self.network.quantizer

    @property
    def generator(self) -> Generator:
        """The decoder: z and the codes so far -> log p of the next."""
        return self.network.generator

    @property
    def device(self) -> torch.device:
        """Where codes and log p are computed."""
        return self.generator.device

    def to(self, device: str | torch.device) -> Genius:
        """Move the model and its encoder; returns the model.

        Args:
            device: cpu, cuda, cuda:N, or auto: a GPU where there is one.

        Examples:
            >>> Genius.from_pretrained("bundled:mini").to("cpu").device
            device(type='cpu')
        """
        where = find_device(str(device))
        self.network.to(where)
        if isinstance(self.encoder, nn.Module):
            self.encoder.to(where)
        return self

    # -- embedding ---------------------------------------------------------------------------------------------

    @torch.no_grad()
    def embed(self, features: Features, chunk: int = 4096) -> tuple[Tensor, Tensor]:
        """What an encoder gave -> (z, dense), unit vectors (N, D): what codes are made of, and what re-ranking compares.

        Args:
            features: N items or queries as two vectors each and which of them are there.
            chunk: rows at a time, so that memory does not grow with N.
        """
        features = features.as_tensors().check(self.config.width)
        z = self.fusion.embed(features, chunk)
        if self.config.rerank_embedding == "fused":
            return z, z  # not a second copy of what may be gigabytes
        parts = [features[i : i + chunk].to(self.device, torch.float32) for i in range(0, max(len(features), 1), chunk)]
        return z, torch.cat([score_fusion(part) for part in parts])

    def assign(self, z: Tensor, modality: Any) -> Tensor:
        """Codes (N, M) of unit vectors.

        Args:
            z: (N, D).
            modality: (N,) of the items, a tensor or an array.
        """
        if not self.config.quantizer.labelled:
            return self.quantizer.encode(z)
        return self.quantizer.encode(z, torch.as_tensor(modality, device=z.device))

    def reconstruct(self, codes: Any) -> Tensor:
        """(N, D) sums of code vectors.

        Args:
            codes: (N, M), a tensor or an array.
        """
        return self.quantizer.decode(torch.as_tensor(codes, device=self.device))

    def _on_device(self, array: Tensor) -> Tensor:
        return array.to(self.device)

    # -- save and load -----------------------------------------------------------------------------------------

    def fingerprint(self) -> str:
        """Hex digest of the configuration and every weight, the encoder's included: an index refuses a model with another.

        Examples:
            >>> Genius.from_pretrained("bundled:mini").fingerprint() == Genius.from_pretrained("bundled:mini").fingerprint()
            True
        """
        encoder = None
        if self.encoder is not None:
            encoder = self.encoder.fingerprint()
        return model_fingerprint(self.config, self.network.state_dict(), encoder)

    def save_pretrained(self, directory: str | Path, *, dtype: torch.dtype = torch.float32, encoder: bool = True) -> None:
        """Write the model folder, which `from_pretrained` reads. Files appear whole or not at all.

        Args:
            directory: where; it is made if it is not there.
            dtype: of the weights. `torch.int8` takes about a quarter of the bytes.
            encoder: whether an encoder of its own is saved, too.

        Examples:
            >>> import tempfile
            >>> Genius.from_pretrained("bundled:mini").save_pretrained(folder := tempfile.mkdtemp())
            >>> Genius.from_pretrained(folder).config.width
            256
        """
        directory = Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        if dtype == torch.int8:
            tensors = pack(self.network.state_dict(), half=(".codes_",))  # codes decide IDs: they keep more digits
        else:
            tensors = {name: tensor.detach().cpu().to(dtype).contiguous() for name, tensor in self.network.state_dict().items()}
        body = {"format": FORMAT, "model": to_dict(self.config)}
        for name in (GRAPHS, KNOWS, QUERIES, INSTRUCTIONS):  # of the model that was here before
            (directory / name).unlink(missing_ok=True)
        write_whole(directory / WEIGHTS, lambda path: save_file(tensors, path, metadata={"format": "pt"}))
        if encoder and self.encoder is not None and self.config.encoder is None:
            self.encoder.save(directory / ENCODER)
        write_digests(directory, [WEIGHTS])
        if self.knows is not None:
            save_knows(directory, self.knows)
        if self.queries is not None:
            self.queries.save(directory)
        if self.instructions is not None:
            self.instructions.save(directory)
        write_json(directory / CONFIG, body, indent=2)

    def push_to_hub(self, repo_id: str, *, private: bool | None = None, token: str | None = None, **options: Any) -> str:
        """Upload the model with a model card to a Hugging Face hub.

        Args:
            repo_id: OWNER/NAME; created if it does not exist.
            private: Whether a new repository is private; None: the account's default.
            token: Access token; None: the one that `hf auth login` stored.
            options: `message` of the commit, and `card`: fields for the head of the card, such as `license`.

        Returns:
            The URI by which `from_pretrained` reads it.

        Raises:
            GeniusError: If the hub refuses, or `huggingface_hub` is not installed.
        """
        from genius.model.hub import push_to_hub

        return push_to_hub(self, repo_id, private=private, token=token, **options)

    @classmethod
    def from_encoder(cls, encoder: str | Path | object) -> Fitting:
        """Start a model from an encoder: `.fit(items)` fits codes and decoder to a collection, without query-item pairs.

        Args:
            encoder: A URI (`hf-hub:openai/clip-vit-base-patch32`, a folder with a checkpoint, `bundled:mini`), or an object: one
                with `encode_texts` and, if it reads images, `encode_images`; or a `SentenceTransformer`.

        Returns:
            The encoder with a method `fit(items)` that returns a `Genius`.

        Raises:
            GeniusError: If there is no such encoder, or the object has none of these methods.

        Examples:
            >>> model = Genius.from_encoder("bundled:mini").fit([Item("a.jpg", image="a.jpg")])  # doctest: +SKIP
        """
        from genius.fit import Unfitted  # a late import of a higher layer, the only one

        return Unfitted(encoder)

    @classmethod
    def from_pretrained(cls, source: str | Path, *, device: str | torch.device = "cpu", encoder: object | None = None) -> Genius:
        """Load a model.

        The folder may be untrusted: no code in it runs, its sizes are compared with its weights before anything is built, and
        its config can name no checkpoint outside of it.

        Args:
            source: A folder, `local-dir:PATH`, `hf-hub:OWNER/NAME[@REVISION]` or `bundled:NAME`.
            device: Where it runs: cpu, cuda, cuda:N or auto.
            encoder: The object that the model was fitted over (`from_encoder`), which a folder cannot hold.

        Raises:
            GeniusError: If there is no such model, a file is damaged, or `encoder` is another one than the model's.

        Examples:
            >>> Genius.from_pretrained("bundled:mini").config.width
            256
        """
        from genius.encoders import load_encoder, resolve
        from genius.encoders.objects import same_object

        directory = resolve(str(source))
        config = read_model_config(directory)
        path = directory / WEIGHTS
        shapes = read_shapes(path)
        shapes = {current_name(name): shapes[name] for name in tensor_names(shapes)}
        model = build(lambda: cls(config), shapes, str(path))
        current = model.network.state_dict()
        expected = {name: current[name].shape for name, shape in shapes.items() if one_for_all(name, shape, current)}
        check_fit(model.network, shapes | expected, str(path))
        check_digests(directory)
        try:
            weights = {current_name(name): tensor for name, tensor in unpack(read_tensors(path)).items()}
            model.network.load_state_dict(for_each_modality(weights, current))
        except GeniusError as error:
            raise GeniusError(f"cannot load the model at {directory}: {error}") from None
        model._try(directory)
        if encoder is not None:
            model._take(same_object(encoder, directory / ENCODER))
        elif config.encoder is not None:
            model._take(load_encoder(encoder_uri(directory, config.encoder)))
        elif (directory / ENCODER).is_dir():
            model._take(load_encoder(f"local-dir:{directory / ENCODER}"))
        model.source = str(source)
        model._learn_from(directory)
        return model.to(device)

    def _try(self, directory: Path) -> None:
        """One step of everything: settings that no weight's shape shows may still make a model that cannot compute."""
        blank = torch.zeros(1, self.config.width)
        try:
            z, _ = self.embed(Features(blank, blank, torch.tensor([True]), torch.tensor([True])))
            modality = None
            if self.config.quantizer.labelled:
                modality = torch.zeros(1, dtype=torch.long)
            codes = self.quantizer.encode(z, modality)
            with torch.no_grad():
                self.generator(z, codes)
        except Exception as error:  # whatever a config of nonsense leads to
            raise GeniusError(f"the model at {directory} fails on a test input: {said(error)}") from None


# -- weights from before every modality had its own a_l and b_l --------------------------------------------------


def one_for_all(name: str, shape: Sequence[int], wanted: Mapping[str, Tensor]) -> bool:
    """Whether a weight is from before every modality had its own a_l and b_l: one number per level."""
    return name.endswith(SCALES) and name in wanted and [3 * size for size in shape] == list(wanted[name].shape)


def for_each_modality(tensors: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights of today from such ones: all modalities of a level take its number."""
    old = [name for name, tensor in tensors.items() if one_for_all(name, tensor.shape, wanted)]
    return {**tensors, **{name: tensors[name].repeat_interleave(3) for name in old}}
