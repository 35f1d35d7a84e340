"""The bundled encoder's code, on sizes small enough for a test; the bundled weights have a test of their own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from genius import GeniusError, Item
from genius.encoders import load_encoder
from genius.encoders.base import Encoder, encode_items
from genius.encoders.inputs import Tokens
from genius.encoders.mini import MiniConfig, MiniEncoder
from genius.weight_arrays import check_header, unpack
from genius.weight_files import pack

TINY = MiniConfig(
    width=24, image_size=32, image_stem=16, image_width=32, image_residuals=1, image_layers=1, text_vocabulary=12,
    text_length=10, text_width=32, text_layers=2, head_width=16, storage="int8",
)  # fmt: skip


@pytest.fixture
def encoder(tokenizer_file: Path) -> MiniEncoder:
    torch.manual_seed(0)
    return MiniEncoder(TINY, Tokens.load(tokenizer_file, TINY.text_length))


def test_it_is_an_encoder_and_the_pipeline_takes_it(encoder: MiniEncoder, pictures: list[Image.Image]) -> None:
    assert isinstance(encoder, Encoder)
    features, _, _ = encode_items(encoder, [Item("a", image=pictures[0], text="red"), Item("b", text="a bicycle")])
    assert features.width == 24 and features.modality.tolist() == [2, 1]


def test_a_text_does_not_depend_on_its_neighbours(encoder: MiniEncoder) -> None:
    together = encoder.encode_texts(["blue", "a red bicycle in the same blue", ""])
    torch.testing.assert_close(encoder.encode_texts(["blue"])[0], together[0], atol=1e-5, rtol=1e-4)
    assert torch.isfinite(together).all()


def test_a_narrow_token_table_is_widened_and_saved(encoder: MiniEncoder, tmp_path: Path) -> None:
    narrow = MiniEncoder(replace(TINY, text_tokens=8), encoder.tokens)
    assert narrow.text.tokens.weight.shape == (12, 8) and narrow.encode_texts(["a red bicycle"]).shape == (1, 24)
    narrow.save(tmp_path)
    assert load_encoder(tmp_path).encode_texts(["blue"]).shape == (1, 24)
    assert narrow.fingerprint() != encoder.fingerprint()


def test_long_texts_are_cut(encoder: MiniEncoder) -> None:
    assert torch.isfinite(encoder.encode_texts(["red " * 1000])).all()


def test_a_picture_does_not_depend_on_its_file_size(encoder: MiniEncoder) -> None:
    """Shrinking in the loading thread, or here, is the same thing."""
    picture = Image.new("RGB", (300, 120), (255, 255, 255))
    picture.paste((200, 0, 0), (60, 20, 200, 100))
    assert torch.equal(encoder.encode_images([picture]), encoder.encode_images([encoder.prepare_image(picture)]))


@pytest.mark.parametrize("storage", ["int8", "float32"])
def test_saving_twice_keeps_every_value(storage: str, encoder: MiniEncoder, tmp_path: Path, pictures: list[Image.Image]) -> None:
    object.__setattr__(encoder.config, "storage", storage)
    encoder.save(tmp_path / "one")
    first = load_encoder(tmp_path / "one")
    first.save(tmp_path / "two")
    second = load_encoder(tmp_path / "two")
    assert first.fingerprint() == second.fingerprint()
    assert (first.fingerprint() == encoder.fingerprint()) == (storage == "float32")
    close = torch.nn.functional.cosine_similarity(first.encode_images(pictures), encoder.encode_images(pictures))
    assert (close > 0.995).all()


def test_int8_is_small_and_close() -> None:
    torch.manual_seed(0)
    weights = {
        "a": torch.randn(100, 300),
        "b": torch.randn(7),
        "conv": torch.randn(64, 8, 3, 3),
        "zero": torch.zeros(64, 64),
        "codes": torch.randn(99, 99),
    }
    stored = pack(weights, half=("codes",))
    assert stored["a"].dtype == torch.int8 and stored["b"].dtype == torch.float16 and stored["codes"].dtype == torch.float16
    back = unpack(stored)
    assert back.keys() == weights.keys()
    for name, value in weights.items():
        assert back[name].shape == value.shape and (back[name] - value).abs().max() <= 0.01 * value.abs().max() + 1e-7, name
    again = unpack(pack(back, half=("codes",)))
    assert all(torch.equal(again[name], back[name]) for name in back)


def test_plain_files_unpack_to_themselves() -> None:
    weights = {"w": torch.randn(80, 80), "w.scale": torch.tensor([2.0]), "lonely.scale": torch.randn(3)}
    assert torch.equal(unpack({"w": weights["w"]})["w"], weights["w"])
    assert "lonely.scale" in unpack({"lonely.scale": weights["lonely.scale"]})


def test_broken_weights_are_named(encoder: MiniEncoder, tmp_path: Path) -> None:
    encoder.save(tmp_path)
    weights = load_file(tmp_path / "weights.safetensors")
    weights.pop("image.head.bias")
    save_file(weights, tmp_path / "weights.safetensors")
    with pytest.raises(GeniusError, match="cannot load the encoder"):
        load_encoder(tmp_path)
    (tmp_path / "weights.safetensors").write_bytes(b"junk")
    with pytest.raises(GeniusError, match="cannot load the encoder"):
        load_encoder(tmp_path)


def test_a_header_of_more_than_four_megabytes_is_refused_before_it_is_read(tmp_path: Path) -> None:
    """A hundred thousand tensors would cost a hundred megabytes of names."""
    path = tmp_path / "weights.safetensors"
    for claimed, message in (((4 << 20) + 1, "claims 4,194,305 bytes"), (2**63, "claims")):
        path.write_bytes(claimed.to_bytes(8, "little") + b"{}")
        with pytest.raises(GeniusError, match=message):
            check_header(path)
    path.write_bytes((2).to_bytes(8, "little") + b"{}")
    check_header(path)
