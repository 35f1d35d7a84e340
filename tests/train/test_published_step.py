"""Our losses on the published training step: same numbers, same gradients (needs the golden files beside the checkout)."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

GOLDEN = Path(__file__).parents[3] / "shared" / "golden" / "official-tiny"
pytestmark = pytest.mark.skipif(not GOLDEN.is_dir(), reason="../shared/golden/official-tiny is not here")

# their names -> ours
FUSION = {
    "encoder.text_projection_layer": "project_text",
    "encoder.image_projection_layer": "project_image",
    "encoder.combiner_layer": "mix_hidden",
    "encoder.output_layer": "mix_output",
    "encoder.dynamic_scalar.0": "balance_hidden",
    "encoder.dynamic_scalar.3": "balance_output",
}


def close(ours: torch.Tensor, theirs: torch.Tensor) -> bool:
    return bool((ours - theirs).norm() <= 1e-4 * theirs.norm())


@pytest.fixture(scope="module")
def parts():  # type: ignore[no-untyped-def]
    from genius.data.features import CANDIDATES_PER_DATASET, QUERIES_PER_DATASET, read_published
    from genius.model.official import convert_official

    model = convert_official(GOLDEN / "checkpoint" / "rq_clip_large.pth", GOLDEN / "checkpoint" / "GENIUS_t5small.pth")
    queries, _ = read_published(GOLDEN / "query_SFpretrained_instruction_IT_dict.pt", QUERIES_PER_DATASET)
    pool, _ = read_published(GOLDEN / "cand_pool_golden_IT_dict.pt", CANDIDATES_PER_DATASET)
    return model, queries, pool


def test_quantizer_step(parts) -> None:  # type: ignore[no-untyped-def]
    from genius.features import Features
    from genius.train.losses import contrastive, reconstruction_loss, residual_loss

    model, queries, pool = parts
    golden = torch.load(GOLDEN / "rq_train_step.pt", weights_only=True)
    both = Features.cat([queries[golden["query_index"]], pool[golden["target_index"]]])
    model.fusion.zero_grad()
    z = model.fusion(Features(both.image.float(), both.text.float(), both.image_mask, both.text_mask))
    quantized = model.quantizer.quantize(z, both.modality)
    assert torch.equal(quantized.codes, golden["codes"])
    query, target = z.chunk(2)
    cl, _ = contrastive(query, target, temperature=0.01)
    rq = 100 * residual_loss(quantized.residuals, quantized.chosen, "mean")
    mse = 100 * reconstruction_loss(*quantized.vectors.chunk(2), "mean")
    for ours, theirs in ((cl, "cl_loss"), (rq, "rq_loss"), (mse, "mse_loss"), (cl + rq + mse, "loss")):
        assert ours.item() == pytest.approx(golden["losses"][theirs], rel=1e-4)
    (cl + rq + mse).backward()
    for theirs, ours in FUSION.items():
        for kind in ("weight", "bias"):
            assert close(getattr(getattr(model.fusion, ours), kind).grad, golden["grads"][f"{theirs}.{kind}"]), theirs


def test_generator_step(parts) -> None:  # type: ignore[no-untyped-def]
    from genius.train.generator import Augmentation
    from genius.train.losses import code_loss

    model, queries, pool = parts
    golden = torch.load(GOLDEN / "gen_train_step.pt", weights_only=True)
    query, target = model.embed(queries[golden["query_index"]])[0], model.embed(pool[golden["target_index"]])[0]
    codes = model.quantizer.encode(target, pool[golden["target_index"]].modality)
    z = Augmentation("sqrt-per-dimension")(query, F.normalize(target, dim=1), golden["beta_sample"])
    loss = code_loss(model.generator.code_log_probs(z, codes), codes)
    assert loss.item() == pytest.approx(golden["out"]["loss"], rel=1e-4)
    model.generator.zero_grad()
    loss.backward()
    assert close(model.generator.tokens.weight.grad, golden["grads"]["id_generator.shared.weight"])
    assert close(model.generator.prefix.weight.grad, golden["grads"]["embed_projector.0.weight"])
