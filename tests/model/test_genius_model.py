"""The model folder: save, load, fingerprint, bad folders; fusion's masks; the generator's cache."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import pytest
import torch
from plain_beam import next_log_probs
from safetensors.torch import load_file, save_file

from genius.errors import GeniusError
from genius.features import Features
from genius.model.config import SIZES, FusionConfig, GeneratorConfig, GeniusConfig, QuantizerConfig, as_one_number
from genius.model.generator import Generator, by_modality
from genius.model.genius import Genius, for_each_modality
from genius.model.quantizer import ResidualQuantizer

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


def test_codes_are_computed_in_parts() -> None:
    """Vectors of the whole pool are never in memory at once."""
    model, features = tiny(), some_features(11)
    largest = 0
    embed = model.fusion.embed

    def watched(part: Features, chunk: int) -> torch.Tensor:
        nonlocal largest
        largest = max(largest, len(part))
        return embed(part, chunk)

    model.fusion.embed = watched  # type: ignore[method-assign]
    codes = model.encode(features, chunk=4)
    assert largest == 4 and torch.equal(codes, model.encode(features)) and largest == 11
    assert model.encode(features[:0]).shape == (0, len(LEVELS))


def test_the_fingerprint_changes_with_any_weight() -> None:
    model = tiny()
    seen = {model.fingerprint()}
    for name, tensor in model.network.state_dict().items():
        tensor.view(-1)[0] += 1
        seen.add(model.fingerprint())
        assert len(seen) == 2, name
        tensor.view(-1)[0] -= 1
        seen = {model.fingerprint()}


def test_a_field_that_comes_later_changes_no_fingerprint_until_it_is_used() -> None:
    """By construction: a subclass of every part with one field more, left at its default, is the same model."""
    model, before = tiny(), tiny().fingerprint()
    parts = {name: getattr(model.config, name) for name in ("fusion", "quantizer", "generator")}
    for name, part in {**parts, "": model.config}.items():
        longer = dataclasses.make_dataclass(
            "Longer", [("later", int, dataclasses.field(default=7))], bases=(type(part),), frozen=True, slots=True
        )
        values = {f.name: getattr(part, f.name) for f in dataclasses.fields(part)}
        for later, same in ((7, True), (8, False)):
            grown = longer(**values, later=later)
            model.config = dataclasses.replace(tiny().config, **{name: grown}) if name else grown
            assert (model.fingerprint() == before) is same, name


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


@pytest.mark.parametrize("kind", ["vocabulary", "level", "codebooks", "own codebooks"])
def test_stepping_with_the_cache_equals_one_pass(kind: str) -> None:
    torch.manual_seed(0)
    tied = "codebooks" in kind
    sizes = {"d_model": 16, "layers": 2, "heads": 2, "d_kv": 8, "d_ff": 24, "prefix_tokens": 3}
    config = GeneratorConfig(8, LEVELS, **sizes, normalizer="level" if tied else kind, head="codebooks" if tied else "table")  # type: ignore[arg-type]
    quantizer = ResidualQuantizer(QuantizerConfig(8, LEVELS, modality_codebooks_from=int(kind == "own codebooks")))
    generator = Generator(config, quantizer).eval()
    z, codes = torch.randn(4, 8), torch.stack([torch.randint(k, (4,)) for k in LEVELS], 1)
    with torch.no_grad():
        whole = generator(z, codes)
        cross, past = generator.cross_memory(z), None
        for level in range(3):
            hidden, past = generator.hidden(generator.inputs(codes[:, :level])[:, -1:], cross, past)
            rest = z - quantizer.decode_prefix(codes[:, :level]) if level else z
            log_p = generator.log_probs(level, hidden[:, 0], rest, by_modality(codes[:, 0]))
            torch.testing.assert_close(log_p.gather(1, codes[:, level : level + 1])[:, 0], whole[:, level])
            torch.testing.assert_close(log_p, next_log_probs(generator, z, codes[:, :level]))
            if kind != "vocabulary":
                assert log_p.exp().sum(1).allclose(torch.ones(4))


def test_an_untrained_head_is_nearness_with_a_temperature() -> None:
    """Before training, the likeliest code is the nearest one, at every level and for every modality's own books."""
    torch.manual_seed(0)
    quantizer = ResidualQuantizer(QuantizerConfig(8, (3, 20, 20), modality_codebooks_from=1))
    config = GeneratorConfig(8, (3, 20, 20), **SIZES["tiny"], prefix_tokens=2, normalizer="level", head="codebooks")  # type: ignore[arg-type]
    generator = Generator(config, quantizer).eval()
    z, modality = torch.nn.functional.normalize(torch.randn(60, 8), dim=1), torch.arange(60) % 3
    codes = quantizer.encode(z, modality)
    with torch.no_grad():
        for level in (1, 2):
            assert torch.equal(next_log_probs(generator, z, codes[:, :level]).argmax(1), codes[:, level])


def test_weights_from_before_each_kind_had_its_own_scale_load_and_keep_their_bytes() -> None:
    """Their fingerprint must stay, or indexes built with them would not open."""
    quantizer = ResidualQuantizer(QuantizerConfig(8, (3, 20, 20), modality_codebooks_from=1))
    config = GeneratorConfig(8, (3, 20, 20), **SIZES["tiny"], prefix_tokens=2, normalizer="level", head="codebooks")  # type: ignore[arg-type]
    generator = Generator(config, quantizer)
    old = {"codebook_head.log_scale": torch.tensor([0.1, 0.2]), "codebook_head.norm_weight": torch.tensor([0.3, 0.4])}
    wanted = generator.state_dict()
    generator.load_state_dict(wanted | for_each_modality(old, wanted))
    scales = [generator.codebook_head.scale(level, kind).item() for level in (1, 2) for kind in range(3)]
    assert scales == pytest.approx([7.389] * 3 + [54.598] * 3, rel=1e-3)
    for name, tensor in old.items():
        assert torch.equal(as_one_number(name, generator.state_dict()[name], 3), tensor)
    with torch.no_grad():
        generator.codebook_head.log_scale[1] += 0.1
    assert len(as_one_number("codebook_head.log_scale", generator.codebook_head.log_scale, 3)) == 6
    assert generator.codebook_head.scale(1, 1) > generator.codebook_head.scale(1, 0)


def test_weights_of_the_first_version_are_loaded_and_have_the_same_fingerprint(tmp_path: Path) -> None:
    """The head tied to the codebooks had another name in its files."""
    golden = Path(__file__).parents[1] / "golden" / "tied"
    assert any(".nearness." in name for name in load_file(golden / "model.safetensors"))
    old = Genius.from_pretrained(golden)
    old.save_pretrained(tmp_path)
    assert not any("nearness" in name for name in load_file(tmp_path / "model.safetensors"))
    assert Genius.from_pretrained(tmp_path).fingerprint() == old.fingerprint() == "6e455a7de3db15fe082c74dbbc006109"


def test_a_tied_head_does_not_grow_with_the_codebooks() -> None:
    counts = []
    for size in (16, 256):
        quantizer = ResidualQuantizer(QuantizerConfig(8, (3, size, size), modality_codebooks_from=1))
        config = GeneratorConfig(8, (3, size, size), **SIZES["tiny"], prefix_tokens=2, normalizer="level", head="codebooks")  # type: ignore[arg-type]
        counts.append(sum(p.numel() for p in Generator(config, quantizer).parameters()))
    assert counts[0] == counts[1]
    with pytest.raises(GeniusError, match="normalizes per level"):
        GeneratorConfig(8, (3, 16, 16), head="codebooks")
    with pytest.raises(GeniusError, match="first code is the modality"):
        Generator(config, ResidualQuantizer(QuantizerConfig(8, (16, 16, 16), modality_code="none")))


def test_the_papers_sizes() -> None:
    """T5-small with 9 levels of 4096 has the parameter count of the published checkpoint's decoder."""
    with torch.device("meta"):
        generator = Generator(GeneratorConfig(**SIZES["small"]))
    assert generator.config.vocabulary == 32774
    count = sum(p.numel() for name, p in generator.named_parameters() if not name.startswith("prefix."))
    assert count == 32774 * 512 + 6 * (8 * 512 * 512 + 2 * 512 * 2048 + 3 * 512) + 32 * 8 + 2 * 512
