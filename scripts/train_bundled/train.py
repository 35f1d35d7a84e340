"""Step 2: train the bundled model. On a GPU in a few minutes; `--trial` on a CPU checks that everything runs.

PYTHONPATH=src:scripts/train_bundled python scripts/train_bundled/train.py --data carry/mini --out OUT
"""

from __future__ import annotations

import argparse
import json
import tarfile
import tempfile
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from learn import Lessons, Plan, Student, Tasks, dense_hits, pool_features, question_features, run, start_from_teacher
from teacher import teach

from data import TextTable, language_texts, load_bench, start_drawing
from genius.encoders.mini import MiniConfig, MiniEncoder
from genius.encoders.tokens import Tokens
from genius.model.fusion import Fusion, FusionConfig, score_fusion
from genius.packing import pack, unpack

FUSION = {"projection": 256, "hidden": 512}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=Plan.seconds)
    parser.add_argument("--language-seconds", type=float, default=Plan.language_seconds)
    parser.add_argument("--batch", type=int, default=Plan.batch)
    parser.add_argument("--generator-steps", type=int, default=2500)
    parser.add_argument("--workers", type=int, default=16)
    parser.add_argument("--no-finish", action="store_true", help="train the encoder only")
    parser.add_argument("--trial", action="store_true", help="a few steps on little data")
    args = parser.parse_args()
    started = time.time()
    args.out.mkdir(parents=True, exist_ok=True)
    file = (args.out / "log.txt").open("w", encoding="utf-8")

    def log(line: str) -> None:
        line = f"[{time.time() - started:6.1f}] {line}"
        print(line, flush=True)
        print(line, file=file, flush=True)

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    torch.backends.cuda.enable_cudnn_sdp(False)  # it plans anew for every shape of a batch
    limit = 400 if args.trial else None
    rendering = start_drawing(args.data, limit, args.workers)
    log("archive read, rendering")
    tokens = Tokens.load(args.data / "tokenizer.json", MiniConfig().text_length)
    config = MiniConfig(text_vocabulary=tokens.tokenizer.get_vocab_size(), storage="int8")
    encoder = MiniEncoder(config, tokens, normed=True)
    plan = Plan(args.language_seconds, args.seconds, args.batch, min(Plan.language_batch, args.batch))
    student_texts, teacher_texts = language_texts(args.data, 100 if args.trial else None)
    table = TextTable.make(tokens.tokenizer, student_texts, 48, device)
    log(f"{len(student_texts):,} texts tokenised")
    vectors = teach(args.data, teacher_texts, device, 64 if args.trial else 2048)
    log("teacher has read them")
    bench = load_bench(args.data, tokens.tokenizer, rendering, device, limit)
    log(
        f"{len(bench.drawings):,} drawings, {len(bench.pool_image):,} candidates, "
        f"{len(bench.questions['train'].task):,} training questions"
    )
    spoken = [(c, text) for c, (names, tags) in enumerate(bench.words) for text in (*names[:2], *tags[:6])]
    if args.trial:
        spoken = spoken[:200]
    said = teach(args.data, [text for _, text in spoken], device, 64 if args.trial else 2048).float()
    owner = torch.tensor([c for c, _ in spoken], device=device)
    concept_vectors = F.normalize(torch.zeros(len(bench.words), said.shape[1], device=device).index_add_(0, owner, said), dim=1)
    log("concepts described")
    student = Student(encoder, Fusion(FusionConfig(config.width, **FUSION)), said.shape[1]).to(device)
    student.encoder.image.stem.to(memory_format=torch.channels_last)
    pieces = [tokens.tokenizer.id_to_token(i).removeprefix("##") for i in range(tokens.tokenizer.get_vocab_size())]
    if args.trial:  # a CPU would read them for minutes
        start_from_teacher(student, torch.randn(len(pieces), said.shape[1], device=device))
    else:
        start_from_teacher(student, teach(args.data, pieces, device))
    parameters = {
        name: sum(p.numel() for p in part.parameters())
        for name, part in (("image", encoder.image), ("text", encoder.text), ("fusion", student.fusion))
    }
    log(f"parameters {parameters}")
    run(student, Lessons(table, vectors, bench), Tasks(bench, concept_vectors, plan), plan, log)
    student.encoder.image.fold()
    for part in (student.encoder, student.fusion):  # from here on with the values that the files will hold
        part.load_state_dict(unpack(pack(part.state_dict())))
    student.to(device).eval()
    folder = Path(tempfile.mkdtemp())  # the model folder; it leaves as two archives, few files being easier to bring home
    student.encoder.save(folder / "encoder")
    archive(folder, ["encoder"], args.out / "encoder.tar")
    log("encoder saved")
    items = pool_features(student, bench)
    results = {}
    for split in ("val", "test"):
        questions = question_features(student, bench, bench.questions[split])
        for name, embed in (("z", student.fusion), ("sum", score_fusion)):
            with torch.no_grad():
                pool = torch.cat([embed(items[i : i + 8192]).float() for i in range(0, len(items), 8192)])
                found = dense_hits(embed(questions).float(), pool, bench, bench.questions[split])
            results[f"{split}/dense-{name}"] = found
            log(
                f"{split} dense {name}: "
                + "  ".join(f"{t}: " + "/".join(f"{v[f'hit@{k}']:.1f}" for k in (1, 5, 10)) for t, v in found.items())
            )
    (args.out / "results.json").write_text(json.dumps(results, indent=1))
    if not args.no_finish:
        from finish import finish

        results.update(finish(student, bench, items, folder, log, trial=args.trial, steps=args.generator_steps))
        (args.out / "results.json").write_text(json.dumps(results, indent=1))
        archive(folder, ["config.json", "model.safetensors"], args.out / "model.tar")
    log("done")


def archive(folder: Path, names: list[str], target: Path) -> None:
    with tarfile.open(target, "w") as tar:
        for name in names:
            tar.add(folder / name, arcname=name)


if __name__ == "__main__":
    main()
