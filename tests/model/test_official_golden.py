"""The published code's stored outputs, and ours. Skipped where the golden files are absent."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from genius.data.features import CANDIDATES_PER_DATASET, QUERIES_PER_DATASET, read_published
from genius.features import Features
from genius.model.genius import Genius
from genius.model.official import _FUSION, convert_official
from genius.train.generator import Augmentation
from genius.train.losses import contrastive, reconstruction_loss, residual_loss

GOLDEN = Path(__file__).parents[3] / "shared" / "golden" / "official-tiny"
pytestmark = pytest.mark.skipif(not GOLDEN.is_dir(), reason="the published code's golden outputs are not beside this checkout")


def stored(name: str) -> Any:
    return torch.load(GOLDEN / name, weights_only=False)


@pytest.fixture(scope="module")
def candidates() -> Features:
    return read_published(GOLDEN / "cand_pool_golden_IT_dict.pt", CANDIDATES_PER_DATASET)[0]


@pytest.fixture(scope="module")
def queries() -> Features:
    return read_published(GOLDEN / "query_SFpretrained_instruction_IT_dict.pt", QUERIES_PER_DATASET)[0]


@pytest.fixture
def model() -> Genius:
    return convert_official(GOLDEN / "checkpoint/rq_clip_large.pth", GOLDEN / "checkpoint/GENIUS_t5small.pth")


def test_codes_and_embeddings_are_equal(model: Genius, candidates: Features, queries: Features) -> None:
    expected = stored("rq_inference.pt")
    for features, want in ((candidates, expected["cand"]), (queries[slice(-64, None)], expected["query"])):
        codes = model.encode(features)
        assert torch.equal(codes, want["code"])
        z, dense = model.embed(features)
        torch.testing.assert_close(z, want["encode"], atol=1e-5, rtol=0)
        torch.testing.assert_close(dense, want["rerank"], atol=1e-5, rtol=0)
        torch.testing.assert_close(F.normalize(model.quantizer.decode(codes), dim=1), want["quant"], atol=1e-5, rtol=0)


def test_every_step_log_probability_is_equal(model: Genius) -> None:
    golden = stored("beam_golden.pt")
    for beams, want in golden["beams"].items():
        z = golden["z"].repeat_interleave(beams, 0)
        with torch.no_grad():
            log_p = model.generator(z, want["codes"].flatten(0, 1)).unflatten(0, (-1, beams))
        torch.testing.assert_close(log_p, want["step_logprobs"], atol=1e-4, rtol=0)


def test_quantizer_training_step_losses_gradients_and_codebooks(model: Genius, candidates: Features, queries: Features) -> None:
    want = stored("rq_train_step.pt")
    n = len(want["query_index"])
    z = model.fusion(Features.cat([queries[want["query_index"]], candidates[want["target_index"]]]))
    quantized = model.quantizer.quantize(z)
    assert torch.equal(quantized.codes, want["codes"])
    losses = {
        "cl_loss": contrastive(z[:n], z[n:], temperature=0.01)[0],
        "rq_loss": 100 * residual_loss(quantized.residuals, quantized.chosen),
        "mse_loss": 100 * reconstruction_loss(quantized.vectors[:n], quantized.vectors[n:]),
    }
    losses["loss"] = torch.stack(list(losses.values())).sum()  # Eq. 8
    for name, loss in losses.items():
        assert loss.item() == pytest.approx(want["losses"][name], rel=1e-4), name
    losses["loss"].backward()
    for ours, theirs in _FUSION.items():
        for kind in ("weight", "bias"):
            gradient = getattr(getattr(model.fusion, ours), kind).grad
            expected = want["grads"][f"encoder.{theirs}.{kind}"]
            assert (gradient - expected).norm() <= 1e-4 * expected.norm(), f"{ours}.{kind}"
    model.quantizer.update(quantized.codes, [r.detach() for r in quantized.residuals])
    for level in range(model.config.quantizer.levels):
        book = {
            k.rsplit(".", 1)[1]: v[0]
            for k, v in want["codebook_after_one_ema_step"].items()
            if k.startswith(f"residual_rq.layers.{level}.")
        }
        alive = book["cluster_size"] != 2.0  # rows revived as dead are random in both
        torch.testing.assert_close(model.quantizer.codebook(level)[alive], book["embed"][alive], atol=1e-5, rtol=1e-4)
        assert alive.float().mean() > 0.9


def test_generator_training_step_loss_and_gradients(model: Genius, candidates: Features, queries: Features) -> None:
    want = stored("gen_train_step.pt")
    query, target = queries[want["query_index"]], candidates[want["target_index"]]
    z = Augmentation(form="sqrt-per-dimension")(model.embed(query)[0], model.embed(target)[0], want["beta_sample"])
    loss = -model.generator(z, model.encode(target)).mean()  # Eq. 10, mean over tokens as published
    assert loss.item() == pytest.approx(want["out"]["loss"], rel=1e-4)
    loss.backward()
    pairs = {
        "id_generator.shared.weight": model.generator.tokens.weight,
        "id_generator.encoder.final_layer_norm.weight": model.generator.prefix_norm.weight,
        "id_generator.decoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight": model.generator.position_bias.weight,
        "id_generator.decoder.block.1.layer.1.EncDecAttention.v.weight": model.generator.blocks[1].cross_attention.v.weight,
        "id_generator.decoder.block.0.layer.2.DenseReluDense.wo.weight": model.generator.blocks[0].ff_out.weight,
    }
    for name, parameter in pairs.items():
        assert (parameter.grad - want["grads"][name]).norm() <= 1e-4 * want["grads"][name].norm(), name


def test_the_three_commands_reproduce_the_published_files(tmp_path: Path) -> None:
    def genius(*arguments: str | Path) -> None:
        subprocess.run([sys.executable, "-m", "genius", *map(str, arguments)], check=True, capture_output=True)

    checkpoints = GOLDEN / "checkpoint"
    genius(
        "convert",
        "official",
        "--quantizer",
        checkpoints / "rq_clip_large.pth",
        "--generator",
        checkpoints / "GENIUS_t5small.pth",
        "--output",
        tmp_path / "model",
    )
    assert json.loads((tmp_path / "model/config.json").read_text())["model"]["quantizer"]["level_sizes"] == [3, 64, 64, 64, 64]
    genius("features", "encode", tmp_path / "model", GOLDEN / "cand_pool_golden_IT_dict.pt", "--output", tmp_path / "codes.npy")
    codes = np.load(tmp_path / "codes.npy")
    assert np.array_equal(codes, np.load(GOLDEN / "mbeir_golden_cand_pool_codes.npy"))

    body = torch.load(GOLDEN / "query_SFpretrained_instruction_IT_dict.pt", weights_only=True)
    last = {name: body[name][-64:].clone() for name in ("img", "text", "img_mask", "text_mask")}
    torch.save({**last, "id_to_index": {i: i for i in range(64)}}, tmp_path / "queries.pt")
    for beams in (10, 30, 50):
        genius(
            "features",
            "search",
            tmp_path / "model",
            tmp_path / "queries.pt",
            "--codes",
            tmp_path / "codes.npy",
            "--beams",
            str(beams),
            "--output",
            tmp_path / "out.npz",
        )
        found = np.load(tmp_path / "out.npz")
        assert np.array_equal(found["codes"], np.load(GOLDEN / f"mbeir_golden_test_codes_beam{beams}.npy"))
        want = stored("beam_golden.pt")["beams"][beams]["sequences_scores"].numpy()
        np.testing.assert_allclose(found["scores"], want, atol=1e-4, rtol=0)
