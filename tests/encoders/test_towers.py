"""Frozen towers with heads: torch modules, and ONNX files that the test writes byte by byte."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
import torch
from module_tower import ModuleTower
from PIL import Image
from torch import nn

from genius import GeniusError, Item
from genius.encoders import load_encoder
from genius.encoders.base import encode_items
from genius.encoders.inputs import Pixels, Tokens
from genius.encoders.towers import Heads, OnnxTower, TowersEncoder, pooled

pytest.importorskip("onnxruntime")


# -- the few protobuf records an ONNX file needs: the onnx package is not a dependency ------------------------------


def varint(n: int) -> bytes:
    out = b""
    while n > 127:
        out, n = out + bytes([n & 127 | 128]), n >> 7
    return out + bytes([n])


def field(number: int, value: bytes | int) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def tensor(name: str, values: torch.Tensor) -> bytes:
    dims = b"".join(field(1, d) for d in values.shape)
    kind = 1 if values.dtype == torch.float32 else 7
    packed = struct.pack(f"<{values.numel()}{'f' if kind == 1 else 'q'}", *values.flatten().tolist())
    return dims + field(2, kind) + field(8, name.encode()) + field(9, packed)


def value_info(name: str, kind: int, shape: list[int | str]) -> bytes:
    dims = b"".join(field(1, field(2, d.encode()) if isinstance(d, str) else field(1, d)) for d in shape)
    return field(1, name.encode()) + field(2, field(1, field(1, kind) + field(2, dims)))


def node(operator: str, inputs: list[str], output: str) -> bytes:
    return b"".join(field(1, i.encode()) for i in inputs) + field(2, output.encode()) + field(4, operator.encode())


def model(nodes: list[bytes], initialisers: list[bytes], inputs: list[bytes], output: bytes) -> bytes:
    graph = b"".join(field(1, n) for n in nodes) + field(2, b"g") + b"".join(field(5, i) for i in initialisers)
    graph += b"".join(field(11, i) for i in inputs) + field(12, output)
    return field(1, 8) + field(7, graph) + field(8, field(1, b"") + field(2, 13))


def image_onnx(path: Path, weight: torch.Tensor) -> Path:
    """Flatten, then a matrix: (n, 3, 4, 4) -> (n, width)."""
    nodes = [node("Flatten", ["pixel_values"], "flat"), node("MatMul", ["flat", "w"], "out")]
    inputs = [value_info("pixel_values", 1, ["n", 3, 4, 4])]
    path.write_bytes(model(nodes, [tensor("w", weight)], inputs, value_info("out", 1, ["n", weight.shape[1]])))
    return path


def text_onnx(path: Path, table: torch.Tensor) -> Path:
    """A table lookup per token: (n, t) -> (n, t, width); two inputs, as BERT exports have."""
    nodes = [node("Gather", ["table", "input_ids"], "out"), node("Identity", ["attention_mask"], "unused")]
    inputs = [value_info("input_ids", 7, ["n", "t"]), value_info("attention_mask", 7, ["n", "t"])]
    path.write_bytes(model(nodes, [tensor("table", table)], inputs, value_info("out", 1, ["n", "t", table.shape[1]])))
    return path


@pytest.fixture
def encoder(tmp_path: Path, tokenizer_file: Path) -> TowersEncoder:
    torch.manual_seed(0)
    image = OnnxTower(image_onnx(tmp_path / "i.onnx", torch.randn(48, 10)))
    text = OnnxTower(text_onnx(tmp_path / "t.onnx", torch.randn(12, 6)))
    return TowersEncoder(image, text, Heads(10, 6, 16, hidden=8), Pixels(4, "squash"), Tokens.load(tokenizer_file, 8))


def test_onnx_towers_compute_what_their_file_says(encoder: TowersEncoder, pictures: list[Image.Image], tmp_path: Path) -> None:
    weight = torch.randn(48, 10)
    tower = OnnxTower(image_onnx(tmp_path / "w.onnx", weight))
    pixels = encoder.pixels(pictures)
    torch.testing.assert_close(tower({"pixel_values": pixels}), pixels.flatten(1) @ weight, atol=1e-4, rtol=1e-4)


def test_texts_are_pooled_over_real_tokens_only(encoder: TowersEncoder) -> None:
    alone = encoder.tower_texts(["blue"])
    padded = encoder.tower_texts(["blue", "a red bicycle in the same blue"])
    torch.testing.assert_close(alone[0], padded[0])
    states = torch.tensor([[[1.0], [3.0], [100.0]]])
    assert pooled(states, torch.tensor([[1, 1, 0]])).item() == 2 and pooled(states, None).item() == pytest.approx(104 / 3)


def test_heads_join_both_widths_and_the_pipeline_takes_it(encoder: TowersEncoder, pictures: list[Image.Image]) -> None:
    features, _, _ = encode_items(
        encoder, [Item("a", image=pictures[0]), Item("b", text="blue"), Item("c", image=pictures[1], text="red")]
    )
    assert features.width == encoder.width == 16 and features.modality.tolist() == [0, 1, 2]
    expected = encoder.heads.image(encoder.tower_images(pictures[:1]))
    torch.testing.assert_close(features.image[:1], expected)


def test_saving_round_trips(encoder: TowersEncoder, pictures: list[Image.Image], tmp_path: Path) -> None:
    encoder.save(tmp_path / "saved")
    again = load_encoder(tmp_path / "saved")
    assert again.fingerprint() == encoder.fingerprint()
    assert torch.equal(again.encode_images(pictures), encoder.encode_images(pictures))
    assert torch.equal(again.encode_texts(["a red bicycle"]), encoder.encode_texts(["a red bicycle"]))
    (tmp_path / "saved" / "heads.safetensors").unlink()
    with pytest.raises(GeniusError, match="cannot load"):
        load_encoder(tmp_path / "saved")


def test_a_tower_of_your_own_works_but_is_not_saved(encoder: TowersEncoder, pictures: list[Image.Image], tmp_path: Path) -> None:
    flat = nn.Sequential(nn.Flatten(), nn.Linear(48, 10))
    mixed = TowersEncoder(ModuleTower(flat, 10), encoder.text_tower, encoder.heads, encoder.pixels, encoder.tokens)
    assert mixed.encode_images(pictures).shape == (3, 16) and mixed.fingerprint() != encoder.fingerprint()
    with pytest.raises(GeniusError, match="ONNX"):
        mixed.save(tmp_path / "no")


def test_widths_must_fit_and_broken_files_are_named(encoder: TowersEncoder, tmp_path: Path) -> None:
    with pytest.raises(GeniusError, match="width"):
        TowersEncoder(encoder.image_tower, encoder.text_tower, Heads(9, 6, 16), encoder.pixels, encoder.tokens)
    (tmp_path / "bad.onnx").write_bytes(b"nonsense")
    with pytest.raises(GeniusError, match=r"bad\.onnx"):
        OnnxTower(tmp_path / "bad.onnx")
