"""`genius export`: the parts compute what the model computes, and a tab of a real browser answers as Python does.

One export serves all: tracing a model takes seconds. The tab's two searches have names in Python: `default` (by stored vectors,
`default-codes` without) and `genius`.
"""

from __future__ import annotations

import dataclasses
import gzip
import io
import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from chromium import CHROMIUM, launched, served
from plain_beam import next_log_probs
from typer.testing import CliRunner

from genius import Genius, Index, Item
from genius.cli import app
from genius.data.synthetic import COLOURS, SHAPES, SIZES, Thing
from genius.encoders import bundled_names
from genius.errors import GeniusError
from genius.export.web import Exported, export_web
from genius.search import SearchParams

pytestmark = [
    pytest.mark.skipif("mini" not in bundled_names(), reason="the bundled weights are not in this checkout"),
    pytest.mark.timeout(1200),  # tracing fourteen graphs, and 90 searches on one thread, perhaps beside much other work
]
BEAMS, QUESTIONS = 12, 80  # the laboratory asks 200 of the demo (lab/tab.py)
KINDS = (None, "image", "text", "pair")


def png(thing: Thing) -> bytes:
    buffer = io.BytesIO()
    thing.draw().save(buffer, "PNG")
    return buffer.getvalue()


def things() -> list[Thing]:
    return [Thing(colour, shape, size, 4) for colour in COLOURS for shape in SHAPES for size in SIZES]


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Index:
    model = Genius.from_pretrained("bundled:mini")
    model.config = dataclasses.replace(model.config, search={"beams": BEAMS})
    index = Index(tmp_path_factory.mktemp("tab") / "things.genius", model)
    items: list[Item] = []
    for n, thing in enumerate(things()):
        picture = png(thing)
        three = [
            Item(f"picture {n}", image=picture, metadata={"name": thing.text}),
            Item(f"words {n}", text=thing.text),
            Item(f"both {n}", image=picture, text=f"a drawing: {thing.text}"),
        ]
        items += three[: 1 + n % 3]
    index.add(items)
    index.delete("picture 3")
    return index


@pytest.fixture(scope="module")
def exported(index: Index, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Exported]:
    folder = tmp_path_factory.mktemp("site") / "site"
    return folder, export_web(index, folder, vectors=True, title="Things")


def part(folder: Path, name: str) -> bytes:
    return gzip.decompress((folder / "data" / f"{name}.gz").read_bytes())


def session(folder: Path, name: str) -> Any:
    """A part in another runtime, its shared weights beside it."""
    onnxruntime = pytest.importorskip("onnxruntime")
    with tempfile.TemporaryDirectory() as place:
        for file in (f"{name}.onnx", "decoder.bin"):
            (Path(place) / file).write_bytes(part(folder, file))
        return onnxruntime.InferenceSession(str(Path(place) / f"{name}.onnx"), providers=["CPUExecutionProvider"])


def test_the_folder_says_what_is_in_it(index: Index, exported: tuple[Path, Exported]) -> None:
    folder, done = exported
    assert done.items == len(index) and done.bytes == sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    about, items = json.loads(part(folder, "about.json")), json.loads(part(folder, "items.json"))
    assert about["items"] == len(items) == done.items and about["title"] == "Things"
    assert {item["id"] for item in items} == {item.id for item in index.items()}
    body = part(folder, "codes.bin")
    codes = np.frombuffer(body, "<u2", done.items * len(about["levels"])).reshape(done.items, -1)
    order = np.frombuffer(body, "<u4", done.items, codes.nbytes)
    assert [tuple(row) for row in codes.tolist()] == sorted(tuple(row) for row in codes.tolist())  # this order is the trie
    for place in (0, 7, done.items - 1):
        assert tuple(codes[place].tolist()) == index.codes(items[order[place]]["id"])


def test_the_parts_compute_what_the_model_computes(index: Index, exported: tuple[Path, Exported]) -> None:
    folder, encoder = exported[0], index.model.encoder
    assert encoder is not None
    texts = ["a large red circle", "Two words"]
    ids, mask = encoder.tokens(texts)  # type: ignore[attr-defined]
    got = session(folder, "text").run(None, {"ids": ids, "mask": mask})[0]
    np.testing.assert_allclose(got, encoder.encode_texts(texts).numpy(), atol=1e-4)
    pictures = [thing.draw() for thing in things()[:3]]
    got = session(folder, "image").run(None, {"pixels": encoder.pixels(pictures).numpy()})[0]  # type: ignore[attr-defined]
    np.testing.assert_allclose(got, encoder.encode_images(pictures).numpy(), atol=1e-4)


def test_the_decoder_level_by_level_is_the_generator(index: Index, exported: tuple[Path, Exported]) -> None:
    folder, generator = exported[0], index.model.generator
    z = torch.nn.functional.normalize(torch.randn(1, index.model.config.width, generator=torch.Generator().manual_seed(0)))
    state = {"z": z.numpy(), "cross": session(folder, "start").run(None, {"z": z.numpy()})[0]}
    paths = torch.tensor([[1, 5, 17, 400, 2, 9, 11, 300, 1], [1, 5, 18, 0, 511, 3, 3, 3, 3]])
    for level in range(generator.config.levels):
        if level:
            state["codes"] = paths[:, :level].numpy()
        log_p, past = session(folder, f"step_{level}").run(None, state)
        state["past"] = past if level else past.repeat(2, axis=2)  # one beam before the first code
        with torch.no_grad():
            wanted = next_log_probs(generator, z.repeat(2, 1), paths[:, :level])
        np.testing.assert_allclose(log_p, wanted[: len(log_p)].numpy(), atol=2e-3, rtol=1e-4)


def test_codes_stand_for_the_same_vectors(index: Index, exported: tuple[Path, Exported]) -> None:
    codes = torch.tensor([[1, 5, 17, 400, 2, 9, 11, 300, 1], [0, 5, 18, 0, 511, 3, 3, 3, 3]])
    got = session(exported[0], "reconstruct").run(None, {"codes": codes.numpy()})[0]
    np.testing.assert_allclose(got, index.model.quantizer.decode(codes).numpy(), atol=1e-6)


def test_weights_of_the_decoder_are_stored_once(index: Index, exported: tuple[Path, Exported]) -> None:
    """Nine graphs and one file: no more than its weights, with some for alignment and small constants."""
    decoder = sum(weight.numel() for weight in index.model.generator.parameters())
    codebooks = sum(codebook.numel() for codebook in index.model.quantizer.codebooks)
    assert len(part(exported[0], "decoder.bin")) < 1.1 * (decoder + 2 * codebooks)  # int8 and half precision
    assert sum(len(part(exported[0], f"step_{level}.onnx")) for level in range(9)) < 2**20


@pytest.fixture(scope="module")
def questions() -> list[dict[str, Any]]:
    """For every kind of answer, some with odd letters; a few words are no words."""
    words = [thing.text for thing in things()]
    odd = [
        "Ünïcödé  red!",
        'a "blue" ring?',
        "x" * 120,
        "zwei Kreise – groß",
        "[SEP] star",
        "ＷＩＤＥ  ｌｅｔｔｅｒｓ",
        "naïve   café, 42%",
        "\tbar\n",
    ]
    texts = [*odd, *(word if i % 3 else f"show me {word} please" for i, word in enumerate(words * (QUESTIONS // len(words) + 1)))]
    return [{"text": text, "target": KINDS[i % 4], "k": 8} for i, text in enumerate(texts[:QUESTIONS])]


ASK = """async ([questions, bare, search]) => {
    const { Engine } = await import("./engine.js");
    const unpack = async (name) => {
        const body = (await fetch(`data/${name}.gz`)).body.pipeThrough(new DecompressionStream("gzip"));
        return new Uint8Array(await new Response(body).arrayBuffer());
    };
    const engine = await Engine.open(unpack);
    if (bare) engine.vectors = undefined;
    return questions.map((question) => {
        const { hits, answerable } = engine.ask({ ...question, search });
        return { ids: hits.map((hit) => engine.items[hit.item].id), scores: hits.map((hit) => hit.score), answerable };
    });
}"""


@pytest.fixture(scope="module")
def page(exported: tuple[Path, Exported]) -> Iterator[Any]:
    with served(exported[0]) as home, launched() as browser:
        page = browser.new_page(viewport={"width": 1200, "height": 900}, bypass_csp=True)  # axe comes as a script of its own
        errors: list[str] = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        strangers: list[str] = []
        page.on(
            "request", lambda request: None if request.url.startswith((home, "data:", "blob:")) else strangers.append(request.url)
        )
        page.goto(home)
        until(page, "window.tab !== undefined && tab.ready !== null")
        yield page
        assert errors == [] and strangers == []


def until(page: Any, expression: str, seconds: float = 240) -> None:
    deadline = time.monotonic() + seconds
    while not page.evaluate(expression):
        assert time.monotonic() < deadline, f"never: {expression}; the page says: {page.inner_text('#status')}"
        time.sleep(0.02)


def compare(
    answers: list[dict[str, Any]], index: Index, questions: list[dict[str, Any]], params: SearchParams, sure: bool
) -> None:
    for answer, question in zip(answers, questions, strict=True):
        hits = index.search(question["text"], target=question["target"] or "any", k=question["k"], params=params)
        assert answer["scores"] == pytest.approx([hit.score for hit in hits], abs=2e-5), question
        # the same items in the same order; where two scores are equal to six digits their order is nobody's promise
        for i, (mine, hit) in enumerate(zip(answer["ids"], hits, strict=True)):
            tied = [other.id for other in hits if abs(other.score - hit.score) < 2e-6]
            assert mine == hit.id or (len(tied) > 1 and (mine in tied or i == len(hits) - 1)), question
        if sure:
            assert answer["answerable"] == pytest.approx(hits.answerable, abs=1e-4)


@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="needs the Debian package chromium")
def test_a_tab_answers_as_python_does(page: Any, index: Index, questions: list[dict[str, Any]]) -> None:
    params = SearchParams.of_model(index.model)
    compare(page.evaluate(ASK, [questions, False, "default"]), index, questions, params.named("default"), sure=True)
    few = questions[::2]
    compare(page.evaluate(ASK, [few, True, "default"]), index, few, params.named("default-codes"), sure=False)
    compare(page.evaluate(ASK, [few, False, "genius"]), index, few, params.named("genius"), sure=False)


@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="needs the Debian package chromium")
def test_a_person_sees_the_id_being_generated(page: Any, index: Index) -> None:
    page.fill("#text", "a large red circle")
    page.press("#text", "Enter")
    until(page, "tab.done !== null && tab.generated === tab.number && tab.queue.length === 0 && tab.timer === 0")
    hits = index.search("a large red circle", target="image", k=12)
    shown = page.eval_on_selector_all("#hits li", "(all) => all.map((item) => item.dataset.id)")
    assert shown[0] == hits[0].id and len(shown) == 12
    levels = len(index.about.levels)
    assert len(page.query_selector_all("#slots li:not(.empty)")) == levels and "after 9 codes" in page.inner_text("#narrowing")
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    faults = [(fault["impact"], fault["id"]) for fault in axe.run(page).response["violations"]]
    assert not [fault for fault in faults if fault[0] in ("serious", "critical")], faults
    page.check("input[name=search][value=genius]", force=True)  # GENIUS as in the paper: what the beams generate, by log p
    until(page, "tab.done !== null && tab.done.hits[0].score < 0")
    best = index.search("a large red circle", target="image", k=1, params=SearchParams.of_model(index.model).named("genius"))
    assert page.evaluate("tab.done.hits[0].score") == pytest.approx(best[0].score, abs=1e-3)
    assert "log p" in page.inner_text("#hits") and "beams" in page.inner_text("#status")
    page.check("input[name=search][value=default]", force=True)
    # a picture asks too: one that is there is found first
    picture = {"name": "mine.png", "mimeType": "image/png", "buffer": png(things()[5])}
    page.fill("#text", "")
    page.set_input_files("#file", picture)
    until(page, "tab.done !== null && tab.picture !== null")
    assert page.evaluate("tab.done.hits[0].name ?? tab.done.hits[0].text").endswith(things()[5].text)


def test_a_bad_call_is_one_line(index: Index, tmp_path: Path, exported: tuple[Path, Exported]) -> None:
    (tmp_path / "mine.txt").write_text("not an export")
    with pytest.raises(GeniusError, match="holds other files"):
        export_web(index, tmp_path)
    assert (tmp_path / "mine.txt").read_text() == "not an export"
    result = CliRunner().invoke(app, ["export", "web", str(tmp_path / "none.genius"), "-o", str(tmp_path / "out")])
    assert result.exit_code == 2 and not (tmp_path / "out").exists()
    empty = Index(tmp_path / "empty.genius", index.model)
    with pytest.raises(GeniusError, match="has 0"):
        export_web(empty, tmp_path / "out")


def test_a_larger_encoder_is_refused_in_one_line(tmp_path: Path) -> None:
    from fake_encoder import fake_model, register

    register()
    fake_model().save_pretrained(tmp_path / "model")
    other = Index(tmp_path / "other.genius", Genius.from_pretrained(str(tmp_path / "model")))
    other.add([Item("1", text="a text")])
    other.close()
    command = ["export", "web", str(other.path), "-o", str(tmp_path / "out"), "--model", str(tmp_path / "model")]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 2 and "only models with the encoder of bundled:mini" in result.output.replace("\n", " ")
    assert "Traceback" not in result.output and not (tmp_path / "out").exists()
