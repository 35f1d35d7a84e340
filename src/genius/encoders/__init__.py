"""Encoders: one file per family, one small protocol (`base`), and here the registry: a URI -> a folder (`resolve`) -> an encoder
(`load_encoder`).

    PATH, local-dir:PATH          a folder of this project, of a `transformers` or `sentence-transformers` model, or of open_clip
    hf-hub:OWNER/NAME[@REVISION]  the same on a hub, downloaded once, weights as safetensors only
    bundled:NAME                  a model that ships with this package
    uniir:PATH                    UniIR's CLIP-SF checkpoint (`clip_sf_large.pth`)

Knows the names of the families and where each lives, none of their insides: a family's module is imported when one of its
encoders is loaded.
"""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

from genius.encoders.base import Encoder, encode_items, encode_queries
from genius.errors import GeniusError, said
from genius.files import read_json
from genius.weight_files import check_digests, write_digests

__all__ = ["Encoder", "encode_items", "encode_queries", "load_encoder", "register", "resolve"]

MAX_CONFIG = 1 << 20  # bytes of a JSON file that describes an encoder

SPEC = "encoder.json"
"""Names the family of a folder that this project wrote, and what the family needs to read it."""

FAMILIES: dict[str, str] = {
    # family -> "module:class"; the class has `load(directory, spec) -> Encoder`
    "clip": "genius.encoders.transformers_dual:ClipEncoder",
    "siglip": "genius.encoders.transformers_dual:SiglipEncoder",
    "open-clip": "genius.encoders.checkpoints:OpenClipFolder",
    "uniir": "genius.encoders.checkpoints:UniirCheckpoint",
    "object": "genius.encoders.objects:SavedObject",
    "towers": "genius.encoders.towers:TowersEncoder",
    "mini": "genius.encoders.mini:MiniEncoder",
}


def register(family: str, place: str) -> None:
    """Make an encoder of another package known: `place` is "module:class", and the class has `load(directory, spec) -> Encoder`.

    A folder whose `encoder.json` names `family` is then read by it. Built-in families cannot be replaced."""
    module, colon, attribute = place.partition(":")
    if not (module and colon and attribute):
        raise GeniusError(f"an encoder family is registered as 'module:class', got {place!r}")
    if FAMILIES.get(family, place) != place:
        raise GeniusError(f"there is an encoder family {family!r} already: {FAMILIES[family]}")
    FAMILIES[family] = place


# `model_type` of a transformers config -> our family (fixed-size SigLIP 2 says "siglip"; "siglip2" is NaFlex, not read)
TRANSFORMERS_TYPES: dict[str, str] = {"clip": "clip", "siglip": "siglip"}

# what people try first: models of words without pictures
TEXT_ONLY = frozenset(
    ("bert", "roberta", "distilbert", "mpnet", "xlm-roberta", "modernbert", "t5", "gpt2", "llama", "qwen2", "qwen3", "mistral")
)
OPEN_CLIP = "open_clip_config.json"

HUB_FILES = ["*.json", "*.safetensors", "*.txt", "*.model", "*.onnx", "*/*.json", "*/*.safetensors", "*/*.onnx"]
"""What is fetched from a hub: never pickles."""


def resolve(uri: str | Path) -> Path:
    """The local folder (for `uniir:` the file) that a URI names."""
    scheme, _, rest = str(uri).partition(":")
    if scheme == "bundled" and rest:
        return _bundled(rest)
    if scheme == "hf-hub" and rest:
        return _from_hub(rest)
    path = Path(rest if scheme in ("local-dir", "uniir") and rest else str(uri)).expanduser()
    if not path.exists():
        raise GeniusError(f"no such model: {uri} (use a folder, local-dir:PATH, hf-hub:OWNER/NAME[@REVISION] or bundled:NAME)")
    return path


def load_encoder(uri: str | Path, device: str = "cpu", share: int = 0) -> Encoder:
    """Load the encoder a URI names. A whole model's URI gives the encoder that it brings.

    `device` is cpu, cuda, cuda:N or auto: a GPU where there is one, for process number `share` the next one in turn.
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
        path = _picture_module(path)
    family, spec = read_spec(path)
    try:
        check_digests(path)
    except GeniusError as error:
        raise GeniusError(f"cannot load the encoder at {path}: {error}") from None
    return _family(family).load(path, spec)  # type: ignore[no-any-return]


def read_spec(directory: Path) -> tuple[str, dict[str, Any]]:
    """(family, its settings) of a folder: from `encoder.json`, or a transformers `config.json`."""
    own = _read_json(directory / SPEC)
    if own is not None:
        family = own.get("family")
        if not isinstance(family, str) or family not in FAMILIES:
            raise GeniusError(f"{directory / SPEC} names an unknown encoder family {family!r}; known: {', '.join(FAMILIES)}")
        return family, own
    foreign = _read_json(directory / "config.json")
    kind = None if foreign is None else foreign.get("model_type")
    if kind not in TRANSFORMERS_TYPES and (directory / OPEN_CLIP).is_file():
        return "open-clip", {}
    if foreign is None:
        raise GeniusError(f"no encoder at {directory}: neither {SPEC} nor a transformers config.json nor {OPEN_CLIP}")
    if kind in TEXT_ONLY:
        raise GeniusError(
            f"{directory} holds a {kind!r}, which reads texts only: choose an encoder with a picture tower, such as a CLIP"
        )
    if not isinstance(kind, str) or kind not in TRANSFORMERS_TYPES:
        raise GeniusError(
            f"{directory} holds a {kind or 'model of unknown type'!r}, not an encoder this version reads "
            f"({', '.join(TRANSFORMERS_TYPES)})"
        )
    return TRANSFORMERS_TYPES[kind], {}


def _picture_module(directory: Path) -> Path:
    """Of a folder of `sentence-transformers`, the module that sees pictures; only lengths may change behind it."""
    listed = read_json(directory / "modules.json", MAX_CONFIG)
    modules = [entry for entry in listed if isinstance(entry, dict)] if isinstance(listed, list) else []
    kinds = [str(entry.get("type", "?")).rpartition(".")[2] for entry in modules]
    paths = [directory / Path(str(entry.get("path", ""))).name for entry in modules]
    if not modules:
        raise GeniusError(f"{directory / 'modules.json'} lists no modules")
    strange = next((kind for kind in kinds[1:] if kind != "Normalize"), None)
    if strange == "Pooling" or (strange is None and not (paths[0] / "config.json").is_file()):
        raise GeniusError(
            f"{directory} is a sentence-transformers model that reads texts only: choose one that sees pictures, such as a CLIP"
        )
    if strange is not None:
        raise GeniusError(f"{directory} has a {strange} layer behind its towers, which this version does not read")
    return paths[0]


def write_spec(directory: Path, family: str, settings: dict[str, Any] | None = None) -> None:
    """Write `encoder.json` and the digests of the files beside it. Call it last: a folder without one is not an encoder."""
    directory.mkdir(parents=True, exist_ok=True)
    write_digests(directory)
    body = {"family": family, **(settings or {})}
    (directory / SPEC).write_text(json.dumps(body, indent=2) + "\n", encoding="utf-8")


def bundled_names() -> list[str]:
    """Names after `bundled:` that this installation has."""
    root = _bundled_root()
    return sorted(p.name for p in root.iterdir() if (p / "config.json").is_file()) if root.is_dir() else []


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
    except Exception as error:  # the hub client raises many kinds, most of them long
        raise GeniusError(f"cannot fetch hf-hub:{name}: {said(error)}") from None


def _family(name: str) -> Any:
    module, _, attribute = FAMILIES[name].partition(":")
    return getattr(importlib.import_module(module), attribute)


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        body = read_json(path, MAX_CONFIG)
    except FileNotFoundError:
        return None
    if not isinstance(body, dict):
        raise GeniusError(f"{path} should hold a JSON object")
    return body
