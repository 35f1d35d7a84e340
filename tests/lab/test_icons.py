"""The honesty rules of the icon benchmark, on a miniature one of hand-written drawings and a made-up dictionary."""

from __future__ import annotations

import json
import lzma
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from genius.errors import GeniusError
from lab.icons.build import build_icons
from lab.icons.concepts import split_of
from lab.icons.gather import name_icons
from lab.icons.lexicon import MASK, Lexicon, Synset, mask
from lab.icons.model import TASKS, App, Icon, Material
from lab.icons.names import split_mods, strip_variant, words_of
from lab.icons.sets import SETS, SetSpec

pytest.importorskip("resvg_py")

THINGS = [
    f"{a}{b}" for a in ("gor", "bel", "tam", "wix", "nul", "pex", "dov", "sar", "kim", "lot") for b in ("ak", "on", "ist", "ume")
]


def svg(seed: int, extra: str = "") -> str:
    x, y, r = 3 + seed * 7 % 13, 3 + seed * 11 % 17, 2 + seed % 3
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 24 24"><circle cx="{x}" cy="{y}" r="{r}"/>'
        f'<rect x="{seed % 19}" y="{seed * 5 % 17}" width="{1 + seed % 7}" height="3"/>{extra}</svg>'
    )


def icon(
    set_name: str, family: str, base: str, drawing: str, mods: tuple[str, ...] = (), style: str = "", kind: str = "ui"
) -> Icon:
    name = "-".join((base, *mods, *([style] if style else [])))
    return Icon(set_name, family, name, style, base, mods, " ".join((base, *mods)), drawing, kind)


@pytest.fixture
def material() -> Material:
    icons: list[Icon] = []
    for n, base in enumerate(THINGS):
        for k, (set_name, family) in enumerate([("one", "A"), ("two", "B"), ("three", "C"), ("three-copy", "C")]):
            seed = 100 * (k + 1) + n
            icons.append(icon(set_name, family, base, svg(seed)))
            icons.append(
                icon(set_name, family, base, svg(seed, '<path d="M0 0L24 24" stroke="#000" stroke-width="2"/>'), ("off",))
            )
    icons.append(icon("two", "B", "twin", svg(100)))  # the picture of THINGS[0] in set "one", under another name
    icons.append(icon("one", "A", "blank", '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 9 9"/>'))
    icons.append(icon("two", "B", "blank", '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 9 9"/>'))
    synsets = {
        f"n{n}": Synset((b, f"{b}ling"), f"a kind of {b} that lives near river {n}", True, "n") for n, b in enumerate(THINGS)
    }
    senses = {b: [f"n{n}"] for n, b in enumerate(THINGS)} | {f"{b}ling": [f"n{n}"] for n, b in enumerate(THINGS)}
    definitions = {b: [f"Any {b}, or young {b}s, found beside a river numbered {n}"] for n, b in enumerate(THINGS)}
    tags = {b: {f"tag{n}", f"word{n}", "shared"} for n, b in enumerate(THINGS)}
    apps = [
        App(
            THINGS[3],
            THINGS[3].title(),
            f"The {THINGS[3]} player",
            f"{THINGS[3].title()} plays all sorts of music files for you",
        )
    ]
    return Material(icons, tags, [(THINGS[0], THINGS[1])], Lexicon(synsets, senses, definitions), apps, [{"source": "hand"}])


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def build(out: Path, material: Material) -> dict[str, Any]:
    return build_icons(out, material, size=32, workers=1)


@pytest.fixture
def built(tmp_path: Path, material: Material) -> Path:
    build(tmp_path / "bench", material)
    return tmp_path / "bench"


def questions(out: Path) -> list[tuple[str, dict[str, Any]]]:
    return [
        (split, row)
        for split in ("train", "val", "test")
        for task in TASKS
        for row in rows(out / f"query/{split}/mbeir_icons_task{task}_{split}.jsonl")
    ]


def test_layout_is_complete_and_consistent(built: Path) -> None:
    pool = {r["did"]: r for r in rows(built / "cand_pool/global/mbeir_union_cand_pool.jsonl")}
    assert {r["modality"] for r in pool.values()} == {"image", "text", "image,text"}
    seen = set()
    for split, row in questions(built):
        assert row["qid"] not in seen
        seen.add(row["qid"])
        assert row["pos_cand_list"]
        query, wanted = TASKS[row["task_id"]]
        assert row["query_modality"] == query
        assert (row["query_txt"] is not None) == ("text" in query)
        assert (row["query_img_path"] is not None) == ("image" in query)
        assert {pool[d]["modality"] for d in row["pos_cand_list"]} == {wanted}
        if row["query_img_path"]:
            assert (built / row["query_img_path"]).exists(), split
    for row in pool.values():
        if row["img_path"]:
            assert Image.open(built / row["img_path"]).size == (32, 32)
    for task in TASKS:
        split_rows = rows(built / f"query/train/mbeir_icons_task{task}_train.jsonl")
        assert split_rows, f"no training question for task {task}"
        wanted_lines = [f"{r['qid']} 0 {d} 1 {task}" for r in split_rows for d in r["pos_cand_list"]]
        assert (built / f"qrels/train/mbeir_icons_task{task}_train_qrels.txt").read_text().splitlines() == wanted_lines
    header, *table = (built / "instructions/query_instructions.tsv").read_text().splitlines()
    assert header.split("\t")[:4] == ["query_modality", "cand_modality", "dataset_name", "dataset_id"]
    assert [tuple(line.split("\t")[:2]) for line in table] == list(TASKS.values())
    assert all(len(line.split("\t")) == 8 for line in table)


def test_no_concept_is_in_two_splits(built: Path) -> None:
    meta = {r["img_path"]: r for r in rows(built / "meta.jsonl")}
    splits: dict[str, set[str]] = {}
    for row in meta.values():
        splits.setdefault(row["concept"].split("+")[0], set()).add(row["split"])
    assert all(len(s) == 1 for s in splits.values())
    assert splits[THINGS[0]] == splits[THINGS[1]], "aliases must share a split"
    assert {s for group in splits.values() for s in group} >= {"train", "test"}
    pool = {r["did"]: r for r in rows(built / "cand_pool/global/mbeir_union_cand_pool.jsonl")}
    texts: dict[str, set[str]] = {}
    for split, row in questions(built):
        ends = [row["query_img_path"], *(pool[d]["img_path"] for d in row["pos_cand_list"])]
        assert {meta[e]["split"] for e in ends if e} <= {split}
        for did in row["pos_cand_list"]:
            if pool[did]["txt"]:
                texts.setdefault(pool[did]["txt"], set()).add(split)
    assert all(len(s) == 1 for s in texts.values()), "a text must answer questions of one split only"


def test_identical_pictures_are_kept_once_and_join_their_names(built: Path) -> None:
    names = {(r["set"], r["name"]) for r in rows(built / "meta.jsonl")}
    assert ("two", "twin") not in names
    assert ("one", THINGS[0]) in names
    assert not (built / "img/two/twin.png").exists()
    assert not any(name == "blank" for _, name in names), "an empty drawing is no drawing"
    with lzma.open(built / "svg.jsonl.xz", "rt") as file:
        archive = [json.loads(line) for line in file]
    assert {a["img_path"] for a in archive} == {r["img_path"] for r in rows(built / "meta.jsonl")}


def test_every_drawing_of_the_concept_is_an_answer_and_the_question_is_not_in_the_pool(built: Path) -> None:
    meta = {r["img_path"]: r for r in rows(built / "meta.jsonl")}
    pool = {r["did"]: r for r in rows(built / "cand_pool/global/mbeir_union_cand_pool.jsonl")}
    images = {r["img_path"] for r in pool.values() if r["modality"] == "image"}
    asked = rows(built / "query/test/mbeir_icons_task4_test.jsonl")
    assert asked
    for row in asked:
        source = meta[row["query_img_path"]]
        assert row["query_img_path"] not in images
        answers = {pool[d]["img_path"] for d in row["pos_cand_list"]}
        assert answers == {p for p in images if meta[p]["concept"] == source["concept"]}
        assert all(meta[a]["family"] != source["family"] for a in answers), "a hand's own redrawing is no answer"


def test_edits_stay_in_one_set_and_put_the_exact_drawing_first(built: Path) -> None:
    meta = {r["img_path"]: r for r in rows(built / "meta.jsonl")}
    pool = {r["did"]: r for r in rows(built / "cand_pool/global/mbeir_union_cand_pool.jsonl")}
    asked = rows(built / "query/train/mbeir_icons_task7_train.jsonl")
    assert asked
    for row in asked:
        source, target = meta[row["query_img_path"]], meta[pool[row["pos_cand_list"][0]]["img_path"]]
        assert source["set"] == target["set"]
        assert source["concept"].split("+")[0] == target["concept"].split("+")[0]
        assert source["concept"] != target["concept"]


def test_headwords_are_masked_in_text_to_text(built: Path) -> None:
    pool = {r["did"]: r for r in rows(built / "cand_pool/global/mbeir_union_cand_pool.jsonl")}
    defined = [r for split, r in questions(built) if r["task_id"] == 1 and "found beside" in r["query_txt"]]
    assert defined
    for row in defined:
        assert MASK in row["query_txt"]
        for thing in THINGS:
            assert thing not in row["query_txt"].lower()
    described = [r["txt"] for r in pool.values() if r["txt"] and "music files" in r["txt"]]
    assert described and all(t.startswith(MASK) for t in described)


def test_mask_hides_inflections_and_nothing_else() -> None:
    assert mask("He reversed it in a reversible manner", ["reversibly"]) == f"He {MASK} it in a {MASK} manner"
    assert mask("Fire extinguishers put fires out", ["fire extinguisher"]) == f"{MASK} put {MASK} out"
    assert mask("a small boat", ["ship"]) == "a small boat"


def test_names_become_concepts() -> None:
    known = {"mic", "user", "bell"}
    assert split_mods(words_of("mic-slash"), known) == ("microphone", ("off",))
    assert split_mods(words_of("microphone-off"), {"microphone"}) == ("microphone", ("off",))
    assert split_mods(words_of("circle-user"), known) == split_mods(words_of("user-circle"), known) == ("user", ("circle",))
    assert split_mods(words_of("user-circle-plus"), known) == ("user", ("circle", "plus"))
    assert split_mods(words_of("kick-off"), known) == ("kick off", ())
    assert strip_variant(["tool", "2"]) == (["tool"], "2")
    assert strip_variant(["dice", "2"]) == (["dice", "2"], "")


def test_packagings_of_one_family_count_once() -> None:
    families = {SETS[s].family for s in ("fa7-solid", "fa7-regular", "fa7-brands", "la")}
    assert len(families) == 1
    assert SETS["mdi"].family == SETS["material-symbols"].family
    spec = SetSpec("material")
    raw = [
        ("mdi", spec, "bell", ["bell"], "filled", svg(1), ""),
        ("material-symbols", spec, "bell", ["bell"], "filled", svg(2), ""),
    ]
    icons, _ = name_icons(raw, Lexicon())
    assert [i.set for i in icons] == ["mdi"]


def test_a_second_build_writes_the_same_files(tmp_path: Path, material: Material) -> None:
    def files(out: Path) -> dict[str, bytes]:
        return {str(path.relative_to(out)): path.read_bytes() for path in sorted(out.rglob("*")) if path.is_file()}

    build(tmp_path / "one", material)
    first = files(tmp_path / "one")
    (tmp_path / "one" / "img/one" / f"{THINGS[5]}.png").unlink()
    build(tmp_path / "one", material)
    assert files(tmp_path / "one") == first


def test_split_is_stable_and_close_to_its_shares() -> None:
    shares = [split_of(str(n)) for n in range(20_000)]
    assert abs(shares.count("train") / 20_000 - 0.85) < 0.01
    assert abs(shares.count("test") / 20_000 - 0.10) < 0.01
    assert split_of("microphone") == split_of("microphone")


def test_bad_calls_say_what_is_wrong(tmp_path: Path, material: Material) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(GeniusError, match="is a file"):
        build(tmp_path / "file", material)
    with pytest.raises(GeniusError, match="no usable icon"):
        build_icons(tmp_path / "x", Material([], {}, [], Lexicon()))
