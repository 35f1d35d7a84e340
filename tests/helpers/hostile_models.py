"""Files of weights and models that an attacker may send: each tries to act, to fill the memory, or to take for ever.

Shared by a test (a part of them) and `lab/trust/hostile_models.py` (all, in processes of their own). Files of
`torch.save` are in `hostile_archives`; here are model folders, and the doors that all of them come in by.
"""

from __future__ import annotations

import json
import os
import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from hostile_archives import PAYLOADS, Case, Writer, archive, pickle_cases, torchscript, zip_cases
from safetensors.torch import load_file, save_file


def go_through(door: str, path: Path) -> None:
    """Show a file to the part of the library that reads such files."""
    from genius import Genius
    from genius.encoders import load_encoder
    from genius.model.official import convert_official
    from genius.train.loop import load_checkpoint

    doors: dict[str, Callable[[], Any]] = {
        "convert": lambda: convert_official(path, path),
        "uniir": lambda: load_encoder(f"uniir:{path}"),
        "optimizer": lambda: load_checkpoint(path),
        "model": lambda: Genius.from_pretrained(path),
        "encoder": lambda: load_encoder(path),
    }
    doors[door]()


# -- model folders -----------------------------------------------------------------------------------------------


def model_folder(folder: Path) -> Path:
    """A small whole model with the bundled encoder's layout, all sizes its own."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    from genius.encoders.inputs import Tokens
    from genius.encoders.mini import MiniConfig, MiniEncoder
    from genius.model.config import FusionConfig, GeneratorConfig, GeniusConfig, QuantizerConfig
    from genius.model.genius import Genius

    torch.manual_seed(0)
    words = Tokenizer(models.WordLevel({"[PAD]": 0, "[UNK]": 1, "a": 2, "red": 3}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    sizes = MiniConfig(
        width=16,
        image_size=16,
        image_stem=8,
        image_width=16,
        image_residuals=1,
        image_layers=1,
        text_vocabulary=8,
        text_length=8,
        text_width=16,
        text_layers=1,
        head_width=8,
    )
    encoder = MiniEncoder(sizes, Tokens(words, 8))
    levels = (3, 4, 4)
    config = GeniusConfig(
        fusion=FusionConfig(16, 8, 8),
        quantizer=QuantizerConfig(16, levels),
        generator=GeneratorConfig(16, levels, d_model=16, layers=1, heads=2, d_kv=8, d_ff=16, prefix_tokens=2),
    )
    Genius(config, encoder).save_pretrained(folder / "m")
    return folder / "m"


def edited(name: str, change: Callable[[dict[str, Any]], Any], file: str = "config.json", harmless: bool = False) -> Case:
    """A model whose config was edited: `change` gets its fields."""

    def write(folder: Path, _: Path) -> Path:
        path = model_folder(folder)
        body = json.loads((path / file).read_text())
        change(body["model"] if file == "config.json" else body["config"])
        (path / file).write_text(json.dumps(body))
        return path

    return Case(f"config: {name}", "model", write, harmless)


def setting(part: str, key: str, value: Any, harmless: bool = False) -> Case:
    shown = str(value)
    shown = shown if len(shown) < 30 else f"{shown[:12]}... of {len(shown)} characters"
    if part == "encoder.json":
        return edited(f"encoder {key} = {shown}", lambda c: c.update({key: value}), "encoder/encoder.json", harmless)
    return edited(f"{part}.{key} = {shown}", lambda c: c[part].update({key: value}), harmless=harmless)


def replaced(name: str, file: str, make: Callable[[Path], bytes], door: str = "model") -> Case:
    """A model with one file exchanged, its digests left out so that the reader itself is asked."""

    def write(folder: Path, _: Path) -> Path:
        path = model_folder(folder)
        for digests in path.rglob("digests.json"):
            digests.unlink()
        (path / file).write_bytes(make(path / file))
        return path

    return Case(name, door, write)


def weights(header: Any, data: bytes = b"", length: int | None = None) -> bytes:
    body = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(body) if length is None else length) + body + data


def _levels(c: dict[str, Any], sizes: list[Any]) -> None:
    c["quantizer"]["level_sizes"] = c["generator"]["level_sizes"] = sizes


def _outside(scheme: str) -> Writer:
    def write(folder: Path, mark: Path) -> Path:
        evil = torchscript(folder, mark)
        path = model_folder(folder)
        body = json.loads((path / "config.json").read_text())
        body["model"]["encoder"] = scheme.format(evil=evil, name=os.path.relpath(evil, path))
        (path / "config.json").write_text(json.dumps(body))
        return path

    return write


def _linked_inside(folder: Path, mark: Path) -> Path:
    path = _outside("uniir:x.pth")(folder, mark)
    (path / "x.pth").symlink_to(folder / "f.pth")
    return path


def _script_inside(folder: Path, mark: Path) -> Path:
    path = _outside("uniir:x.pth")(folder, mark)
    (folder / "f.pth").rename(path / "x.pth")
    return path


def config_cases() -> list[Case]:
    cases = [
        setting("generator", key, value)
        for key, value in (
            ("d_model", 10**6),
            ("d_model", 10**30),
            ("d_model", -1),
            ("d_model", 0),
            ("layers", 3_000_000),
            ("layers", -1),
            ("layers", 1.5),
            ("heads", 0),
            ("heads", 10**9),
            ("d_kv", 0),
            ("d_ff", 10**9),
            ("prefix_tokens", 10**9),
            ("buckets", 0),
            ("buckets", 10**9),
            ("max_distance", 0),
            ("dropout", 7.0),
            ("width", 32),
            ("layers", "many"),
            ("layers", None),
            ("layers", [1]),
            ("normalizer", "none"),
        )
    ]
    cases += [setting("fusion", key, value) for key, value in (("hidden", 10**9), ("projection", -3), ("width", 10**12))]
    cases += [
        setting("quantizer", key, value)
        for key, value in (
            ("encode_beam", 10**9),
            ("encode_sweeps", 10**9),
            ("encode_beam", -1),
            ("modality_code", "x"),
            ("modality_codebooks_from", 1),
            ("shared", True),
        )
    ]
    cases += [
        setting("encoder.json", key, value)
        for key, value in (
            ("text_layers", 300_000),
            ("image_layers", 3_000_000),
            ("image_residuals", 10**7),
            ("head_width", 0),
            ("head_width", 7),
            ("width", -1),
            ("text_width", 10**6),
            ("text_vocabulary", 10**10),
            ("text_vocabulary", 2),
            ("text_length", 10**9),
            ("text_length", -5),
            ("image_size", 10**6),
            ("image_stem", 10**7),
            ("storage", "float64"),
            ("nonsense", 1),
        )
    ]
    cases += [
        edited("levels of 10^9 codes", lambda c: _levels(c, [3, 10**9, 4])),
        edited("a hundred thousand levels", lambda c: _levels(c, [3] + [4] * 100_000)),
        edited("no levels", lambda c: _levels(c, [])),
        edited("levels of texts", lambda c: _levels(c, ["3", "x"])),
        edited("an unknown field", lambda c: c.update({"code": "import os"})),
        edited("an encoder that is a list", lambda c: c.update({"encoder": ["uniir:x"]})),
        edited("an encoder that is not there", lambda c: c.update({"encoder": "local-dir:/nowhere"})),
        edited("an encoder of no scheme", lambda c: c.update({"encoder": ""})),
        Case("config: a checkpoint outside (uniir:)", "model", _outside("uniir:{evil}")),
        Case("config: a checkpoint outside (a path)", "model", _outside("{evil}")),
        Case("config: a checkpoint outside (local-dir:)", "model", _outside("local-dir:{evil}")),
        Case("config: a checkpoint outside (../)", "model", _outside("uniir:{name}")),
        Case("config: a link to a checkpoint outside", "model", _linked_inside),
        Case("config: TorchScript inside the folder", "model", _script_inside),
        replaced("config: nested without end", "config.json", lambda _: b"[" * 300_000),
        replaced("config: 3 MB", "config.json", lambda p: p.read_bytes() + b" " * 3_000_000),
        replaced("config: not an object", "config.json", lambda _: b"[]"),
        replaced("config: cut off", "config.json", lambda p: p.read_bytes()[:50]),
        replaced(
            "config: a number of a million digits",
            "config.json",
            lambda p: p.read_bytes().replace(b'"layers": 1', b'"layers": ' + b"9" * 900_000),
        ),
        replaced("config: not a number", "config.json", lambda p: p.read_bytes().replace(b'"dropout": 0.1', b'"dropout": NaN')),
        replaced("encoder.json: a family that is a list", "encoder/encoder.json", lambda _: b'{"family": ["mini"]}'),
        replaced("encoder.json: an unknown family", "encoder/encoder.json", lambda _: b'{"family": "os.system"}'),
        replaced("encoder.json: nested without end", "encoder/encoder.json", lambda _: b'{"a":' * 200_000),
        replaced("tokenizer: junk", "encoder/tokenizer.json", lambda _: b"junk"),
        replaced("tokenizer: nested without end", "encoder/tokenizer.json", lambda _: b'{"a":' * 200_000),
        replaced(
            "tokenizer: ids out of range",
            "encoder/tokenizer.json",
            lambda p: p.read_bytes().replace(b'"red":3', b'"red":3000000'),
        ),
    ]
    return cases


def weight_cases() -> list[Case]:
    file = "model.safetensors"
    good = {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}
    headers: dict[str, bytes] = {
        "header of 2^63 bytes": weights({}, length=2**63),
        "header of 90 MB": weights(b"{" + b" " * (90 << 20) + b"}"),
        "header longer than the file": weights({}, length=1000),
        "header is no JSON": weights(b"nonsense"),
        "header nested without end": weights(b'{"a":' * 100_000),
        "header is a list": weights([]),
        "shape that overflows": weights({"a": {**good, "shape": [2**62, 2**62]}}, bytes(16)),
        "shape that is negative": weights({"a": {**good, "shape": [-4]}}, bytes(16)),
        "shape of texts": weights({"a": {**good, "shape": ["4"]}}, bytes(16)),
        "more numbers than bytes": weights({"a": {**good, "shape": [10**9]}}, bytes(16)),
        "offsets beyond the end": weights({"a": {**good, "data_offsets": [0, 10**12]}}, bytes(16)),
        "offsets backwards": weights({"a": {**good, "data_offsets": [16, 0]}}, bytes(16)),
        "offsets that overlap": weights({"a": good, "b": good}, bytes(16)),
        "an unknown kind of number": weights({"a": {**good, "dtype": "PICKLE"}}, bytes(16)),
        "no tensors": weights({}),
        "a hundred thousand tensors": weights(
            {f"t{i}": {**good, "data_offsets": [16 * i, 16 * i + 16]} for i in range(100_000)}, bytes(1_600_000)
        ),
        "empty": b"",
        "three bytes": b"abc",
    }

    def without(path: Path) -> bytes:
        tensors = load_file(path)
        tensors.pop(sorted(tensors)[0])
        save_file(tensors, path)
        return path.read_bytes()

    def reshaped(path: Path) -> bytes:
        tensors = load_file(path)
        name = sorted(tensors)[0]
        tensors[name] = torch.zeros(1, 1, 1)
        save_file(tensors, path)
        return path.read_bytes()

    def scaled(path: Path) -> bytes:
        tensors = load_file(path)
        tensors["fusion.mix_hidden.weight.scale"] = torch.ones(3)
        save_file(tensors, path)
        return path.read_bytes()

    cases = [replaced(f"safetensors: {name}", file, lambda _, body=body: body) for name, body in headers.items()]  # type: ignore[misc]
    cases += [
        replaced(f"safetensors: {name}", file, make)
        for name, make in (("a tensor missing", without), ("another shape", reshaped), ("scales of another size", scaled))
    ]
    cases += [
        replaced(f"encoder weights: {name}", "encoder/weights.safetensors", lambda _, body=headers[name]: body)  # type: ignore[misc]
        for name in ("header of 2^63 bytes", "header is no JSON", "a hundred thousand tensors")
    ]

    def flipped(folder: Path, _: Path) -> Path:
        path = model_folder(folder)
        body = bytearray((path / file).read_bytes())
        body[-100] ^= 16
        (path / file).write_bytes(body)
        return path

    def flipped_encoder(folder: Path, _: Path) -> Path:
        path = model_folder(folder)
        body = bytearray((path / "encoder/weights.safetensors").read_bytes())
        body[-100] ^= 1
        (path / "encoder/weights.safetensors").write_bytes(body)
        return path

    def strange_digests(folder: Path, _: Path) -> Path:
        path = model_folder(folder)
        (path / "digests.json").write_text('{"sha256": {"../../../etc/passwd": "0"}}')
        return path

    def piped(folder: Path, _: Path) -> Path:
        path = model_folder(folder)
        (path / file).unlink()
        os.mkfifo(path / file)
        return path

    cases += [
        Case("digests: one bit of the model's weights", "model", flipped),
        Case("digests: one bit of the encoder's weights", "model", flipped_encoder),
        Case("digests: a name outside", "model", strange_digests),
        Case("safetensors: a pipe", "model", piped),
    ]
    return cases


# -- encoders of transformers, checkpoints of training -----------------------------------------------------------


def clip_folder(folder: Path) -> Path:
    import transformers
    from tokenizers import Tokenizer, models

    shared = {"hidden_size": 32, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.CLIPConfig(
        text_config={
            **shared,
            "vocab_size": 12,
            "max_position_embeddings": 8,
            "eos_token_id": 11,
            "bos_token_id": 10,
            "pad_token_id": 11,
        },
        vision_config={**shared, "image_size": 16, "patch_size": 8},
        projection_dim=16,
    )
    transformers.CLIPModel(config).save_pretrained(folder / "clip")
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(11)} | {"<|endoftext|>": 11}, unk_token="w0"))
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=words, eos_token="<|endoftext|>", pad_token="<|endoftext|>"
    ).save_pretrained(folder / "clip")
    return folder / "clip"


def clip_case(name: str, change: Callable[[dict[str, Any]], Any]) -> Case:
    def write(folder: Path, mark: Path) -> Path:
        path = clip_folder(folder)
        body = json.loads((path / "config.json").read_text())
        change(body)
        (path / "config.json").write_text(json.dumps(body))
        return path

    return Case(f"transformers: {name}", "encoder", write)


def _own_code(folder: Path, mark: Path) -> Path:
    """A tokenizer with a class of its own, which must not be run."""
    path = clip_folder(folder)
    (path / "evil.py").write_text(f"open({str(mark)!r}, 'w')\nclass Evil: pass\n")
    for name in ("tokenizer_config.json", "config.json"):
        body = json.loads((path / name).read_text())
        body["auto_map"] = {"AutoTokenizer": ["evil.Evil", "evil.Evil"], "AutoModel": "evil.Evil", "AutoConfig": "evil.Evil"}
        (path / name).write_text(json.dumps(body))
    return path


def _only_pickle(folder: Path, mark: Path) -> Path:
    path = clip_folder(folder)
    (path / "model.safetensors").unlink()
    archive(path / "pytorch_model.bin", pickle.dumps(PAYLOADS["os.mkdir"](str(mark)), 2))
    return path


def _checkpoint(make: Callable[[Path, Path], object]) -> Writer:
    def write(folder: Path, mark: Path) -> Path:
        save_file({"a": torch.zeros(2)}, folder / "weights.safetensors")
        (folder / "progress.json").write_text('{"step": 1}')
        make(folder / "optimizer.pt", mark)
        return folder

    return write


def other_cases() -> list[Case]:
    return [
        clip_case("hidden_size 10^7", lambda c: c["vision_config"].update(hidden_size=10**7)),
        clip_case("10^7 layers", lambda c: c["text_config"].update(num_hidden_layers=10**7)),
        clip_case("vocab_size 10^10", lambda c: c["text_config"].update(vocab_size=10**10)),
        clip_case("positions 10^9", lambda c: c["text_config"].update(max_position_embeddings=10**9)),
        clip_case("image_size 10^6", lambda c: c["vision_config"].update(image_size=10**6)),
        clip_case("no heads", lambda c: c["vision_config"].update(num_attention_heads=0)),
        clip_case("an unknown activation", lambda c: c["text_config"].update(hidden_act="os.system")),
        clip_case("sizes of texts", lambda c: c["text_config"].update(hidden_size="big")),
        clip_case("another number of layers", lambda c: c["text_config"].update(num_hidden_layers=2)),
        clip_case("patch_size 0", lambda c: c["vision_config"].update(patch_size=0)),
        Case("transformers: classes of its own", "encoder", _own_code, harmless=True),
        Case("transformers: weights as a pickle", "encoder", _only_pickle),
        Case(
            "training: an optimizer that acts",
            "optimizer",
            _checkpoint(lambda path, mark: torch.save({"state": PAYLOADS["os.mkdir"](str(mark))}, path)),
        ),
        Case(
            "training: an optimizer as TorchScript",
            "optimizer",
            _checkpoint(lambda path, mark: torchscript(path.parent, mark).rename(path)),
        ),
        Case(
            "training: an optimizer as a bare pickle",
            "optimizer",
            _checkpoint(lambda path, mark: path.write_bytes(pickle.dumps(PAYLOADS["os.mkdir"](str(mark))))),
        ),
    ]


def all_cases() -> list[Case]:
    return [*pickle_cases(), *zip_cases(), *weight_cases(), *config_cases(), *other_cases()]
