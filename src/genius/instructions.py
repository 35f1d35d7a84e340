"""Instructions: the words that tell the model what kind of answer a query wants (paper 3).

`target` <-> instruction lives here, and the text formatting that the published encoders were trained with.
"""

from __future__ import annotations

import random

from genius.types import Modality, Query

I, T, P = Modality.IMAGE, Modality.TEXT, Modality.PAIR  # noqa: E741 - the paper's letters

TEMPLATES: dict[tuple[Modality, Modality], tuple[str, ...]] = {
    # (what the query is, what is wanted): the eight tasks of M-BEIR, and pair-free image -> pair
    (T, I): (
        "Find an image that matches the description.",
        "Show me a picture of this.",
        "Retrieve the image that these words describe.",
        "I am looking for an image of the following.",
    ),
    (T, T): (
        "Find a text that answers or explains this.",
        "Retrieve a passage about the following.",
        "Which text says the same in other words?",
        "I am looking for a text on this subject.",
    ),
    (T, P): (
        "Find an illustrated text about this.",
        "Retrieve an image with its description for these words.",
        "Show me a picture together with the text that explains it.",
        "I am looking for an entry with image and text on this.",
    ),
    (I, T): (
        "Find a text that describes the image.",
        "Retrieve the description of this picture.",
        "What text belongs to this image?",
        "I am looking for words that say what the image shows.",
    ),
    (I, I): (
        "Find an image that shows the same thing.",
        "Retrieve a picture similar to this one.",
        "Show me another image of this.",
        "I am looking for images that look like this one.",
    ),
    (I, P): (
        "Find an illustrated text about what the image shows.",
        "Retrieve the entry, image and description, for this picture.",
        "Show me this with a picture and an explanation.",
        "I am looking for an entry with image and text on this picture.",
    ),
    (P, T): (
        "Find a text that answers the question about the image.",
        "Retrieve the passage that this image and question ask for.",
        "Which text explains what is asked about the picture?",
        "I am looking for a text that answers this about the image.",
    ),
    (P, I): (
        "Find an image like this one with the described change.",
        "Retrieve the picture that the edit would give.",
        "Show me this image, but changed as described.",
        "I am looking for a similar image with this modification.",
    ),
    (P, P): (
        "Find an illustrated text that answers the question about the image.",
        "Retrieve the image and description that this picture and question ask for.",
        "Show me an entry, picture and text, that answers this about the image.",
        "I am looking for an image with a text that answers this.",
    ),
}


def instruction_for(query: Modality, target: Modality, rng: random.Random | None = None) -> str:
    """The default instruction, or a random one of its paraphrases when `rng` is given (training)."""
    choices = TEMPLATES[query, target]
    return rng.choice(choices) if rng is not None else choices[0]


def format_text(text: str) -> str:
    """The text format of UniIR and the published GENIUS: no quotes around, a capital first, a full stop last."""
    text = text.replace("\r", "").strip().strip('"')
    if not text:
        return ""
    text = text[0].upper() + text[1:]
    return text if text.endswith((".", "?", "!")) else text + "."


def query_text(query: Query, instruction: str | None = None) -> str:
    """What the text encoder reads for a query: instruction, then the text, formatted. Empty only if both are."""
    if instruction is None:
        instruction = query.instruction
    if instruction is None and query.target is not None:
        instruction = instruction_for(query.modality, query.target)
    return format_text(" ".join(part for part in (instruction, query.text) if part))
