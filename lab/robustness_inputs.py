"""Ways to make a query worse, for `robustness.py`: typos, other wordings, crops. Knows queries and tasks, no models."""

from __future__ import annotations

import random
import string
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from genius.data.mbeir import DIRECTIONS, read_instructions
from genius.types import Modality, Query, load_image

PROMPTS = "instructions/query_instructions.tsv"
Change = Callable[[Query, int, random.Random], Query]  # query, task number -> the query that is asked
# Neither in the benchmark's instruction file nor among the library's templates, so not in the training; three by " / ".
USUAL: dict[int, str] = {  # with the words that the trained ones have
    0: "Please find the icon for these words. / Is there a picture of this? / I need an image that shows this.",
    1: "Please find a text with the same meaning. / Is there a definition like this one? / I need this in other words.",
    2: "Please find an icon with a text about this. / Is there a picture with its text? / I need an image and a text on this.",
    3: "Please find words for this icon. / Is there a text for this image? / I need the meaning of this picture as a text.",
    4: "Please find a similar icon. / Is there another picture of the same thing? / I need more images like this drawing.",
    6: "Please find the text that answers this. / Is there a text about this icon? / I need the answer to the question in words.",
    7: "Please change the icon like this. / Is there a picture with this change? / I need the image after this edit.",
    8: "Please find an icon and a text on it. / Is there an entry for this picture? / I need a drawing and a text on this.",
}
RARE: dict[int, str] = {  # with words that could as well be what is asked about
    0: "Give me a pictogram for it. / Get the graphic that stands for these words. / Which sketch would you use for this term?",
    1: "Look up a gloss of the same sense. / Give me a written explanation equal to this one. / Search the word list for it.",
    2: "Give me a card with a sketch plus its wording. / Look up graphic and caption as one record. / Get sketch and note, both.",
    3: "Put this pictogram into words. / Get the caption of this sketch. / Look up what the graphic stands for, as a sentence.",
    4: "Get the pictogram of a different artist for it. / Look up more sketches of this object. / Give me other graphics of it.",
    6: "Reply in writing to what is asked about the sketch. / Give me a sentence as the reply. / Look up the wording asked for.",
    7: "Give me the sketch once it has been altered like this. / Get the modified graphic. / Look up the pictogram so altered.",
    8: "Get the record, graphic plus wording, that replies to this. / Give me the card asked for. / Look up sketch and caption.",
}


@dataclass
class Case:
    """One way to make the input worse."""

    name: str
    change: Change
    touches: tuple[int, ...]  # numbers of the tasks that it can change at all
    told: str = ""  # "", "right" or "wrong": which target code the search is given
    seconds: float = 0.0


WORDY = tuple(t for t, (query, _) in DIRECTIONS.items() if query != Modality.IMAGE and t in RARE)
DRAWN = tuple(t for t, (query, _) in DIRECTIONS.items() if query != Modality.TEXT and t in RARE)
ALL = tuple(RARE)


def misspell(word: str, edits: int, rng: random.Random) -> str:
    """So many edits of one character: leave out, put in, replace, or swap with the next. Words of one letter stay."""
    letters = list(word)
    for _ in range(edits):
        if len(letters) < 2:
            break
        i, kind = rng.randrange(len(letters)), rng.choice(("out", "in", "other", "swap"))
        letter = rng.choice(string.ascii_lowercase)
        if kind == "out":
            del letters[i]
        elif kind == "in":
            letters.insert(i, letter)
        elif kind == "other":
            letters[i] = letter
        else:
            j = min(i, len(letters) - 2)
            letters[j], letters[j + 1] = letters[j + 1], letters[j]
    return "".join(letters)


def typos(share: float, most: int) -> Change:
    """Every word of the text (not of the instruction) is misspelt with this probability, by 1 to `most` edits."""

    def change(query: Query, _: int, rng: random.Random) -> Query:
        words = (query.text or "").split()
        return replace(query, text=" ".join(misspell(w, rng.randint(1, most), rng) if rng.random() < share else w for w in words))

    return change


def cropped(query: Query, _: int, __: random.Random) -> Query:
    """The middle 70 % of width and height; the encoder scales it up again."""
    picture = load_image(query.image)  # type: ignore[arg-type]
    w, h = picture.size
    return replace(query, image=picture.crop((round(0.15 * w), round(0.15 * h), round(0.85 * w), round(0.85 * h))))


def grey(query: Query, _: int, __: random.Random) -> Query:
    return replace(query, image=load_image(query.image).convert("L").convert("RGB"))  # type: ignore[arg-type]


def other_task(task: int) -> int:
    """The next task with the same kind of query, which wants another modality."""
    others = [t for t in ALL if DIRECTIONS[t][0] == DIRECTIONS[task][0] and t != task]
    return next((t for t in others if t > task), others[0])


def worded(prompts: dict[int, str] | None) -> Change:
    """One of the task's prompts (by " / ") instead of the instruction; None: no instruction."""
    if prompts is None:
        return lambda query, _, __: replace(query, instruction=None)
    return lambda query, task, rng: replace(query, instruction=rng.choice(prompts[task].split(" / ")))


def cases(icons: Path) -> list[Case]:
    same: Change = lambda query, _, __: query  # noqa: E731
    kinds = {DIRECTIONS[t]: t for t in ALL}
    trained = {
        kinds[asks, wants]: " / ".join(said)
        for (_, asks, wants), said in read_instructions(icons / PROMPTS).items()
        if (asks, wants) in kinds
    }
    return [
        Case("clean", same, ALL),
        Case("typos: 1 word in 5, one edit", typos(0.2, 1), WORDY),
        Case("typos: 1 word in 2, one or two edits", typos(0.5, 2), WORDY),
        Case("new instruction, usual words", worded(USUAL), ALL),
        Case("new instruction, rare words", worded(RARE), ALL),
        Case("no instruction", worded(None), ALL),
        Case("instruction of another modality", worded({t: trained[other_task(t)] for t in ALL}), ALL),
        Case("image cropped to its middle 70 %", cropped, DRAWN),
        Case("grey image", grey, DRAWN),
        Case("right target told", same, ALL, "right"),
        Case("no instruction, right target told", worded(None), ALL, "right"),
        Case("wrong target told", same, ALL, "wrong"),
    ]
