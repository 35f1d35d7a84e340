"""Step 2, the rest: codebooks and generator on the frozen encoder and fusion, by the library's own stages; then measure.

Codebooks and indexing pairs use the vectors of the whole pool (no labels of validation or test questions): that is what
indexing a collection means. The questions are the training split's.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import torch
from learn import Student, hits, question_features

from data import Bench, Questions
from genius.data.features import FeatureSet
from genius.features import Features
from genius.model.genius import Genius, GeniusConfig
from genius.packing import pack, unpack
from genius.search import CodeTrie, SearchEngine, SearchParams
from genius.train.config import GeneratorStageConfig, ModelConfig, QuantizerStageConfig
from genius.train.generator import GeneratorStage, freeze
from genius.train.loop import Runtime, make_accelerator, run_stage
from genius.train.progress import Journal
from genius.train.quantizer import QuantizerStage

LEVELS = (3, 512, 512, 512, 512, 512)
SEARCHES = {
    "genius": SearchParams(beams=50, rerank=0, reranker="none"),
    "genius_r": SearchParams(beams=50, rerank=0, reranker="embeddings"),
    "default": SearchParams(),
}


def finish(
    student: Student, bench: Bench, items: Features, out: Path, log: Any, *, trial: bool, steps: int = 2500
) -> dict[str, Any]:
    """Write the model folder to `out` and return what was measured."""
    device = bench.flat.device
    questions = bench.questions["train"]
    rows = torch.randperm(len(questions.task), device=device)[: 2000 if trial else None].sort().values
    questions = Questions(questions.image[rows], questions.text[rows], questions.task[rows], questions.answers[rows])
    features = question_features(student, bench, questions, prompt=None)
    pairs = torch.stack(bench.members(questions.answers), 1).cpu()
    data = FeatureSet(
        features.to("cpu"), items.to("cpu"), pairs, [str(i) for i in range(len(features))], [str(i) for i in range(len(items))]
    )
    log(f"{len(features):,} training questions, {len(pairs):,} pairs")
    sizes = ModelConfig(
        width=student.encoder.width, projection=student.fusion.config.projection, hidden=student.fusion.config.hidden,
        level_sizes=(3, 32, 32, 32) if trial else LEVELS, decoder="tiny" if trial else "mini", prefix_tokens=8,
    )  # fmt: skip
    second = QuantizerStage(data, None, sizes, QuantizerStageConfig(steps=0), 0, device).to(device)
    second.fusion.load_state_dict(student.fusion.state_dict())
    second.eval()
    second.finish()
    second.quantizer.load_state_dict(unpack(pack(second.quantizer.state_dict(), half=("codes_",))))  # as the file will hold them
    second.to(device)
    log("codebooks: " + ", ".join(f"{n} {v:.3f}" for n, v in second.validate().items()))
    frozen = freeze(second.embed, data, second.quantizer, False)
    training = GeneratorStageConfig(steps=5 if trial else steps, batch=32 if trial else 1024, lr=1e-3)
    third = GeneratorStage(data, None, frozen, None, second.quantizer, sizes, training, 0)
    with tempfile.TemporaryDirectory() as folder:
        runtime = Runtime(make_accelerator(), Journal(Path(folder), quiet=True, tensorboard=False, active=True), 0)
        run_stage(third, training, runtime, Path(folder) / "generator")
    third.eval()
    log("generator trained")
    config = GeniusConfig(fusion=second.fusion.config, quantizer=second.quantizer.config, generator=third.generator.config)
    model = Genius(config, student.encoder.to("cpu")).to(device)
    for part, trained in ((model.fusion, second.fusion), (model.quantizer, second.quantizer), (model.generator, third.generator)):
        part.load_state_dict(trained.state_dict())
    model.save_pretrained(out, dtype=torch.int8)
    model = Genius.from_pretrained(out, device=str(device))  # what users will load
    log("model saved: " + json.dumps({p.name: p.stat().st_size for p in out.rglob("*") if p.is_file()}))
    student.encoder.to(device)
    return measure(model, bench, student, items, log, trial)


@torch.no_grad()
def measure(model: Genius, bench: Bench, student: Student, items: Features, log: Any, trial: bool) -> dict[str, Any]:
    """hit@1/5/10 of every search on validation and test questions, over the whole pool."""
    z, _ = model.embed(items)
    codes = model.quantizer.encode(z, items.modality.to(z.device))
    trie = CodeTrie.build(codes.cpu().numpy(), model.config.quantizer.level_sizes)
    engine = SearchEngine(model.generator, model.quantizer, trie, z, device=str(z.device))
    results: dict[str, Any] = {}
    for split in ("val", "test"):
        q = bench.questions[split]
        if trial:
            q = Questions(q.image[:40], q.text[:40], q.task[:40], q.answers[:40])
        asked, _ = model.embed(question_features(student, bench, q))
        for name, params in SEARCHES.items():
            if split == "val" and name != "default":
                continue
            found, touched = [], []
            for part in asked.split(256):
                result = engine.search(part, k=10, params=params)
                found.append(result.rows)
                touched.append(result.touched)
            table = hits(torch.cat(found).to(bench.flat.device), bench, q)
            mean = torch.cat(touched).float().mean().item()
            results[f"{split}/{name}"] = {"hits": table, "touched": mean}
            log(f"{split} {name} ({mean:.0f} touched): " + "  ".join(f"{t}: {v['hit@5']:.1f}" for t, v in table.items()))
    return results
