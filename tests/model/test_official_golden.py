"""The published code's stored outputs (`tests/golden/official`), and ours: codes, log p, beams, losses, gradients, codebooks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor

from genius.features import Features
from genius.model.genius import Genius
from genius.model.official import _FUSION, convert_official
from genius.search import CodeTrie
from genius.search.beam import beam_search
from genius.train.generator import Augmentation
from genius.train.losses import code_losses, contrastive, reconstruction_loss, residual_loss

GOLDEN = Path(__file__).parents[1] / "golden" / "official"
CHECKPOINTS = (GOLDEN / "rq_clip_large.pth", GOLDEN / "GENIUS_t5small.pth")
BEAMS = (10, 50)


def published_features(path: Path) -> Features:
    """A file of the published code, `{img, text, img_mask, text_mask, id_to_index}`, in the order of its rows."""
    body = torch.load(path, weights_only=True)
    rows = torch.tensor(sorted(body["id_to_index"].values()))
    return Features(body["img"], body["text"], body["img_mask"].bool(), body["text_mask"].bool())[rows]


@pytest.fixture(scope="module")
def want() -> dict[str, Tensor]:
    return load_file(GOLDEN / "outputs.safetensors")


@pytest.fixture(scope="module")
def losses() -> dict[str, float]:
    with safe_open(GOLDEN / "outputs.safetensors", "pt") as file:
        return {name: float(value) for name, value in file.metadata().items()}


@pytest.fixture(scope="module")
def candidates() -> Features:
    return published_features(GOLDEN / "candidates.pt")


@pytest.fixture(scope="module")
def queries() -> Features:
    return published_features(GOLDEN / "queries.pt")


@pytest.fixture
def model() -> Genius:
    return convert_official(*CHECKPOINTS)


def close(ours: Tensor | None, theirs: Tensor) -> bool:
    return ours is not None and bool((ours - theirs).norm() <= 1e-4 * theirs.norm())


def test_codes_and_embeddings_are_equal(model: Genius, candidates: Features, queries: Features, want: dict[str, Tensor]) -> None:
    for features, kind in ((candidates, "cand"), (queries[want["asked"]], "query")):
        codes = model.encode(features)
        assert torch.equal(codes, want[f"{kind}.code"].long())
        z, dense = model.embed(features)
        torch.testing.assert_close(z, want[f"{kind}.encode"], atol=1e-5, rtol=0)
        torch.testing.assert_close(dense, want[f"{kind}.rerank"], atol=1e-5, rtol=0)
        torch.testing.assert_close(F.normalize(model.quantizer.decode(codes), dim=1), want[f"{kind}.quant"], atol=1e-5, rtol=0)


def test_every_step_log_probability_is_equal(model: Genius, want: dict[str, Tensor]) -> None:
    for beams in BEAMS:
        z, codes = want["z"].repeat_interleave(beams, 0), want[f"beams{beams}.codes"].long()
        with torch.no_grad():
            log_p = model.generator(z, codes.flatten(0, 1)).unflatten(0, (-1, beams))
        torch.testing.assert_close(log_p, want[f"beams{beams}.log_p"], atol=1e-4, rtol=0)


@pytest.mark.parametrize("told", [False, True])
def test_quantizer_training_step_losses_gradients_and_codebooks(
    told: bool, model: Genius, candidates: Features, queries: Features, want: dict[str, Tensor], losses: dict[str, float]
) -> None:
    """The same whether the quantizer is told the modalities (as training here does) or not: the published one never is."""
    n = len(want["rq.query"])
    both = Features.cat([queries[want["rq.query"]], candidates[want["rq.target"]]])
    z = model.fusion(both)
    quantized = model.quantizer.quantize(z, both.modality if told else None)
    assert torch.equal(quantized.codes, want["rq.codes"].long())
    ours = {
        "cl_loss": contrastive(z[:n], z[n:], temperature=0.01)[0],
        "rq_loss": 100 * residual_loss(quantized.residuals, quantized.chosen),
        "mse_loss": 100 * reconstruction_loss(quantized.vectors[:n], quantized.vectors[n:]),
    }
    ours["loss"] = torch.stack(list(ours.values())).sum()  # Eq. 8
    for name, loss in ours.items():
        assert loss.item() == pytest.approx(losses[name], rel=1e-4), name
    ours["loss"].backward()
    for mine, theirs in _FUSION.items():
        for kind in ("weight", "bias"):
            assert close(getattr(getattr(model.fusion, mine), kind).grad, want[f"rq.grad.encoder.{theirs}.{kind}"]), mine
    model.quantizer.update(quantized.codes, [r.detach() for r in quantized.residuals])
    for level in range(model.config.quantizer.levels):
        book = {kind: want[f"rq.after.residual_rq.layers.{level}._codebook.{kind}"][0] for kind in ("cluster_size", "embed")}
        alive = book["cluster_size"] != 2.0  # rows revived as dead are random in both
        torch.testing.assert_close(model.quantizer.codebook(level)[alive], book["embed"][alive], atol=1e-5, rtol=1e-4)
        assert alive.float().mean() > 0.9


def test_generator_training_step_loss_and_gradients(
    model: Genius, candidates: Features, queries: Features, want: dict[str, Tensor], losses: dict[str, float]
) -> None:
    query, target = queries[want["gen.query"]], candidates[want["gen.target"]]
    z = Augmentation(form="sqrt-per-dimension")(model.embed(query)[0], model.embed(target)[0], want["gen.beta"])
    codes = model.encode(target)
    loss = code_losses(model.generator.code_log_probs(z, codes), codes).mean()  # Eq. 10, mean over tokens as published
    assert loss.item() == pytest.approx(losses["generator"], rel=1e-4)
    assert loss.item() == pytest.approx(-model.generator(z, codes).mean().item(), rel=1e-5)
    loss.backward()
    generator = model.generator
    pairs = {
        "id_generator.shared.weight": generator.tokens.weight,
        "id_generator.encoder.final_layer_norm.weight": generator.prefix_norm.weight,
        "id_generator.decoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight": generator.position_bias.weight,
        "id_generator.decoder.block.1.layer.1.EncDecAttention.v.weight": generator.blocks[1].cross_attention.v.weight,
        "id_generator.decoder.block.0.layer.2.DenseReluDense.wo.weight": generator.blocks[0].ff_out.weight,
        "embed_projector.0.bias": generator.prefix.bias,
    }
    for name, parameter in pairs.items():
        assert close(parameter.grad, want[f"gen.grad.{name}"]), name


def test_a_converted_folder_reproduces_the_published_ids(
    tmp_path: Path, want: dict[str, Tensor], candidates: Features, queries: Features
) -> None:
    files = ["--quantizer", str(CHECKPOINTS[0]), "--generator", str(CHECKPOINTS[1]), "--output", str(tmp_path / "model")]
    subprocess.run([sys.executable, "-m", "genius", "convert", "official", *files], check=True, capture_output=True)
    model = Genius.from_pretrained(tmp_path / "model")
    assert model.config.quantizer.level_sizes == (3, 64, 64, 64, 64)
    assert torch.equal(model.encode(candidates), want["cand.code"])
    trie = CodeTrie.build(want["pool_codes"].long().numpy(), model.config.quantizer.level_sizes)
    z, _ = model.embed(queries[want["asked"]])
    for beams in BEAMS:
        found = beam_search(model.generator, trie, z, beams)
        assert torch.equal(found.codes, want[f"beams{beams}.codes"])
        torch.testing.assert_close(found.scores, want[f"beams{beams}.scores"], atol=1e-4, rtol=0)
