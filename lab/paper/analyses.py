"""The paper's analyses that are no tables of recall: the embedding space as a map, what codes mean across kinds, training time.

Each takes a model and data and gives a `Table` with pictures. Knows nothing of how models are found or trained.
"""

from __future__ import annotations

import io
import re
import tempfile
import textwrap
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image, ImageDraw, ImageFont

from genius.data.features import FeatureSet
from genius.errors import GeniusError
from genius.evaluate.report import markdown_table
from genius.model.genius import Genius
from genius.pictures import loaded
from genius.train.config import TrainConfig, with_steps
from genius.train.generator import GeneratorStage
from genius.train.handover import freeze
from genius.train.holdout import Split
from genius.train.journal import Journal
from genius.train.loop import Runtime, Stage, run_stage, training_device
from genius.train.quantizer import QuantizerStage
from genius.types import Item, Modality
from lab.paper.table import Table, plots, png

MAPPED = 1500  # queries on the map, and as many answers
COLOURS = {"question": "#d62728", "image": "#1f77b4", "text": "#2ca02c", "pair": "#9467bd"}
# Supplement, B.2: hours on four RTX 3090 for 1.1 million samples; GRACE as reported, 0.1 million samples
B2 = {"encoder": 91.0, "quantizer": 0.4, "generator": 2.0}
Say = Callable[[str], None]


# -- supplement, Figure 1 ------------------------------------------------------------------------------------------


@torch.no_grad()
def reconstructions(model: Genius, data: FeatureSet) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """z-hat (n, D) of queries and of one answer each, and the answers' kinds; a query's first code is its answer's."""
    picked = torch.unique(torch.linspace(0, len(data.pairs) - 1, min(MAPPED, len(data.pairs))).long())
    rows, answers = data.pairs[picked].T
    kinds = data.pool[answers].modality.to(model.device)
    both = []
    for features in (data.queries[rows], data.pool[answers]):
        codes = model.quantizer.encode(model.embed(features)[0], kinds if model.config.quantizer.labelled else None)
        both.append(F.normalize(model.quantizer.decode(codes), dim=1).cpu())
    return both[0], both[1], kinds.cpu()


def closeness(questions: torch.Tensor, answers: torch.Tensor) -> dict[str, float]:
    """Mean cosine of a query's z-hat with its positive's and with any other's, and how often its positive is nearest.

    A tie is no hit: z-hats that all coincide find nothing.
    """
    scores = questions @ answers.T
    own = scores.diagonal()
    others = (scores.sum(1) - own) / max(scores.shape[1] - 1, 1)
    first = (scores >= own[:, None]).sum(1) == 1  # the positive itself, and nothing as near
    return {"own": own.mean().item(), "others": others.mean().item(), "nearest": first.float().mean().item()}


def flattened(points: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """(n, D) points on a plane, (n, 2), by UMAP."""
    import umap

    flat: np.ndarray[Any, Any] = umap.UMAP(n_neighbors=15, metric="cosine", random_state=0, n_jobs=1).fit_transform(points)
    return flat


def embedding_map(name: str, title: str, models: Mapping[str, Genius], data: FeatureSet, say: Say) -> Table:
    """UMAP of z-hat, one map a model."""
    figure, axes = plots(6 * len(models), 5.5, len(models))
    results: list[dict[str, Any]] = []
    for place, (row, model) in zip(axes[0], models.items(), strict=True):
        say(f"mapping {row}")
        questions, answers, kinds = reconstructions(model, data)
        flat = flattened(torch.cat([questions, answers]).numpy())
        count = len(questions)
        for kind in Modality:
            own = flat[count:][(kinds == int(kind)).numpy()]
            if len(own):
                place.scatter(*own.T, s=26, alpha=0.35, lw=0, c=COLOURS[kind.label], label=f"answers: {kind.label}s")
        place.scatter(*flat[:count].T, s=3, lw=0, c=COLOURS["question"], label="questions")  # above what answers them
        place.set_title(row)
        place.set_xticks([])
        place.set_yticks([])
        place.legend(fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.02), ncols=4, frameon=False)
        results.append({"row": row, "questions": count, **closeness(questions, answers)})
    header = ["", "cosine with its own answer", "with any other", "its own is the nearest"]
    rows = [[r["row"], f"{r['own']:.3f}", f"{r['others']:.3f}", f"{100 * r['nearest']:.1f} %"] for r in results]
    about = {"queries": results[0]["questions"], "candidates": len(data.pool)}
    return Table(name, title, markdown_table(header, rows), about, results, {f"{name}.png": png(figure)})


# -- Figure 3, supplement, Figures 2 to 4 --------------------------------------------------------------------------


def shared_codes(codes: np.ndarray, kinds: np.ndarray, level: int, most: int) -> list[int]:
    """Codes of a level under which items of most kinds live, those with the most even counts first."""
    size = int(codes[:, level].max()) + 1
    counts = np.stack([np.bincount(codes[kinds == kind, level], minlength=size) for kind in range(3)])  # (3, K)
    present = counts[(counts.sum(1) > 0)]
    order = np.argsort(-present.min(0) * 1_000_000 - present.sum(0), kind="stable")
    return [int(code) for code in order[:most] if present[:, code].sum() > 0]


def pattern(level: int, code: int, levels: int) -> str:
    """*,1782,*"""
    return ",".join(["*"] * level + [str(code)] + (["*"] if level + 1 < levels else []))


def telling(texts: Sequence[str], everywhere: Counter[str], count: int) -> dict[str, Any]:
    """The word that sets these texts apart from all `count`, of which so many have each word: by the gap of its shares, if it is
    more than a hundredth."""
    own = Counter(word for text in texts for word in words_of(text))
    shares = {word: (many / len(texts), everywhere[word] / count) for word, many in own.items()}
    word = max(sorted(shares), key=lambda w: shares[w][0] - shares[w][1], default="")
    if not word or shares[word][0] - shares[word][1] <= 0.01:
        return {}
    return {"word": word, "here": round(shares[word][0], 4), "everywhere": round(shares[word][1], 4)}


def words_of(text: str) -> set[str]:
    return set(re.findall(r"[^\W\d_]{3,}", text.lower()))


def code_cards(
    name: str,
    title: str,
    model: Genius,
    data: FeatureSet,
    items: Mapping[str, Item],
    about: Sequence[int],
    cards: int,
    shown: int = 8,
) -> Table:
    """Pictures and texts that share one code of a level, kind beside kind; and the word that sets their texts apart."""
    codes = model.encode(data.pool).cpu().numpy()
    levels = codes.shape[1]
    if not all(0 <= level < levels for level in about):
        raise GeniusError(f"levels {list(about)}: this model's codes have levels 0 to {levels - 1}")
    kinds = data.pool.modality.numpy()
    texts = [known.text if (known := items.get(one)) is not None and known.text else None for one in data.pool_ids]
    everywhere = Counter(word for text in texts if text for word in words_of(text))
    worded = sum(text is not None for text in texts)
    results: list[dict[str, Any]] = []
    pictures: dict[str, bytes] = {}
    for level in about:
        for code in shared_codes(codes, kinds, level, cards):
            rows = np.flatnonzero(codes[:, level] == code)
            groups = {kind.label: rows[kinds[rows] == int(kind)] for kind in Modality}
            written = pattern(level, code, levels)
            chosen = {kind: [data.pool_ids[row] for row in own[:shown]] for kind, own in groups.items()}
            counts = {kind: len(own) for kind, own in groups.items()}
            word = telling([text for row in rows if (text := texts[row])], everywhere, worded)
            results.append({"codes": written, "counts": counts, "telling": word, "items": chosen})
            pictures[f"{name}-{len(results)}.png"] = _card(written, chosen, counts, items)
    header = ["codes", *(f"{kind.label}s" for kind in Modality), "the word that tells them apart", "in its texts", "in all texts"]
    body = markdown_table(header, [[r["codes"], *map(str, r["counts"].values()), *_told(r["telling"])] for r in results])
    if model.config.quantizer.modality_codebooks_from:
        body += "\n\nEvery kind has codebooks of its own in this model, so the same code in two kinds says nothing: "
        body += "`builtin:paper` shares them."
    return Table(name, title, body, {"candidates": len(data.pool)}, results, pictures)


def _told(word: Mapping[str, Any]) -> list[str]:
    return [word["word"], *(f"{100 * word[where]:.0f} %" for where in ("here", "everywhere"))] if word else ["–"] * 3


def _card(title: str, chosen: Mapping[str, Sequence[str]], counts: Mapping[str, int], items: Mapping[str, Item]) -> bytes:
    """A row of tiles for each kind: pictures, words, or a picture above its words."""
    side, gap, words, large, small = 104, 10, 5, ImageFont.load_default(17), ImageFont.load_default(11)
    across = max((len(names) for names in chosen.values()), default=1)
    line = round(small.getbbox("Ag")[3]) + 3
    heights = {"image": side, "text": words * line, "pair": side + words * line}
    total = 44 + sum(30 + heights[kind] for kind, names in chosen.items() if names)
    card = Image.new("RGB", (max(across, 2) * (side + gap) + gap, total), "white")
    draw = ImageDraw.Draw(card)
    draw.text((gap, 10), title, fill="black", font=large)
    top = 44
    for kind, names in chosen.items():
        if not names:
            continue
        draw.text((gap, top), f"{counts[kind]:,} {kind}s", fill="#777777", font=small)
        for column, name in enumerate(names):
            known, left, below = items.get(name, Item(name, text=name)), gap + column * (side + gap), top + 18
            if known.image is not None:
                card.paste(_small(known, side), (left, below))
                below += side
            wrapped = textwrap.wrap(known.text or "", side // 6)[:words]
            draw.multiline_text((left, below + 2), "\n".join(wrapped), fill="black", spacing=2, font=small)
        top += 30 + heights[kind]
    out = io.BytesIO()
    card.save(out, format="PNG")
    return out.getvalue()


def _small(item: Item, side: int) -> Image.Image:
    square = Image.new("RGB", (side, side), "white")
    try:
        assert item.image is not None
        with loaded(item.image, least=side, name=f"the image of {item.id!r}") as picture:
            small = picture.convert("RGB")
            small.thumbnail((side, side))
            square.paste(small, ((side - small.width) // 2, (side - small.height) // 2))
    except GeniusError as error:
        ImageDraw.Draw(square).multiline_text((2, 2), "\n".join(textwrap.wrap(str(error), 16)[:6]), fill="red")
    return square


# -- supplement, B.2 -----------------------------------------------------------------------------------------------


def training_time(name: str, title: str, config: TrainConfig, data: FeatureSet, steps: int, say: Say) -> Table:
    """Seconds a step of stages 2 and 3 here, and the hours of all epochs of the recipe over so many queries."""
    device = training_device(config.device)
    visits, results = len(data.visits()), []

    def timed(stage: Stage, whole: int) -> None:
        part = replace(getattr(config, stage.name), steps=steps, epochs=0.0)
        seen: list[float] = []
        before = stage.before_step

        def marked(step: int) -> None:
            seen.append(time.perf_counter())
            before(step)

        stage.before_step = marked  # type: ignore[method-assign]
        stage.validate = dict  # type: ignore[method-assign]
        stage.finish = lambda: None  # type: ignore[method-assign]
        with tempfile.TemporaryDirectory() as folder:
            runtime = Runtime(device, Journal(Path(folder), quiet=True), config.seed, replace(config.run, patience=0))
            run_stage(stage, part, runtime, Path(folder))
        seen.append(time.perf_counter())
        settled = seen[len(seen) // 3 :]  # the first steps are slow
        step = (settled[-1] - settled[0]) / max(len(settled) - 1, 1)
        say(f"{stage.name}: {1000 * step:.1f} ms a step")
        results.append(
            {"stage": stage.name, "ms_a_step": 1000 * step, "batch": part.batch, "questions_a_second": part.batch / step,
             "steps": whole, "hours": step * whole / 3600, "hours_for_1.1_million": step * whole / 3600 * 1_100_000 / visits}
        )  # fmt: skip

    second = QuantizerStage(data, None, config.model, config.quantizer, config.seed, device)
    timed(second, with_steps(config.quantizer, visits).steps)
    second.eval()
    frozen, _ = freeze(second, Split(data, None, None, ""), config)
    third = GeneratorStage(data, frozen, None, second.quantizer, config.model, config.generator, config.seed)
    timed(third, with_steps(config.generator, visits).steps)
    header = ["stage", "ms a step", "questions/s", "steps", "hours here", "for 1.1 million questions", "paper, 4 x RTX 3090"]
    rows = [
        [r["stage"], f"{r['ms_a_step']:.1f}", f"{r['questions_a_second']:,.0f}", f"{r['steps']:,}", f"{r['hours']:.3f}",
         f"{r['hours_for_1.1_million']:.1f}", f"{B2[r['stage']]:g}"] for r in results
    ]  # fmt: skip
    body = markdown_table(header, rows)
    body += f"\n\nThe encoder (the paper: {B2['encoder']:g} hours) is trained before and is not in it. For GRACE the paper gives "
    body += "24 hours for 0.1 million samples."
    about = {"queries": visits, "device": torch.cuda.get_device_name() if device.type == "cuda" else "CPU"}
    return Table(name, title, body, about, results)
