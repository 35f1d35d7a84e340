"""The model folder: save, load, fingerprint, bad folders; fusion's masks; the generator's cache."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from genius.errors import GeniusError
from genius.features import Features
from genius.model.fusion import FusionConfig
from genius.model.generator import SIZES, Augmentation, Generator, GeneratorConfig
from genius.model.genius import Genius, GeniusConfig
from genius.model.quantizer import QuantizerConfig

LEVELS = (3, 6, 5)


def tiny(seed: int = 0) -> Genius:
    torch.manual_seed(seed)
    return Genius(
        GeniusConfig(
            FusionConfig(8, 12, 12),
            QuantizerConfig(8, LEVELS),
            GeneratorConfig(8, LEVELS, d_model=16, layers=2, heads=2, d_kv=8, d_ff=24, prefix_tokens=3),
        )
    )


def some_features(n: int = 9) -> Features:
    image_mask = torch.arange(n) % 3 != 1
    return Features(torch.randn(n, 8), torch.randn(n, 8), image_mask, torch.arange(n) % 3 != 0)


def test_save_and_load_give_the_same_model(tmp_path: Path) -> None:
    model, features = tiny(), some_features()
    model.save_pretrained(tmp_path / "m")
    again = Genius.from_pretrained(tmp_path / "m")
    assert again.config == model.config and again.fingerprint() == model.fingerprint()
    assert torch.equal(again.encode(features), model.encode(features))
    assert sorted(p.name for p in (tmp_path / "m").iterdir()) == ["config.json", "digests.json", "model.safetensors"]


def test_the_fingerprint_changes_with_any_weight() -> None:
    model = tiny()
    seen = {model.fingerprint()}
    for name, tensor in model.state_dict().items():
        tensor.view(-1)[0] += 1
        seen.add(model.fingerprint())
        assert len(seen) == 2, name
        tensor.view(-1)[0] -= 1
        seen = {model.fingerprint()}


def test_bad_folders_get_one_line(tmp_path: Path) -> None:
    with pytest.raises(GeniusError, match="no such model"):
        Genius.from_pretrained(tmp_path / "absent")
    (tmp_path / "empty").mkdir()
    with pytest.raises(GeniusError, match="is missing"):
        Genius.from_pretrained(tmp_path / "empty")
    tiny().save_pretrained(tmp_path / "m")

    def broken(name: str) -> Path:
        shutil.copytree(tmp_path / "m", tmp_path / name)
        return tmp_path / name

    folder = broken("field")
    body = json.loads((folder / "config.json").read_text())
    body["model"]["quantizer"]["colour"] = "red"
    (folder / "config.json").write_text(json.dumps(body))
    with pytest.raises(GeniusError, match="unknown field 'colour'"):
        Genius.from_pretrained(folder)
    folder = broken("weights")
    (folder / "model.safetensors").write_bytes(b"garbage")
    with pytest.raises(GeniusError, match="cannot read the weights"):
        Genius.from_pretrained(folder)
    folder = broken("sizes")
    tensors = load_file(folder / "model.safetensors")
    tensors["fusion.mix_output.bias"] = torch.zeros(9)
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(GeniusError, match="does not fit"):
        Genius.from_pretrained(folder)


def test_a_missing_modality_counts_as_zero_even_if_it_is_nan() -> None:
    model = tiny()
    text = torch.randn(2, 8)
    only_text = torch.tensor([False, False]), torch.tensor([True, True])
    clean = Features(torch.zeros(2, 8), text, *only_text)
    dirty = Features(torch.full((2, 8), float("nan")), text, *only_text)
    assert torch.equal(model.embed(clean)[0], model.embed(dirty)[0])
    assert model.embed(clean)[0].norm(dim=1).allclose(torch.ones(2))


def test_bad_features_get_one_line() -> None:
    model, features = tiny(), some_features(3)
    with pytest.raises(GeniusError, match="NaN"):
        model.embed(Features(torch.full((3, 8), float("nan")), features.text, features.image_mask, features.text_mask))
    with pytest.raises(GeniusError, match="wide"):
        model.embed(Features(torch.zeros(1, 9), torch.zeros(1, 9), torch.tensor([True]), torch.tensor([True])))
    with pytest.raises(GeniusError, match="neither"):
        model.embed(Features(torch.zeros(1, 8), torch.zeros(1, 8), torch.tensor([False]), torch.tensor([False])))
    with pytest.raises(GeniusError, match="no encoder"):
        model.embed_items([])


@pytest.mark.parametrize("normalizer", ["vocabulary", "level"])
def test_stepping_with_the_cache_equals_one_pass(normalizer: str) -> None:
    torch.manual_seed(0)
    generator = Generator(
        GeneratorConfig(8, LEVELS, d_model=16, layers=2, heads=2, d_kv=8, d_ff=24, prefix_tokens=3, normalizer=normalizer)
    ).eval()  # type: ignore[arg-type]
    z, codes = torch.randn(4, 8), torch.stack([torch.randint(k, (4,)) for k in LEVELS], 1)
    with torch.no_grad():
        whole = generator(z, codes)
        cross, past, tokens = generator.cross_memory(z), None, torch.zeros(4, 1, dtype=torch.long)
        for level in range(3):
            hidden, past = generator.hidden(tokens, cross, past)
            log_p = generator.log_probs(hidden[:, 0], level)
            torch.testing.assert_close(log_p.gather(1, codes[:, level : level + 1])[:, 0], whole[:, level])
            if normalizer == "level":
                assert log_p.exp().sum(1).allclose(torch.ones(4))
            tokens = generator.token(codes[:, level : level + 1], level)


def test_the_papers_sizes() -> None:
    """T5-small with 9 levels of 4096 has the parameter count of the published checkpoint's decoder."""
    with torch.device("meta"):
        generator = Generator(GeneratorConfig(**SIZES["small"]))
    assert generator.config.vocabulary == 32774
    count = sum(p.numel() for name, p in generator.named_parameters() if not name.startswith("prefix."))
    assert count == 32774 * 512 + 6 * (8 * 512 * 512 + 2 * 512 * 2048 + 3 * 512) + 32 * 8 + 2 * 512


def test_augmentation_stays_between_query_and_target() -> None:
    torch.manual_seed(0)
    query, target = (torch.nn.functional.normalize(torch.randn(200, 8), dim=1) for _ in range(2))
    for form in ("scalar", "sqrt-per-dimension"):
        mixed = Augmentation(form=form)(query, target)  # type: ignore[arg-type]
        assert mixed.norm(dim=1).allclose(torch.ones(200))
        assert ((mixed * (query + target)).sum(1) > 0).all()
    scalar = Augmentation(form="scalar")(query, target, torch.full((200, 1), 0.25))
    torch.testing.assert_close(scalar, torch.nn.functional.normalize(0.25 * query + 0.75 * target, dim=1))  # Eq. 11
    assert torch.equal(Augmentation(form="none")(query, target), query)
    kept = (Augmentation(keep=0.5)(query, target) == query).all(1).float().mean()
    assert 0.3 < kept < 0.7
