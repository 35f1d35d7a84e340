"""Step 2, the rest: codebooks and generator on the frozen encoder and fusion, by the library's own stages; then measure.

Codebooks and indexing pairs use the vectors of the whole pool (no labels of validation or test questions): that is what
indexing a collection means. The questions are the training split's.
"""

from __future__ import annotations

import json
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from learn import rate
from measure import drawing_vectors, hits, pool_features, question_features, text_vectors
from safetensors.torch import save_file
from student import Student
from torch import Tensor, nn

from data import SPLITS, Bench, Questions
from genius.data.features import FeatureSet
from genius.model.genius import Genius, GeniusConfig
from genius.packing import pack, unpack
from genius.search import CodeTrie, SearchEngine, SearchParams
from genius.train.config import GeneratorStageConfig, ModelConfig, QuantizerStageConfig
from genius.train.generator import GeneratorStage, freeze
from genius.train.quantizer import QuantizerStage

LEVELS = (3, 512, 512, 512, 512)
DECODER = "compact"
SEARCHES = {
    "default": SearchParams(),
    "default+geometry": SearchParams(geometry=0.5),
    "default+more-geometry": SearchParams(geometry=1.0),
    "genius_r": SearchParams(beams=50, rerank=0, reranker="embeddings"),
    "genius": SearchParams(beams=50, rerank=0, reranker="none"),
}
Log = Callable[[str], None]


def finish(student: Student, bench: Bench, out: Path, log: Log, *, trial: bool, seconds: float) -> dict[str, Any]:
    """Write the model folder to `out` and return what was measured."""
    device, q = bench.flat.device, bench.questions["train"]
    drawings = drawing_vectors(student, bench)
    items = pool_features(student, bench, drawings)
    features = question_features(student, bench, q, drawings, None)
    pairs = torch.stack(bench.members(q.answers), 1)
    data = FeatureSet(features, items, pairs.cpu(), [str(i) for i in range(len(features))], [str(i) for i in range(len(items))])
    log(f"{len(features):,} training questions, {len(pairs):,} pairs")
    sizes = ModelConfig(
        width=student.encoder.width, projection=student.fusion.config.projection, hidden=student.fusion.config.hidden,
        level_sizes=(3, 32, 32, 32) if trial else LEVELS, decoder=DECODER, prefix_tokens=6,
    )  # fmt: skip
    second = QuantizerStage(data, None, sizes, QuantizerStageConfig(steps=0), 0, device).to(device)
    second.fusion.load_state_dict(student.fusion.state_dict())
    second.eval()
    second.finish()
    second.quantizer.load_state_dict(unpack(pack(second.quantizer.state_dict(), half=("codes_",))))  # as the file will hold them
    second.to(device)
    log("codebooks: " + ", ".join(f"{n} {v:.3f}" for n, v in second.validate().items()))
    frozen = freeze(second.embed, data, second.quantizer, False)
    training = GeneratorStageConfig(
        steps=1, batch=32 if trial else 2048, lr=1e-3, distill_weight=1.0, distill_candidates=8 if trial else 24
    )
    third = GeneratorStage(data, None, frozen, None, second.quantizer, sizes, training, 0)
    log("generator set up")
    train_generator(third, seconds, log)
    config = GeniusConfig(fusion=second.fusion.config, quantizer=second.quantizer.config, generator=third.generator.config)
    model = Genius(config, student.encoder.to("cpu")).to(device)
    for part, trained in ((model.fusion, second.fusion), (model.quantizer, second.quantizer), (model.generator, third.generator)):
        part.load_state_dict(trained.state_dict())
    model.save_pretrained(out, dtype=torch.int8)
    model = Genius.from_pretrained(out, device=str(device))  # what users will load
    log("model saved: " + json.dumps({p.name: p.stat().st_size for p in out.rglob("*") if p.is_file()}))
    student.encoder.to(device)
    try:
        return measure(model, bench, student, drawings, log, trial)
    except Exception:  # the model is safe; it can be measured elsewhere
        log(traceback.format_exc())
        return {}


def train_generator(stage: GeneratorStage, seconds: float, log: Log) -> None:
    """The library's stage, by the clock."""
    device = stage.frozen.pool.device
    decayed = [p for p in stage.generator.parameters() if p.ndim > 1]
    rest = [p for p in stage.generator.parameters() if p.ndim <= 1]
    groups = [{"params": decayed, "weight_decay": 1e-4}, {"params": rest, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=stage.config.lr, betas=(0.9, 0.98), fused=device.type == "cuda")
    started, step, spoken = time.time(), 0, time.time()
    stage.train()
    while (elapsed := time.time() - started) < seconds:
        for group in optimizer.param_groups:
            group["lr"] = stage.config.lr * rate(elapsed / seconds, step, 100)
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            loss, parts = stage(stage.batch(step, 0, 0, 1))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(stage.generator.parameters(), 1.0)
        optimizer.step()
        step += 1
        if time.time() - spoken > 10 or step == 1:
            spoken = time.time()
            log(f"generator step {step}: " + " ".join(f"{n} {v.item():.3f}" for n, v in parts.items()))
    log(f"generator: {step} steps in {time.time() - started:.0f} s")
    stage.eval()


@torch.no_grad()
def measure(model: Genius, bench: Bench, student: Student, drawings: Tensor, log: Log, trial: bool) -> dict[str, Any]:
    """hit@1/5/10 of every search on validation and test questions, over the whole pool."""
    items = pool_features(student, bench, drawings)
    z, _ = model.embed(items)
    codes = model.quantizer.encode(z, items.modality.to(z.device))
    trie = CodeTrie.build(codes.cpu().numpy(), model.config.quantizer.level_sizes)
    engine = SearchEngine(model.generator, model.quantizer, trie, z, device=str(z.device))
    results: dict[str, Any] = {}
    for split in ("val", "test"):
        q = bench.questions[split]
        if trial:
            q = Questions(q.image[::2], q.text[::2], q.task[::2], q.answers[::2])
        asked, _ = model.embed(question_features(student, bench, q, drawings))
        for name, params in SEARCHES.items():
            if trial:
                params = replace(params, beams=10, rerank=min(params.rerank, 50))
            if split == "val" and name.startswith("genius"):
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


@torch.no_grad()
def export(student: Student, bench: Bench, folder: Path, log: Log, training: int = 60_000, largest: int = 16_000_000) -> None:
    """Vectors of all drawings, of the candidates' texts and of the questions' texts with their instruction, as int8 rows with
    a scale, in files of at most `largest` bytes. `features.py` makes feature sets of them."""
    folder.mkdir(parents=True, exist_ok=True)
    device = bench.flat.device
    pool_texts = torch.unique(bench.pool_text[bench.pool_text >= 0])
    parts = {
        "drawings": drawing_vectors(student, bench),
        "pool-texts": text_vectors(student, bench.texts, pool_texts, bench.instructions, torch.full_like(pool_texts, -1)),
    }
    rows = {"pool-texts": pool_texts}
    for split in SPLITS:
        q = bench.questions[split]
        some = torch.arange(len(q.task), device=device)
        which = torch.zeros_like(some)
        if split == "train":
            some = torch.randperm(len(some), device=device)[:training].sort().values
            which = torch.randint(8, some.shape, device=device)
        parts[split] = text_vectors(student, bench.texts, q.text[some], bench.instructions, bench.by_task[q.task[some], which])
        rows[split] = some
    for name, vectors in parts.items():
        step = largest // (vectors.shape[1] + 2)
        for k, some in enumerate(vectors.split(step)):
            stored = pack({"vectors": some if len(some) > 16 else some.repeat(16, 1)})
            save_file(stored, folder / f"{name}-{k}.safetensors")
    save_file({n: r.int().cpu() for n, r in rows.items()}, folder / "rows.safetensors")
    log("features: " + json.dumps({p.name: p.stat().st_size for p in sorted(folder.iterdir())}))
