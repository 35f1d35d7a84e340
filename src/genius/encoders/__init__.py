"""Encoders: one protocol (`base`), one file per family, and here the registry: `load_encoder` takes a URI.

    PATH, local-dir:PATH          a folder of this project, of a `transformers` or `sentence-transformers` model, or of open_clip
    hf-hub:OWNER/NAME[@REVISION]  the same on a hub, downloaded once, weights as safetensors only
    bundled:NAME                  a model that ships with this package
    uniir:PATH                    UniIR's CLIP-SF checkpoint (`clip_sf_large.pth`)

Objects in place of URIs: `objects`. A family's module is imported when one of its encoders is loaded.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from genius.encoders.base import Encoder, encode_items, encode_queries
from genius.errors import GeniusError, said
from genius.files import read_json, write_json
from genius.weight_arrays import check_digests, write_digests

__all__ = ["Encoder", "encode_items", "encode_queries", "load_encoder", "register", "resolve"]

MAX_CONFIG = 1 << 20  # bytes of a JSON file that describes an encoder

GRAPHS = "graphs.json"
"""File that says which graphs belong to the weights of a folder (`genius.encoders.graphs`)."""

SPEC = "encoder.json"
"""File that names the family of an encoder folder and its settings."""

FAMILIES: dict[str, str] = {
    # family -> "module:class"; the class has `load(directory, spec) -> Encoder`
    "clip": "genius.encoders.transformers_dual:ClipEncoder",
    "siglip": "genius.encoders.transformers_dual:SiglipEncoder",
    "siglip2": "genius.encoders.transformers_dual:Siglip2Encoder",
    "open-clip": "genius.encoders.checkpoints:OpenClipFolder",
    "uniir": "genius.encoders.checkpoints:UniirCheckpoint",
    "object": "genius.encoders.objects:SavedObject",
    "towers": "genius.encoders.towers:TowersEncoder",
    "mini": "genius.encoders.mini:MiniEncoder",
}


def register(family: str, place: str) -> None:
    """Add a family of encoders of another package.

    Args:
        family: Its name in `encoder.json`. Built-in families cannot be replaced.
        place: "module:class"; the class has `load(directory, spec) -> Encoder`.
    """
    module, colon, attribute = place.partition(":")
    if not (module and colon and attribute):
        raise GeniusError(f"an encoder family is registered as 'module:class', got {place!r}")
    if FAMILIES.get(family, place) != place:
        raise GeniusError(f"there is an encoder family {family!r} already: {FAMILIES[family]}")
    FAMILIES[family] = place


# `model_type` of a transformers config -> our family (fixed-size SigLIP 2 says "siglip"; "siglip2" is NaFlex)
TRANSFORMERS_TYPES: dict[str, str] = {"clip": "clip", "siglip": "siglip", "siglip2": "siglip2"}

# text-only models, refused with a hint
TEXT_ONLY = frozenset(
    ("bert", "roberta", "distilbert", "mpnet", "xlm-roberta", "modernbert", "t5", "gpt2", "llama", "qwen2", "qwen3", "mistral")
)
OPEN_CLIP = "open_clip_config.json"

HUB_FILES = ["*.json", "*.safetensors", "*.txt", "*.model", "*.onnx", "*/*.json", "*/*.safetensors", "*/*.onnx"]
"""Files that are downloaded from a hub: never pickles."""


def resolve(uri: str | Path) -> Path:
    """The local folder of a URI (for `uniir:` the file).

    Args:
        uri: Of an encoder or a model.

    Raises:
        GeniusError: If there is none.
    """
    scheme, _, name = str(uri).partition(":")
    if scheme == "bundled" and name:
        return _bundled(name)
    if scheme == "hf-hub" and name:
        return _from_hub(name)
    path = Path(uri)
    if scheme in ("local-dir", "uniir") and name:
        path = Path(name)
    path = path.expanduser()
    if not path.exists():
        raise GeniusError(f"no such model: {uri} (use a folder, local-dir:PATH, hf-hub:OWNER/NAME[@REVISION] or bundled:NAME)")
    return path


def load_encoder(uri: str | Path, device: str = "cpu", share: int = 0) -> Encoder:
    """Load an encoder.

    Args:
        uri: Of an encoder, or of a model with an encoder.
        device: cpu, cuda, cuda:N or auto (a GPU if there is one).
        share: Number of this process among several: with auto, each takes the next GPU.

    Raises:
        GeniusError: If there is no such encoder, or it cannot be read.
    """
    from genius.encoders.base import find_device

    place = find_device(device, share)  # before weights are read
    encoder = _load(uri)
    move = getattr(encoder, "to", None)
    if place.type != "cpu" and callable(move):
        move(place)
    return encoder


def _load(uri: str | Path) -> Encoder:
    path = resolve(uri)
    if str(uri).startswith("uniir:") or path.suffix == ".pth":
        return _family("uniir").load(path, {})  # type: ignore[no-any-return]
    if path.is_file():
        raise GeniusError(f"{path} is a file; an encoder is a folder (or a UniIR checkpoint: uniir:{path})")
    if not (path / SPEC).is_file() and (path / "encoder" / SPEC).is_file():
        path = path / "encoder"
    if not (path / SPEC).is_file() and (path / "modules.json").is_file():
        path = _image_module(path)
    family, spec = read_spec(path)
    try:
        check_digests(path)
    except GeniusError as error:
        raise GeniusError(f"cannot load the encoder at {path}: {error}") from None
    return _family(family).load(path, spec)  # type: ignore[no-any-return]


def read_spec(directory: Path) -> tuple[str, dict[str, Any]]:
    """Family and settings of a folder, from `encoder.json`, a transformers `config.json` or an open_clip config.

    Raises:
        GeniusError: If the folder holds no encoder, or one of an unknown family.
    """
    own = _read_json(directory / SPEC)
    if own is not None:
        family = own.get("family")
        if not isinstance(family, str) or family not in FAMILIES:
            raise GeniusError(f"{directory / SPEC} names an unknown encoder family {family!r}; known: {', '.join(FAMILIES)}")
        return family, own
    foreign = _read_json(directory / "config.json")
    model_type = (foreign or {}).get("model_type")
    if model_type not in TRANSFORMERS_TYPES and (directory / OPEN_CLIP).is_file():
        return "open-clip", {}
    if foreign is None:
        raise GeniusError(f"no encoder at {directory}: neither {SPEC} nor a transformers config.json nor {OPEN_CLIP}")
    if model_type in TEXT_ONLY:
        raise GeniusError(
            f"{directory} holds a {model_type!r}, which reads texts only: choose an encoder with an image tower, such as a CLIP"
        )
    if not isinstance(model_type, str) or model_type not in TRANSFORMERS_TYPES:
        raise GeniusError(
            f"{directory} holds a {model_type or 'model of unknown type'!r}, not an encoder this version reads "
            f"({', '.join(TRANSFORMERS_TYPES)})"
        )
    return TRANSFORMERS_TYPES[model_type], {}


def _image_module(directory: Path) -> Path:
    """The image module of a sentence-transformers folder; only a `Normalize` layer may follow it."""
    listed = read_json(directory / "modules.json", MAX_CONFIG)
    if not isinstance(listed, list):
        listed = []
    modules = [entry for entry in listed if isinstance(entry, dict)]
    types = [str(entry.get("type", "?")).rpartition(".")[2] for entry in modules]
    paths = [directory / Path(str(entry.get("path", ""))).name for entry in modules]
    if not modules:
        raise GeniusError(f"{directory / 'modules.json'} lists no modules")
    other = next((name for name in types[1:] if name != "Normalize"), None)
    if other == "Pooling" or (other is None and not (paths[0] / "config.json").is_file()):
        raise GeniusError(
            f"{directory} is a sentence-transformers model that reads texts only: choose one with an image tower, "
            "such as a CLIP, or pass the object to Genius.from_encoder"
        )
    if other is not None:
        raise GeniusError(f"{directory} has a {other} layer after its towers, which is not supported")
    return paths[0]


def write_spec(directory: Path, family: str, settings: dict[str, Any] | None = None) -> None:
    """Write `encoder.json` and `digests.json`. Call it last: a folder without them is no encoder.

    Args:
        directory: The encoder's folder.
        family: A name in `FAMILIES`.
        settings: What the family's `load` needs, as JSON-ready values.
    """
    directory.mkdir(parents=True, exist_ok=True)
    (directory / GRAPHS).unlink(missing_ok=True)  # graphs of the weights that were here before
    write_digests(directory)
    write_json(directory / SPEC, {"family": family, **(settings or {})}, indent=2)


def bundled_names() -> list[str]:
    """Names of the bundled models."""
    root = _bundled_root()
    if not root.is_dir():
        return []
    return sorted(path.name for path in root.iterdir() if (path / "config.json").is_file())


def _bundled_root() -> Path:
    return Path(__file__).parents[1] / "bundled"


def _bundled(name: str) -> Path:
    if name not in bundled_names():
        raise GeniusError(f"no bundled model {name!r}; this installation has: {', '.join(bundled_names()) or 'none'}")
    return _bundled_root() / name


def _from_hub(name: str) -> Path:
    repository, _, revision = name.partition("@")
    if repository.count("/") != 1:
        raise GeniusError(f"hf-hub:{name} should read hf-hub:OWNER/NAME or hf-hub:OWNER/NAME@REVISION")
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise GeniusError("hf-hub: needs huggingface_hub: pip install 'genius-search[hub]'") from None
    try:
        return Path(snapshot_download(repository, revision=revision or None, allow_patterns=HUB_FILES))
    except Exception as error:  # the hub client raises many types
        raise GeniusError(f"cannot fetch hf-hub:{name}: {said(error)}") from None


def _family(name: str) -> Any:
    from genius.optional import import_torch

    module, _, attribute = FAMILIES[name].partition(":")
    if module.startswith("genius."):
        import_torch(f"an encoder of the family {name!r}")
    return getattr(importlib.import_module(module), attribute)


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        body = read_json(path, MAX_CONFIG)
    except FileNotFoundError:
        return None
    if not isinstance(body, dict):
        raise GeniusError(f"{path} should hold a JSON object")
    return body
