"""Instructions in any wording: the target that is read, the content that stays, and what a model knows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import fake_encoder
import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file

from genius import Genius
from genius.errors import GeniusError
from genius.instructions import CLASSES, FILE, LONGEST, MODEL, MOST, WORDS, KnownInstructions, WordClasses, read_instruction
from genius.types import TEMPLATES, Modality, Query

IMAGE, TEXT, PAIR = Modality.IMAGE, Modality.TEXT, Modality.PAIR


@pytest.mark.parametrize("direction", TEMPLATES, ids=lambda d: f"{d[0].label}-{d[1].label}")
def test_own_wordings_are_read_right(direction: tuple[Modality, Modality]) -> None:
    query, target = direction
    assert [read_instruction(text, query).target for text in TEMPLATES[direction]] == [target] * 4


READ = [
    ("Some photographs of this, please.", TEXT, IMAGE, ""),
    ("Photos with their captions.", TEXT, PAIR, ""),
    ("An illustrated page on this.", TEXT, PAIR, ""),
    ("Image-text pairs that match.", TEXT, PAIR, ""),
    ("A picture for the caption below.", TEXT, IMAGE, ""),
    ("The caption of this picture.", IMAGE, TEXT, ""),
    ("This picture with its caption.", IMAGE, PAIR, ""),
    ("A caption that goes with the picture.", IMAGE, TEXT, ""),
    ("Another picture like the one shown.", IMAGE, IMAGE, ""),
    ("A paragraph about the image.", PAIR, TEXT, ""),
    ("This photo, but edited.", PAIR, IMAGE, ""),
    ("Describe the picture with a text.", IMAGE, TEXT, ""),
    ("Which photos show the same shoe in red?", IMAGE, IMAGE, "shoe in red"),
    ("The same shoe in red.", IMAGE, None, "shoe in red"),
    ("The gist of this photo.", IMAGE, None, "gist"),  # a word that no list has is what is wanted
    ("What is this called?", IMAGE, TEXT, ""),  # verbs say what no noun does
    ("What is this called?", TEXT, None, ""),
    ("Can I see it?", TEXT, IMAGE, ""),
    ("More like this.", IMAGE, IMAGE, ""),
    ("Only changed as described.", PAIR, IMAGE, ""),
    ("Not text, just the picture.", TEXT, IMAGE, ""),
    ("The photo only, no words.", TEXT, IMAGE, ""),
    ("Posts about this with photos.", TEXT, PAIR, ""),  # an entry with a picture has a text, too
    ("The page where this picture appears.", IMAGE, PAIR, ""),
    ("Cards that show it and describe it.", TEXT, PAIR, ""),
    ("Show the item together with its description.", TEXT, PAIR, ""),
    ("The title of the item in the picture.", IMAGE, TEXT, ""),
    ("Give me something to look at for this caption.", TEXT, IMAGE, ""),
    ("I have a title, now find the photo.", TEXT, IMAGE, ""),  # what the query is
    ("We took this photo, where is the caption?", IMAGE, TEXT, ""),
    ("Turn the picture into a sentence.", IMAGE, TEXT, ""),
    ("This photo with whatever was said about it.", IMAGE, PAIR, ""),  # a clause in place of a noun
    ("The words and what it looks like.", TEXT, PAIR, ""),
    ("Tell me what it looks like.", IMAGE, TEXT, ""),
    ("The proper name, please.", IMAGE, TEXT, ""),
    ("Name this.", IMAGE, TEXT, ""),
    ("A brochure with its pictures.", TEXT, PAIR, ""),  # parts of something, whatever that is
    ("A leaflet, photo included.", TEXT, PAIR, ""),
    ("Find this with a caption.", IMAGE, PAIR, ""),
    ("Compare this with a caption.", IMAGE, TEXT, ""),
    ("Modify it according to the sentence.", PAIR, IMAGE, ""),
    ("The variant that the text describes.", PAIR, IMAGE, ""),
    ("Photo in, caption out: which discription fits teh pictrue?", IMAGE, TEXT, ""),  # slips of the pen
    ("photo w/ accompanying copy", TEXT, PAIR, ""),
    ("Show it and tell me about it.", TEXT, PAIR, ""),
    ("Find images, not articles.", TEXT, IMAGE, ""),
    ("Text only.", IMAGE, TEXT, ""),
    ("Kindly disinter the caption.", IMAGE, TEXT, ""),  # an unknown verb is not content
    ("Find the caption of the amphora.", IMAGE, TEXT, "amphora"),
    ("What is it?", IMAGE, TEXT, ""),
    ("What is it?", TEXT, None, ""),
    ("123", IMAGE, None, ""),
    ("!?", TEXT, None, ""),
    ("写真を探して", TEXT, None, "写真を探して"),
]


@pytest.mark.parametrize(("text", "query", "target", "content"), READ, ids=[entry[0] for entry in READ])
def test_target_and_content(text: str, query: Modality, target: Modality | None, content: str) -> None:
    read = read_instruction(text, query)
    assert (read.target, read.content) == (target, content)


def test_an_unclear_instruction_means_the_only_target_that_a_model_knows() -> None:
    query = Query("a red bicycle", b"image", "Make it so.")
    edits = KnownInstructions({(PAIR, IMAGE): ("Apply the change.",), (IMAGE, TEXT): ("Say it.",)})
    assert edits.in_own_words(query).instruction == "Apply the change."
    several = KnownInstructions({(PAIR, IMAGE): ("Apply the change.",), (PAIR, TEXT): ("Answer it.",)})
    assert several.in_own_words(query) == query


def test_a_word_belongs_to_one_class() -> None:
    words = [word for own in WORDS.values() for word in own]
    assert len(words) == len(set(words))
    assert all(word == word.lower() and (word.isalpha() or word in "&+") for word in words)


def test_the_network_has_a_vector_for_every_class() -> None:
    assert load_file(MODEL)["embedding_weight"].shape[0] == len(CLASSES) + 1  # and one for an instruction without words


@pytest.mark.parametrize("word", ["storms", "heating", "massage", "shoots", "form", "butter", "closet", "forest"])
def test_words_that_look_like_a_slip_of_the_pen_are_content(word: str) -> None:
    assert read_instruction(f"The same {word} in red.", IMAGE).content.startswith(word)


def test_anything_is_read() -> None:
    assert read_instruction("", TEXT).target is None
    assert read_instruction("photo " * 10_000, TEXT).target is IMAGE
    assert read_instruction("\n\t-–…", PAIR).content == ""
    assert read_instruction("Photos, " + "please " * LONGEST + "shoe", TEXT).content == ""  # the first words count


PLACES: dict[str, int] = {}


def vectors(texts: Sequence[str]) -> NDArray[np.float32]:
    """One direction for each word, and "glimpse" beside "photo"."""
    out = np.zeros((len(texts), 2048), np.float32)
    for row, text in enumerate(texts):
        word = text.lower().strip(".")
        if word == "glimpse":
            out[row] = 0.9 * vectors(["Photo."])[0]
            word = "rarely"
        out[row, PLACES.setdefault(word, len(PLACES))] += 1 - out[row].sum()
    return out


def test_an_encoder_classifies_unknown_words() -> None:
    classes = WordClasses(vectors)
    assert classes(["glimpse"]) == ["image"]
    assert read_instruction("A glimpse of this.", TEXT).target is None
    assert read_instruction("A glimpse of this.", TEXT, classes).target is IMAGE


# -- the wordings of a model -----------------------------------------------------------------------------------


def test_other_words_become_the_models_own() -> None:
    known = KnownInstructions(TEMPLATES)
    asked = Query("a red bicycle", instruction="Any snapshots?")
    assert known.in_own_words(asked).instruction == TEMPLATES[TEXT, IMAGE][0]
    assert known.in_own_words(asked).text == "a red bicycle"


@pytest.mark.parametrize(
    "query",
    [
        Query("a bicycle"),
        Query("a bicycle", target="text"),  # type: ignore[arg-type]
        Query("a bicycle", instruction=TEMPLATES[TEXT, IMAGE][2]),
        Query("a bicycle", instruction=TEMPLATES[TEXT, IMAGE][2].upper().rstrip(".")),
        Query("a bicycle", instruction="Something nice in red."),  # names no modality
        Query("find a photo of a text message, not a caption"),  # the query itself is content
        Query("find a photo of a text message", instruction=TEMPLATES[TEXT, TEXT][1]),
        Query(vector=[1.0, 0.0]),
    ],
)
def test_others_stay_as_they_are(query: Query) -> None:
    assert KnownInstructions(TEMPLATES).in_own_words(query) is query


def test_content_of_an_instruction_stays() -> None:
    known = KnownInstructions(TEMPLATES)
    query = known.in_own_words(Query(image=b"", instruction="Photos of the same shoe in red."))
    assert query.instruction == f"{TEMPLATES[PAIR, IMAGE][0]} shoe in red."


def test_content_beside_an_image_goes_where_training_had_words() -> None:
    known = KnownInstructions({(IMAGE, TEXT): ("Say it.",), (IMAGE, IMAGE): ("Show it.",), (PAIR, IMAGE): ("Change it.",)})
    assert known.in_own_words(Query(image=b"", instruction="Captions of the red shoe.")).instruction == "Say it."
    assert (
        known.in_own_words(Query(image=b"", instruction="Photos of the same shoe in red.")).instruction
        == "Change it. shoe in red."
    )


def test_a_given_target_counts_more_than_words() -> None:
    known = KnownInstructions(TEMPLATES)
    query = known.in_own_words(Query("a bicycle", instruction="Any snapshots?", target=TEXT))
    assert query.instruction == TEMPLATES[TEXT, TEXT][0]


def test_a_direction_that_training_lacked_is_left_alone() -> None:
    known = KnownInstructions({(TEXT, IMAGE): ("Show it.",)})
    query = Query("a bicycle", instruction="Which text tells more?")
    assert known.in_own_words(query) is query


def test_instructions_of_training_queries() -> None:
    used = [("Rare.", TEXT, IMAGE), ("Usual.", TEXT, IMAGE), ("Usual.", TEXT, IMAGE), ("Say it.", IMAGE, TEXT)]
    known = KnownInstructions.of(used)
    assert known is not None
    assert known.wordings == {(TEXT, IMAGE): ("Usual.", "Rare."), (IMAGE, TEXT): ("Say it.",)}
    assert KnownInstructions.of([]) is None
    assert KnownInstructions.of([*used, (None, TEXT, TEXT)]) is None
    assert KnownInstructions.of([(f"Number {i}.", TEXT, IMAGE) for i in range(MOST + 1)]) is None


def test_saved_and_loaded(tmp_path: Path) -> None:
    assert KnownInstructions.load(tmp_path) is None
    KnownInstructions(TEMPLATES).save(tmp_path)
    assert KnownInstructions.load(tmp_path) == KnownInstructions(TEMPLATES)


@pytest.mark.parametrize(
    "body",
    [
        [],
        {"known": 3},
        {"known": [{"query": "text", "target": "smell", "wordings": ["a"]}]},
        {"known": [{"query": "text", "target": "image", "wordings": []}]},
        {"known": [{"query": "text", "target": "image", "wordings": [3]}]},
        {"known": [{"query": "text", "target": "image", "wordings": ["a"] * (MOST + 1)}]},
    ],
)
def test_an_invalid_file_is_one_clear_line(tmp_path: Path, body: object) -> None:
    (tmp_path / FILE).write_text(json.dumps(body), encoding="utf-8")
    with pytest.raises(GeniusError, match=r"instructions\.json is invalid"):
        KnownInstructions.load(tmp_path)


def test_a_saved_model_keeps_no_instructions_of_the_one_before(tmp_path: Path) -> None:
    fake_encoder.register()
    model = fake_encoder.fake_model()
    model.instructions = KnownInstructions(TEMPLATES)
    model.save_pretrained(tmp_path)
    assert Genius.from_pretrained(tmp_path).instructions == model.instructions
    model.instructions = None
    model.save_pretrained(tmp_path)
    assert Genius.from_pretrained(tmp_path).instructions is None
