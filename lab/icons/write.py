"""The M-BEIR layout: candidate pools, queries, qrels, instructions, the SVG archive and what came from where."""

from __future__ import annotations

import json
import lzma
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from lab.icons.model import DATASET_ID, SPLITS, TASKS, Icon, Material
from lab.icons.tasks import Bench, Key
from lab.icons.world import World

INSTRUCTIONS: dict[int, tuple[str, str, str, str]] = {
    0: (
        "Find a drawing of what the words say.",
        "Which icon shows this?",
        "Show me a symbol for the given words.",
        "I am looking for a picture that means this.",
    ),
    1: (
        "Find the dictionary entry that means the same.",
        "Which text explains the same thing in other words?",
        "Retrieve a description of what is said here.",
        "I want another definition of this.",
    ),
    2: (
        "Find an illustrated entry about this: a drawing with its explanation.",
        "Which picture and text together answer the words?",
        "Show me an icon with a description that fits.",
        "I need a drawing with its meaning for these words.",
    ),
    3: (
        "Find the text that says what is drawn.",
        "What does this picture show, in words?",
        "Describe the given icon with a stored text.",
        "Which description belongs to this drawing?",
    ),
    4: (
        "Find the same thing drawn by somebody else.",
        "Which other icon shows what this one shows?",
        "Show me another drawing of this.",
        "I want pictures with the same meaning as the given one.",
    ),
    6: (
        "Answer the question about the picture with a text.",
        "Find the text that replies to the question about this drawing.",
        "What is the written answer for this icon and question?",
        "Read the question, look at the picture, and find the fitting text.",
    ),
    7: (
        "Find the drawing changed as the words ask.",
        "Show me this icon after the described change.",
        "Which picture is the same but with the given difference?",
        "Apply the words to the drawing and find the result.",
    ),
    8: (
        "Find the illustrated entry that answers the question about this picture.",
        "Which drawing with its text belongs to the given icon and question?",
        "Show me the official picture and the description of what is drawn here.",
        "I want the entry, icon and text, for this drawing.",
    ),
}


def write_bench(out: Path, bench: Bench, world: World, material: Material, kept: list[Icon], size: int) -> dict[str, Any]:
    """Writes every file of the benchmark but the pictures, and returns the statistics."""
    ids = {key: f"{DATASET_ID}:{n}" for n, key in enumerate(bench.candidates, start=1)}
    rows: dict[str, list[str]] = defaultdict(list)
    for key, candidate in bench.candidates.items():
        entry = {
            "did": ids[key],
            "txt": candidate.text,
            "img_path": candidate.image,
            "modality": candidate.modality,
            "src_content": None,
        }
        rows[candidate.modality].append(json.dumps(entry, ensure_ascii=False))
    _lines(
        out / "cand_pool/global/mbeir_union_cand_pool.jsonl",
        (r for m in ("image", "text", "image,text") for r in rows[m]),
    )
    for task, (_, wanted) in TASKS.items():
        _lines(out / f"cand_pool/local/mbeir_icons_task{task}_cand_pool.jsonl", rows[wanted])
    counts = _write_queries(out, bench, ids)
    table = ["query_modality\tcand_modality\tdataset_name\tdataset_id\tprompt_1\tprompt_2\tprompt_3\tprompt_4"]
    for task, (query, wanted) in TASKS.items():
        table.append("\t".join((query, wanted, "Icons", str(DATASET_ID), *INSTRUCTIONS[task])))
    _lines(out / "instructions/query_instructions.tsv", table)
    _lines(out / "meta.jsonl", (json.dumps(_meta(i, world)) for i in kept))
    _archive(out / "svg.jsonl.xz", kept)
    _lines(out / "SOURCES.json", [json.dumps(material.provenance, indent=1)])
    stats: dict[str, Any] = {
        "size": size,
        "images": len(kept),
        "concepts": len(world.icons),
        "families": len({i.family for i in kept}),
        "candidates": {m: len(rows[m]) for m in ("image", "text", "image,text")},
        "queries": counts,
    }
    _lines(out / "stats.json", [json.dumps(stats, indent=1)])
    return stats


def _write_queries(out: Path, bench: Bench, ids: dict[Key, str]) -> dict[str, int]:
    """Writes queries and positives, and returns the number of queries by task and split."""
    files: dict[tuple[int, str], tuple[list[str], list[str]]] = defaultdict(lambda: ([], []))
    for n, q in enumerate(bench.queries, start=1):
        qid = f"{DATASET_ID}:{n}"
        positives = [ids[key] for key in q.positives]
        query_rows, qrels = files[q.task, q.split]
        query_rows.append(
            json.dumps(
                {
                    "qid": qid,
                    "query_txt": q.text,
                    "query_img_path": q.image,
                    "query_modality": TASKS[q.task][0],
                    "query_src_content": None,
                    "pos_cand_list": positives,
                    "neg_cand_list": [],
                    "task_id": q.task,
                },
                ensure_ascii=False,
            )
        )
        qrels.extend(f"{qid} 0 {did} 1 {q.task}" for did in positives)
    for task in TASKS:
        for split in SPLITS:
            query_rows, qrels = files[task, split]
            _lines(out / f"query/{split}/mbeir_icons_task{task}_{split}.jsonl", query_rows)
            _lines(out / f"qrels/{split}/mbeir_icons_task{task}_{split}_qrels.txt", qrels)
    return {f"task{task}/{split}": len(query_rows) for (task, split), (query_rows, _) in sorted(files.items())}


def _meta(icon: Icon, world: World) -> dict[str, Any]:
    words = world.words[icon.concept]
    return {
        "img_path": icon.path,
        "set": icon.set,
        "family": icon.family,
        "name": icon.name,
        "style": icon.style,
        "kind": icon.kind,
        "concept": icon.concept,
        "split": world.split[icon.concept],
        "names": words.names[:4],
        "tags": words.tags[:12],
    }


def _archive(path: Path, kept: list[Icon]) -> None:
    """Every drawing as SVG, for the programs that train the encoder of `bundled:mini` (docs/model-card-mini.md)."""
    with lzma.open(path, "wt", encoding="utf-8", preset=6) as file:
        for icon in kept:  # grouped by set: neighbours look alike and pack well
            file.write(json.dumps({"img_path": icon.path, "svg": icon.svg}, ensure_ascii=False) + "\n")


def _lines(path: Path, lines: Iterable[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
