"""Three recipes: ours, the paper's, and that of its public code. `model.recipe` in a config names one of them.

What stands here is fixed by the name and cannot be set by itself: nobody who trains needs to decide it, and whoever follows the
paper wants all of it. Sizes, rates and weights are fields of `genius.train.config`, with the paper's values in
`builtin:paper`. `docs/recipes.md` shows both beside each other, with a reason for every difference.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

RecipeName = Literal["default", "paper", "paper-sums", "published"]
Reduction = Literal["mean", "sum"]


@dataclass(frozen=True)
class Schedule:
    """AdamW and its rate over a stage's steps."""

    betas: tuple[float, float] = (0.9, 0.98)
    eps: float = 1e-8
    warm_up: float = 0.05  # share of the steps with a linearly growing rate; then cosine. From 2: so many steps
    final_lr: float = 0.0  # the cosine ends at this share of the peak; 1: the rate stays
    clip: float = 1.0  # norm at which gradients are clipped; 0: they are not


@dataclass(frozen=True)
class Recipe:
    """What follows from the name; the defaults are ours."""

    head: Literal["codebooks", "table"] = "codebooks"  # codes are as likely as they are near, or have a free row each
    codebook_scale: float = 0.0  # table: > 0: tokens start at that times a random map of the codebooks
    own_books: bool = True  # every modality has codebooks of its own, where its code is told and books are not shared
    gradient: Literal["straight-through", "rotation"] = "rotation"  # how L_mse reaches the fusion through the choice of codes
    published_revival: bool = False  # the published rule for codes that are not used: it redraws most of a large codebook
    rerank_embedding: Literal["fused", "score-fusion"] = "fused"  # z, or the encoder's own sum
    answers: Literal["new", "kept"] = "new"  # of a question's answers one is drawn at every visit, or one once and for all epochs
    symmetric: bool = True  # L_cl in both directions
    all_positives: bool = True  # False: labels are the diagonal, other positives count as negatives
    # of L_rq, L_mse and Eq. 10. mean: over levels, dimensions (L_mse: of unit vectors) and codes; sum: the norms as printed
    reduction: Reduction = "mean"
    start_from_sum: bool = True  # the fusion starts as the encoder's own sum of both modalities; False: at random
    kmeans_from: Literal["sample", "first-batch"] = "sample"  # what the codebooks start from
    refit: bool = True  # at the end of stage 2, k-means once more, on the pool's embeddings
    quantizer: Schedule = Schedule(betas=(0.9, 0.999))
    generator: Schedule = Schedule()


RECIPES: dict[RecipeName, Recipe] = {
    "default": Recipe(),
    "paper": Recipe(
        head="table",
        own_books=False,
        gradient="straight-through",
        symmetric=False,
        all_positives=False,
        start_from_sum=False,
        kmeans_from="first-batch",
        refit=False,
        quantizer=Schedule(betas=(0.9, 0.999), warm_up=0.0, final_lr=1.0, clip=0.0),
        generator=Schedule(betas=(0.9, 0.999), warm_up=0.0, clip=0.0),
    ),
    "published": Recipe(
        head="table",
        codebook_scale=100.0,
        own_books=False,
        published_revival=True,
        rerank_embedding="score-fusion",
        answers="kept",
        all_positives=False,
        start_from_sum=False,
        kmeans_from="first-batch",
        refit=False,
        quantizer=Schedule(betas=(0.9, 0.999), eps=1e-6, warm_up=0.0, final_lr=0.1, clip=0.0),
        generator=Schedule(eps=1e-6, warm_up=500),
    ),
}
# The norms of Eq. 7 and L_mse as they are printed: with the weights of 100 that section 5.2 gives them z nearly collapses
# (docs/recipes.md), so `builtin:paper` takes means, as the public code does with the same weights.
RECIPES["paper-sums"] = replace(RECIPES["paper"], reduction="sum")
