"""Step 2: train the bundled model. On a GPU in a few minutes; `--trial` on a CPU checks that everything runs.

    python -m lab.mini.train render --data PACKED --work WORK    # drawings
    python -m lab.mini.train tokens --data PACKED --work WORK    # texts
    python -m lab.mini.train teach  --data PACKED --work WORK    # what the teacher says of them
    python -m lab.mini.train learn  --data PACKED --work WORK --out OUT

`learn` trains the encoder, measures it and writes it as an archive. Fusion, codes and decoder are then made by `lab.bundled`,
from the vectors that `lab.icons.vectors` takes from it.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

from genius.encoders.inputs import Tokens
from genius.encoders.mini import MiniConfig, MiniEncoder
from genius.model.config import FusionConfig
from genius.model.quantizer import Fusion
from genius.weight_arrays import unpack
from genius.weight_files import pack
from lab.mini.batches import Draws
from lab.mini.data import Bench, TextTable, language_texts, load_bench, read_arrays, render
from lab.mini.learn import Language, Plan, Teaching, results, run
from lab.mini.student import Student, start_from_teacher
from lab.mini.teacher import teach, tokenise

SIZES = {"image_stem": 96, "image_layers": 2, "text_layers": 3, "text_tokens": 128}
FUSION = {"projection": 256, "hidden": 256}
TEACHER_WIDTH = 384
NAMES, TAGS = 3, 8  # words of a concept that are used at most
Log = Callable[[str], None]


def tokens_of(data: Path) -> Tokens:
    return Tokens.load(data / "tokenizer.json", MiniConfig().text_length)


def new_student(data: Path) -> Student:
    tokens = tokens_of(data)
    config = MiniConfig(text_vocabulary=tokens.tokenizer.get_vocab_size(), storage="int8", **SIZES)  # type: ignore[arg-type]
    return Student(MiniEncoder(config, tokens, normed=True), Fusion(FusionConfig(config.width, **FUSION)), TEACHER_WIDTH)


def words_of(words: list[tuple[list[str], list[str]]]) -> tuple[list[str], list[int], list[int]]:
    """All concepts' words in one list, how many each has, and how many of them are names (they come first)."""
    flat, sizes, names = [], [], []
    for called, tags in words:
        own = [*called[:NAMES], *tags[:TAGS]]
        flat += own
        sizes.append(len(own))
        names.append(len(called[:NAMES]))
    return flat, sizes, names


# -- what is done once ---------------------------------------------------------------------------------------------


def do_tokens(data: Path, work: Path, trial: bool, log: Log) -> None:
    """Texts as token ids: the corpus for both readers, every concept's words and the vocabulary for the teacher."""
    tokens, (_, body, _) = tokens_of(data), read_arrays(data, False)
    student_texts, teacher_texts = language_texts(data, 100 if trial else None)
    table = TextTable.make(tokens.tokenizer, student_texts, 48, torch.device("cpu"))
    stored = {"ids": table.ids, "lengths": table.lengths}
    pieces = [tokens.tokenizer.id_to_token(i).removeprefix("##") for i in range(tokens.tokenizer.get_vocab_size())]
    for name, texts in (("corpus", teacher_texts), ("words", words_of(body["words"])[0]), ("pieces", pieces)):
        stored[f"{name}.flat"], stored[f"{name}.lengths"] = tokenise(data, texts)
    save_file(stored, work / "tokens.safetensors")
    log(f"{len(student_texts):,} texts tokenised")


def do_teach(data: Path, work: Path, fake: bool, log: Log) -> None:
    """Vectors of the corpus, of every concept and of the vocabulary; `fake`: random ones, to try the rest."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    stored = load_file(work / "tokens.safetensors")

    def said(name: str) -> torch.Tensor:
        flat, lengths = stored[f"{name}.flat"], stored[f"{name}.lengths"]
        if fake:
            return F.normalize(torch.randn(len(lengths), TEACHER_WIDTH, device=device), dim=1).half()
        return teach(data, flat, lengths, device)

    vectors = said("corpus").half().cpu()
    log("teacher has read the corpus")
    _, sizes, names = words_of(read_arrays(data, False)[1]["words"])
    spoken = said("words").float()
    count, own = torch.tensor(sizes, device=device), torch.tensor(names, device=device)
    owner = torch.repeat_interleave(torch.arange(len(sizes), device=device), count)
    place = torch.arange(len(owner), device=device) - (count.cumsum(0) - count)[owner]
    tagged = (count > own)[owner]
    # six tenths for the names, four for the tags, where there are any
    weight = torch.where(place < own[owner], torch.where(tagged, 0.6, 1.0) / own[owner], 0.4 / (count - own)[owner].clamp(min=1))
    concepts = torch.zeros(len(sizes), TEACHER_WIDTH, device=device).index_add_(0, owner, spoken * weight[:, None])
    save_file(
        {
            "ids": stored["ids"], "lengths": stored["lengths"], "vectors": vectors,
            "concepts": F.normalize(concepts, dim=1).half().cpu(), "pieces": said("pieces").half().cpu(),
        },
        work / "teacher.safetensors",
    )  # fmt: skip
    log("concepts and vocabulary described")


# -- training ------------------------------------------------------------------------------------------------------


def archive(folder: Path, names: list[str], target: Path) -> None:
    with tarfile.open(target, "w") as tar:
        for name in names:
            tar.add(folder / name, arcname=name)


def save_state(student: Student, path: Path) -> None:
    part = path.with_suffix(".part")
    save_file({n: t.detach().cpu().contiguous() for n, t in student.state_dict().items()}, part)
    part.replace(path)


def save_in_parts(student: Student, out: Path) -> None:
    """The unfolded weights at half precision, to go on from, in files that are easy to bring home."""
    state = {n: (t.half() if t.is_floating_point() else t).detach().cpu().contiguous() for n, t in student.state_dict().items()}
    big = [n for n in state if n.startswith("encoder.image.")]
    save_file({n: state[n] for n in big}, out / "state-image.safetensors")
    save_file({n: t for n, t in state.items() if n not in big}, out / "state-rest.safetensors")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=["render", "tokens", "teach", "learn"])
    parser.add_argument("--data", type=Path, required=True, help="what prepare.py wrote")
    parser.add_argument("--work", type=Path, required=True, help="large intermediate files")
    parser.add_argument("--out", type=Path, help="log, results, model and features")
    parser.add_argument("--seconds", type=float, default=Plan.seconds)
    parser.add_argument("--language-seconds", type=float, default=Plan.language_seconds)
    parser.add_argument("--batch", type=int, default=Plan.batch)
    parser.add_argument("--lr", type=float, default=Plan.lr)
    parser.add_argument("--mine-every", type=float, default=Plan.mine_every, help="share of the time between two minings")
    parser.add_argument("--resume", action="store_true", help="go on from WORK/student.safetensors")
    parser.add_argument("--workers", type=int, default=16)
    parser.add_argument("--fake", action="store_true", help="teach: random vectors, to try the rest")
    parser.add_argument("--trial", action="store_true", help="a few steps on little data")
    args = parser.parse_args()
    started = time.time()
    args.work.mkdir(parents=True, exist_ok=True)
    out: Path = args.out or args.work
    out.mkdir(parents=True, exist_ok=True)
    file = (out / f"{args.step}.log").open("w", encoding="utf-8")

    def log(text: str) -> None:
        text = f"[{time.time() - started:6.1f}] {text}"
        print(text, flush=True)
        print(text, file=file, flush=True)

    if args.step == "render":
        render(args.data, args.work / "drawings.npy", read_arrays(args.data, True)[2] if args.trial else None, args.workers)
        return log("drawn")
    if args.step == "tokens":
        return do_tokens(args.data, args.work, args.trial, log)
    settings(0)
    if args.step == "teach":
        return do_teach(args.data, args.work, args.fake, log)
    learn(args, out, log)


def settings(seed: int) -> None:
    """What every process that trains sets first."""
    torch.manual_seed(seed)
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.enable_cudnn_sdp(False)  # it plans anew for every shape of a batch


def language_of(bench: Bench, work: Path, tokens: Any, kept: torch.Tensor | None = None) -> tuple[Language, torch.Tensor]:
    """What the teacher said of texts and concepts, and of the vocabulary's pieces; `kept` (texts,) bool: of these texts alone."""
    device = bench.flat.device
    stored = load_file(work / "teacher.safetensors", device=str(device))
    if kept is not None:
        stored |= {name: stored[name][kept.to(device)] for name in ("ids", "lengths", "vectors")}
    flat, sizes, names = words_of(bench.words)
    corpus = TextTable(stored["ids"], stored["lengths"])
    table, starts = TextTable.join([bench.texts, corpus, TextTable.make(tokens, flat, 16, device)])
    ends, own = torch.tensor(np.cumsum([0, *sizes]), device=device), torch.tensor(names, device=device)
    return Language(table, starts[1], stored["vectors"], stored["concepts"], starts[2], ends, own), stored["pieces"]


def learn(args: argparse.Namespace, out: Path, log: Log) -> None:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    student, tokens = new_student(args.data).to(device), tokens_of(args.data).tokenizer
    student.encoder.image.stem.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    bench = load_bench(args.data, args.work / "drawings.npy", tokens, device, args.trial)
    asked = len(bench.questions["train"].task)
    log(f"{len(bench.drawings):,} drawings, {len(bench.pool_image):,} candidates, {asked:,} training questions")
    state = args.work / "student.safetensors"
    if args.resume:
        student.load_state_dict(load_file(state, device=str(device)))
    if args.step == "learn":
        small: dict[str, Any] = {"negatives": (16, 16, 8), "words": 48, "composites": 16} if args.trial else {}
        small |= {"language_batch": min(Plan.language_batch, args.batch), "lr": args.lr, "mine_every": args.mine_every}
        plan = Plan(args.language_seconds, args.seconds, args.batch, **small)
        language, pieces = language_of(bench, args.work, tokens)
        if not args.resume:
            start_from_teacher(student, pieces)
        count = {n: sum(p.numel() for p in m.parameters()) for n, m in student.named_children()}
        count |= {n: sum(p.numel() for p in m.parameters()) for n, m in student.encoder.named_children()}
        log(f"parameters {count}")
        draws = Draws(bench, plan.shares, plan.batch, plan.negatives)
        teaching = Teaching(student, bench, language, draws, plan)
        student = run(teaching, plan, log, lambda average: save_state(average, state))
        save_state(student, state)
        log(f"cuts {teaching.cuts}")
        del teaching, draws, language, pieces
    save_in_parts(student, out)
    student.eval()
    student.encoder.image.fold()
    for part in (student.encoder, student.fusion):  # from here on with the values that the files will hold
        part.load_state_dict(unpack(pack(part.state_dict())))
    student.to(device)
    folder = args.work / "model"  # it leaves as two archives, few files being easier to bring home
    shutil.rmtree(folder, ignore_errors=True)
    student.encoder.save(folder / "encoder")
    archive(folder, ["encoder"], out / "encoder.tar")
    save_file({n: t.cpu().contiguous() for n, t in student.fusion.state_dict().items()}, out / "fusion.safetensors")
    found = {str(k): v for k, v in results(student, bench, log).items()}
    (out / "results.json").write_text(json.dumps(found, indent=1))
    log("done")


if __name__ == "__main__":
    main()
