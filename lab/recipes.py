"""The three recipes compared field by field: the paper, its public code, and ours. `python -m lab recipes` writes
`docs/recipes.md`.

Every field in which they differ needs a reason below, and every reason a field: a test holds the page to the configs.
"""

# ruff: noqa: E501 - a table of sentences
from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from genius.config import flat, to_dict
from genius.errors import GeniusError
from genius.train.config import BUILTIN, STAGES, TrainConfig, read_train_config

RECIPES = ("paper", "published", "default")

REASONS: dict[str, str] = {
    "held_out": "paper and code train on everything; ours holds out queries whose positives are new, to stop, to choose weights and to "
    "learn offsets from. Where nothing is held out the last weights stay",
    "run.average": "0: the weights themselves, as in paper and code",
    "model.recipe": "names the rows that begin with `recipe.`: they follow from it and are no fields of their own",
    "model.width": "0: that of the features; CLIP ViT-L/14 has 768",
    "model.projection": "of the public code (the paper does not say); ours is smaller",
    "model.hidden": "as `model.projection`",
    "model.level_sizes": "5.2: 4096 codes on 9 levels, the first of 3. Ours follows the size of the pool",
    "model.modality_code": '4.2.3: "the first code explicitly represents modality"; the public code lets 3-means find it, and it '
    "need not be the modality",
    "recipe.gradient": "the paper says nothing, so the usual straight-through; the public code's library rotates (by its version)",
    "recipe.published_revival": "the public code redraws codes of an average use below 2 at every step, most of a codebook; the "
    "paper says nothing",
    "model.encode_sweeps": "Eq. 5 picks code after code; ours chooses each again given the others, for a smaller error",
    "recipe.modality_codebooks": "the paper has one codebook per level; ours one per level and modality, which costs no bit of the ID",
    "model.decoder": "5.2: T5-small; ours is smaller",
    "recipe.head": "4.3: a free output row per code, under T5's softmax over all tokens; ours takes similarities as logits, so that codes of new items can be generated, under a softmax over one level's codes",
    "model.prefix_tokens": "5.2: N = 30",
    "recipe.rerank_embedding": "4.4 ranks by the embedding z; the public code by CLIP-SF's own sum",
    "encoder.train": "stage 1 is UniIR's CLIP-SF, taken as it is; ours trains heads where features need them",
    "quantizer.steps": "given by epochs in the other two",
    "quantizer.epochs": "5.2: 20. The public code counts from 0 to 20, which is 21. 0: given by `steps`",
    "quantizer.batch": "5.2: 256. The public code has 2,000 on each of 4 GPUs",
    "quantizer.lr": "5.2: 1e-4; ours is higher, over fewer steps",
    "recipe.quantizer.eps": "of the public code; else AdamW's default",
    "quantizer.weight_decay": "the paper does not say: AdamW's default, 0.01",
    "recipe.quantizer.warm_up": "paper and code have none in this stage",
    "recipe.quantizer.final_lr": "5.2 names a cosine for the decoder only, so the rate stays; the public code goes down to 1e-5",
    "recipe.quantizer.clip": "paper and code do not clip in this stage",
    "recipe.positives": "the public code draws one positive of each query when it starts and keeps it",
    "quantizer.hard_negatives": "beyond the paper",
    "quantizer.modality_weight": "beyond the paper",
    "quantizer.temperature": "5.2: 0.01",
    "recipe.symmetric": "Eq. 3 goes from queries to targets; the public code goes both ways",
    "recipe.all_positives": "Eq. 3 has one target; ours does not push a query's other positives away",
    "quantizer.codes_weight": "beyond the paper",
    "recipe.start_from_sum": "beyond the paper: z starts as the encoder's own sum",
    "quantizer.quantize_from": "beyond the paper: L_cl alone first",
    "recipe.kmeans_from": "5.2: k-means on the first training batch, which has fewer vectors (512) than codes (4,096) at a batch of "
    "256: the others start as slightly moved copies. Ours takes a sample of everything",
    "quantizer.kmeans_iterations": "1,000 in the public code (it stops when nothing moves); the paper does not say",
    "recipe.refit": "beyond the paper: codebooks once more, on the pool and fitted to each other",
    "generator.steps": "given by epochs in the other two",
    "generator.epochs": "5.2: 30. The public code counts from 0 to 30, which is 31",
    "generator.batch": "5.2: 256. The public code has 256 on each of 4 GPUs",
    "generator.lr": "5.2: 1e-4; ours is higher, over fewer steps",
    "recipe.generator.betas": "AdamW's default where the paper does not say; (0.9, 0.98) is the public code's",
    "recipe.generator.eps": "of the public code; else AdamW's default",
    "generator.weight_decay": "the paper does not say: AdamW's default, 0.01",
    "recipe.generator.warm_up": "the paper names none; the public code has 500 steps",
    "recipe.generator.clip": "the paper names none",
    "generator.inputs": "4.3.2: the decoder reads augmented queries. Eq. 11 mixes them linearly, with one number, and does not bring the mix to unit length; "
    "the public code draws a number for each dimension, takes roots and normalises. Ours reads shifted items, since trained queries lie too "
    "near to their positives",
    "recipe.codebook_scale": '5.2: "initialized randomly"; the public code starts tokens as 100 times a random map of the codebooks',
    "search.beams": "5.2: 50",
    "search.rerank": "0: to the end of the ID, as in the paper; ours stops as soon as the items left fit its budget",
    "output": "default output folder",
}

BEYOND_FIELDS = """\
Differences outside of the config:

- The public code computes in float16 with a loss scale, this one in bfloat16 on a GPU (`run.precision = "auto"`).
- On several GPUs the public code's contrastive gradient is divided by their number (it gathers without summing the gradients of
  the other processes); here it is that of one process with the whole batch, so the weights of Eq. 8 do not depend on the machine.
- Sums or means: the paper prints the norms of Eq. 7 and of L_mse, and Eq. 10, as sums; its public code takes means (of L_rq over
  levels and dimensions, 6,912 times smaller; of L_mse over dimensions of unit vectors, 768 times; of Eq. 10 over codes) with the
  same weights of 100. With sums these weights leave little of L_cl, and z nearly collapses, so all three take means.
- Eq. 9's "MLP" is one linear layer, as in the public code.
- The up-sampled training file (1,332,790 lines for 1,150,203 queries) is `--split union_train`; the paper says 1.1 M.
"""


def recipes_page() -> str:
    """`docs/recipes.md`."""
    tables = [_table(read_train_config(BUILTIN + name)) for name in RECIPES]
    names = list(dict.fromkeys(name for table in tables for name in table))
    different = [name for name in names if len({repr(table.get(name)) for table in tables}) > 1 and not _unused(name)]
    _check(different)
    lines = [
        "# Three recipes",
        "",
        "`builtin:paper` is the paper, section 5.2 and its equations, to the letter (but for sums, see below). `builtin:published` is what",
        "its public code does.",
        "`builtin:default` is ours. Train with any: `genius train builtin:paper --data FEATURES --output MODEL`. This page is made",
        "from the configs by `python -m lab recipes --out docs/recipes.md`, from a clone.",
        "",
        "| field | paper | published | default | why they differ |",
        "|---|---|---|---|---|",
    ]
    for name in different:
        values = " | ".join(_shown(table.get(name)) for table in tables)
        lines.append(f"| `{name}` | {values} | {REASONS[name]} |")
    same = [f"`{name}` {_shown(tables[0].get(name))}" for name in names if name not in different and not _unused(name)]
    lines += ["", BEYOND_FIELDS, "The same in all three: " + ", ".join(same) + ".", ""]
    return "\n".join(lines)


def _table(config: TrainConfig) -> dict[str, Any]:
    """Every field, and behind them what follows from the recipe's name."""
    return _flat(config) | flat(to_dict(config.model.constants), "recipe.")


def _unused(name: str) -> bool:
    """Fields of the encoder's stage but the one that turns it off: two of the recipes have no such stage."""
    return name.startswith("encoder.") and name != "encoder.train"


def _check(different: list[str]) -> None:
    missing, stale = set(different) - REASONS.keys(), REASONS.keys() - set(different)
    if missing or stale:
        raise GeniusError(f"reasons are missing for {sorted(missing)}, and given for fields that do not differ: {sorted(stale)}")


def _flat(config: Any) -> dict[str, Any]:
    """Its fields; where epochs say how long a stage is, steps are a default that nobody meant."""
    out = flat(to_dict(config))
    for stage in STAGES:
        if out.get(f"{stage}.epochs"):
            out[f"{stage}.steps"] = None
    return out


def _shown(value: Any) -> str:
    if value is None or value in ("", [], ()):
        return "-"
    if isinstance(value, list | tuple):
        if len(value) > 3 and len(set(value[1:])) == 1:
            return f"{value[0]} + {len(value) - 1} x {value[1]}"
        return ", ".join(map(str, value))
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)


def recipes(
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write the page here instead of printing it.")] = None,
) -> None:
    """Show the paper's recipe, its public code's and ours, field by field, and why they differ."""
    if out is None:
        print(recipes_page(), end="")
    else:
        out.write_text(recipes_page(), encoding="utf-8")
