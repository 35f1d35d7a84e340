"""Conversion of published-layout checkpoints that the test writes itself: sizes, safety, bad files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from genius.errors import GeniusError
from genius.model.official import convert_official
from genius.torch_file import read_checkpoint

WIDTH, PROJECTION, HIDDEN, SIZES, D, HEADS, D_KV, FF, PREFIX, LAYERS = 12, 10, 14, (3, 5, 7), 16, 2, 8, 24, 4, 2


def published_layout(seed: int = 0) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """A quantizer and a generator state dict with the published key names, in sizes of our own."""
    torch.manual_seed(seed)
    rq: dict[str, torch.Tensor] = {}
    shapes = {
        "text_projection_layer": (PROJECTION, WIDTH),
        "image_projection_layer": (PROJECTION, WIDTH),
        "combiner_layer": (HIDDEN, 2 * PROJECTION),
        "output_layer": (WIDTH, HIDDEN),
        "dynamic_scalar.0": (HIDDEN, 2 * PROJECTION),
        "dynamic_scalar.3": (1, HIDDEN),
    }
    for name, shape in shapes.items():
        rq[f"encoder.{name}.weight"], rq[f"encoder.{name}.bias"] = torch.randn(shape), torch.randn(shape[0])
    for level, size in enumerate(SIZES):
        book = f"residual_rq.layers.{level}._codebook"
        rq |= {
            f"{book}.initted": torch.ones(1),
            f"{book}.cluster_size": torch.ones(1, size),
            f"{book}.embed_avg": torch.randn(1, size, WIDTH),
            f"{book}.embed": torch.randn(1, size, WIDTH),
        }
    rq |= {name.replace("residual_rq.layers.0", "vq"): tensor for name, tensor in rq.items() if "layers.0." in name}
    gen = {f"quantizer.{name}": tensor for name, tensor in rq.items()}
    table = torch.randn(3 + sum(SIZES), D)
    for alias in ("shared", "encoder.embed_tokens", "decoder.embed_tokens", "lm_head"):
        gen[f"id_generator.{alias}.weight"] = table
    gen["id_generator.encoder.final_layer_norm.weight"] = torch.rand(D)
    gen["id_generator.decoder.final_layer_norm.weight"] = torch.rand(D)
    gen["embed_projector.0.weight"], gen["embed_projector.0.bias"] = torch.randn(PREFIX * D, WIDTH), torch.randn(PREFIX * D)
    for i in range(LAYERS):
        block = f"id_generator.decoder.block.{i}.layer"
        for part, kind in ((0, "SelfAttention"), (1, "EncDecAttention")):
            for matrix in "qkv":
                gen[f"{block}.{part}.{kind}.{matrix}.weight"] = torch.randn(HEADS * D_KV, D) * 0.3
            gen[f"{block}.{part}.{kind}.o.weight"] = torch.randn(D, HEADS * D_KV) * 0.3
        gen[f"{block}.2.DenseReluDense.wi.weight"] = torch.randn(FF, D) * 0.3
        gen[f"{block}.2.DenseReluDense.wo.weight"] = torch.randn(D, FF) * 0.3
        for part in range(3):
            gen[f"{block}.{part}.layer_norm.weight"] = torch.rand(D)
    gen["id_generator.decoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"] = torch.randn(32, HEADS)
    return rq, gen


def save(path: Path, state: dict[str, torch.Tensor], **extra: object) -> Path:
    torch.save({"model": state, "epoch": 3, **extra}, path)
    return path


def test_sizes_are_read_off_the_tensors(tmp_path: Path) -> None:
    rq, gen = published_layout()
    compiled = {name.replace("id_generator.", "id_generator._orig_mod."): tensor for name, tensor in gen.items()}
    model = convert_official(save(tmp_path / "rq.pth", rq), save(tmp_path / "gen.pth", compiled))
    config = model.config.generator
    assert (config.level_sizes, config.layers, config.heads, config.d_kv, config.prefix_tokens) == (
        SIZES,
        LAYERS,
        HEADS,
        D_KV,
        PREFIX,
    )
    assert torch.equal(model.quantizer.codebook(2), rq["residual_rq.layers.2._codebook.embed"][0])


def test_the_decoder_is_transformers_t5(tmp_path: Path) -> None:
    """An independent implementation of the same published architecture gives the same log-probabilities."""
    transformers = pytest.importorskip("transformers")
    rq, gen = published_layout()
    config = transformers.T5Config(
        vocab_size=3 + sum(SIZES),
        d_model=D,
        d_kv=D_KV,
        d_ff=FF,
        num_layers=0,
        num_decoder_layers=LAYERS,
        num_heads=HEADS,
        feed_forward_proj="relu",
        tie_word_embeddings=True,
        decoder_start_token_id=0,
    )
    t5 = transformers.T5ForConditionalGeneration(config).eval()
    state = {name.removeprefix("id_generator."): tensor for name, tensor in gen.items() if name.startswith("id_generator.")}
    assert not t5.load_state_dict(state, strict=False).unexpected_keys
    model = convert_official(save(tmp_path / "rq.pth", rq), save(tmp_path / "gen.pth", gen))
    z = torch.randn(6, WIDTH)
    codes = torch.stack([torch.randint(size, (6,)) for size in SIZES], 1)
    offsets = torch.tensor(model.config.generator.offsets)
    prefix = (z @ gen["embed_projector.0.weight"].T + gen["embed_projector.0.bias"]).view(6, PREFIX, D)
    with torch.no_grad():
        logits = t5(inputs_embeds=prefix, labels=codes + offsets).logits
        want = logits.log_softmax(-1).gather(2, (codes + offsets)[..., None])[..., 0]
        torch.testing.assert_close(model.generator(z, codes), want, atol=1e-4, rtol=1e-4)


class Malicious:
    """Unpickled the ordinary way, this would create a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.path),)


def test_no_code_of_the_file_runs(tmp_path: Path) -> None:
    rq, _ = published_layout()
    path = save(tmp_path / "rq.pth", rq, config=Malicious(tmp_path / "owned"))
    with pytest.raises(GeniusError, match="mkdir, which acts on the system"):
        read_checkpoint(path)
    assert not (tmp_path / "owned").exists()


def test_omegaconf_in_the_file_is_ignored(tmp_path: Path) -> None:
    omegaconf = pytest.importorskip("omegaconf")
    rq, _ = published_layout()
    path = save(tmp_path / "rq.pth", rq, config=omegaconf.OmegaConf.create({"lr": 1e-4, "nested": {"a": [1, 2]}}))
    assert set(read_checkpoint(path)) == set(rq)


@pytest.mark.parametrize("content", [b"", b"not a checkpoint", b"PK\x03\x04 broken zip"])
def test_foreign_files_get_one_line(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "bad.pth"
    path.write_bytes(content)
    with pytest.raises(GeniusError) as error:
        read_checkpoint(path)
    assert "\n" not in str(error.value) and "bad.pth" in str(error.value)


def test_wrong_pairs_are_refused(tmp_path: Path) -> None:
    rq, gen = published_layout()
    other, _ = published_layout(seed=1)
    with pytest.raises(GeniusError, match="another quantizer"):
        convert_official(save(tmp_path / "other.pth", other), save(tmp_path / "gen.pth", gen))
    with pytest.raises(GeniusError, match="missing"):
        convert_official(save(tmp_path / "rq.pth", rq), save(tmp_path / "rq2.pth", rq))
    with pytest.raises(GeniusError, match="no such checkpoint"):
        read_checkpoint(tmp_path / "absent.pth")
