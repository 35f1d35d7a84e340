"""M-BEIR's layout: every row is read, pools are kept apart, and what is missing fails loudly with counts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from genius.data import open_collection
from genius.data.collection import Collection, check_collection
from genius.data.mbeir import DATASET_IDS, ROWS, MBeir, order_of, read_instructions, read_lines, task_of
from genius.errors import GeniusError
from genius.types import Modality
from lab.mbeir.shapes import write_synthetic_mbeir

SHARED_PROMPTS = Path(__file__).parents[3] / "shared" / "data" / "mbeir" / "query_instructions.tsv"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_synthetic_mbeir(tmp_path_factory.mktemp("mbeir"))


def test_all_sixteen_rows_in_the_papers_order(root: Path) -> None:
    data = open_collection(root)
    assert isinstance(data, MBeir) and isinstance(data, Collection)
    assert [task.key for task in data.tasks] == list(ROWS)
    assert [t.main for t in data.tasks if t.dataset in ("Fashion200K", "FashionIQ")] == [10, 10, 10]
    summary = check_collection(data)
    assert summary.queries == 16 * 12 and summary.items == 16 * 24 and set(summary.per_task.values()) == {12}
    assert summary.pairs >= summary.queries


def test_queries_have_what_their_task_says(root: Path) -> None:
    data = MBeir(root, split="val")
    seen = set()
    for judged in data.queries():
        task = data.tasks[judged.task]
        seen.add(task.key)
        assert judged.query.modality == task.query and judged.query.instruction and judged.positives
    assert seen == set(ROWS)
    kinds = {item.id: item.modality for item in data.pool()}
    for number, task in enumerate(data.tasks):
        own = data.local_pool(number)
        assert own is not None and {kinds[name] for name in own} == {task.target}


def names(root: Path, place: str) -> set[str]:
    return {path.name for path in (root / place).iterdir()}


def test_the_synthetic_copy_has_the_released_names_and_gaps(root: Path) -> None:
    assert names(root, "query/train") == {f"mbeir_{name}_train.jsonl" for name in DATASET_IDS if name != "flickr30k"}
    assert names(root, "query/union_train") == {"mbeir_union_up_train.jsonl"}
    assert names(root, "query/union_val") == {"mbeir_union_val.jsonl"}
    for split in ("val", "test"):
        assert names(root, f"query/{split}") == {f"mbeir_{key}_{split}.jsonl" for key in ROWS}
        assert names(root, f"qrels/{split}") == {f"mbeir_{key}_{split}_qrels.txt" for key in ROWS}
    single = {f"mbeir_{key}_cand_pool.jsonl" for key in ROWS if not key.startswith("mscoco")}
    coco = {f"mbeir_mscoco_task{t}_{split}_cand_pool.jsonl" for t in (0, 3) for split in ("val", "test")}
    assert names(root, "cand_pool/local") == single | coco
    assert names(root, "cand_pool/global") == {f"mbeir_union_{part}_cand_pool.jsonl" for part in ("train", "val", "test")}
    assert len(names(root, "mbeir_images")) == 9  # InfoSeek has none of its own
    union = [row["did"] for row in read_lines(root / "cand_pool/global/mbeir_union_test_cand_pool.jsonl")]
    assert union == sorted(union, key=lambda did: tuple(map(int, did.split(":"))))
    oven = list(read_lines(root / "query/test/mbeir_oven_task6_test.jsonl"))
    assert any(did.startswith("6:") for row in oven for did in row["pos_cand_list"])
    webqa = next(iter(read_lines(root / "cand_pool/local/mbeir_webqa_task1_cand_pool.jsonl")))
    assert {"txt", "modality", "did"} <= set(webqa) and "img_path" not in webqa


@pytest.mark.parametrize("split", ["train", "union_train", "union_val"])
def test_mixed_files_tell_their_tasks_apart(root: Path, split: str) -> None:
    data = MBeir(root, split=split)
    assert [task.key for task in data.tasks] == list(ROWS)
    summary = check_collection(data)  # the union pool holds every answer, though it is only a part of what can be searched
    assert set(summary.per_task.values()) == {12}
    local = {item.id for item in MBeir(root).pool()}
    pool = {item.id for item in data.pool()}
    assert any(name.startswith("9:") and name not in local for name in pool)  # MSCOCO's training pictures are nowhere else
    assert len(pool) < len(local) and all(data.local_pool(number) is None for number in range(16))
    for judged in data.queries():
        assert judged.query.modality == data.tasks[judged.task].query
    one = MBeir(root, split=split, tasks=("mscoco_task3",))
    assert {q.query.modality for q in one.queries()} == {Modality.IMAGE} and check_collection(one).queries == 12


def test_the_up_sampled_file_is_each_question_with_how_often_it_occurs(root: Path) -> None:
    data = MBeir(root, split="union_train")
    lines = [row["qid"] for row in read_lines(root / "query/union_train/mbeir_union_up_train.jsonl")]
    asked = list(data.queries())
    assert len({q.id for q in asked}) == len(asked) == 192 and len(lines) == 192 + 72
    assert all(q.times == lines.count(q.id) for q in asked)
    once = {q.id: q for q in MBeir(root, split="train").queries()}
    assert {q.id for q in asked} == once.keys()
    assert all(set(q.positives) == set(once[q.id].positives) and q.query == once[q.id].query for q in asked)


def test_a_query_that_a_plain_split_names_twice_is_not_dropped_in_silence(tmp_path: Path) -> None:
    """Only the up-sampled file repeats queries on purpose. Elsewhere a repeated id is a damaged download, and is named."""
    root = write_synthetic_mbeir(tmp_path, rows=("mscoco_task0",))
    path = root / "query/test/mbeir_mscoco_task0_test.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines()
    path.write_text("\n".join([*lines, lines[0]]) + "\n", encoding="utf-8")
    data = MBeir(root, split="test")
    ids = [judged.id for judged in data.queries()]
    assert len(ids) == len(lines) + 1 and ids[-1] == ids[0]
    with pytest.raises(GeniusError, match=r"twice|occur"):
        check_collection(data)


def test_questions_are_numbered_anew_in_each_split(root: Path) -> None:
    test, val = ({q.id for q in MBeir(root, split=split).queries()} for split in ("test", "val"))
    assert test == val


def test_validation_searches_whole_pools_and_says_which_is_missing(tmp_path: Path) -> None:
    root = write_synthetic_mbeir(tmp_path, rows=("mscoco_task0", "webqa_task1"))
    data = MBeir(root, split="val")
    assert len(list(data.pool())) == 48  # not the few candidates that the union val file names
    assert check_collection(data).queries == 24
    (root / "cand_pool/local/mbeir_mscoco_task0_val_cand_pool.jsonl").unlink()
    with pytest.raises(GeniusError, match=r"mbeir_mscoco_task0_val_cand_pool\.jsonl is missing"):
        MBeir(root, split="val")
    assert check_collection(MBeir(root, split="val", tasks=("webqa_task1",))).queries == 12
    (root / "cand_pool/global/mbeir_union_train_cand_pool.jsonl").unlink()
    with pytest.raises(GeniusError, match=r"mbeir_union_train_cand_pool\.jsonl is missing"):
        MBeir(root, split="train")
    with pytest.raises(GeniusError, match="no split 'dev'"):
        MBeir(root, split="dev")


def test_prompts_do_not_depend_on_order_but_on_the_seed(root: Path) -> None:
    def prompts(data: MBeir) -> dict[str, str | None]:
        return {q.id: q.query.instruction for q in data.queries()}

    full, part = prompts(MBeir(root)), prompts(MBeir(root, tasks=("cirr_task7",)))
    assert part and all(full[name] == prompt for name, prompt in part.items())
    assert prompts(MBeir(root, seed=1)) != full
    assert len(set(part.values())) == 4


def test_the_union_is_all_local_pools(root: Path) -> None:
    data = MBeir(root)
    union = [item.id for item in data.pool()]
    local = [name for number in range(16) for name in data.local_pool(number) or ()]
    assert len(union) == len(set(union)) and set(union) == set(local)
    one = MBeir(root, tasks=("webqa_task1",))
    assert {i.id for i in one.pool()} == set(one.local_pool(0) or ())


def test_positives_come_from_the_qrels(root: Path, tmp_path: Path) -> None:
    copy = write_synthetic_mbeir(tmp_path, rows=("mscoco_task0",))
    path = copy / "qrels" / "test" / "mbeir_mscoco_task0_test_qrels.txt"
    first = next(MBeir(copy).queries())
    path.write_text(f"{first.id} 0 9:3 1 0\n{first.id} 0 9:4 0 0\n", encoding="utf-8")
    assert next(MBeir(copy).queries()).positives == ("9:3",)  # relevance 0 is no positive
    with pytest.raises(GeniusError, match="11 queries have no positive"):
        check_collection(MBeir(copy))
    path.write_text("9:1 0\n", encoding="utf-8")
    with pytest.raises(GeniusError, match="1 lines are not"):
        list(MBeir(copy).queries())


def test_missing_things_fail_with_counts_and_examples(tmp_path: Path) -> None:
    root = write_synthetic_mbeir(tmp_path, rows=("mscoco_task0", "webqa_task1"))
    pictures = sorted((root / "mbeir_images").rglob("*.jpg"))
    for path in pictures[:2]:
        path.unlink()
    with pytest.raises(GeniusError, match=r"2 candidates' images are missing \(e\.g\. 9:\d+: .*jpg"):
        check_collection(MBeir(root))
    pool = root / "cand_pool" / "local" / "mbeir_webqa_task1_cand_pool.jsonl"
    lines = pool.read_text().splitlines()
    pool.write_text("\n".join(lines[:-20]) + "\n")
    with pytest.raises(GeniusError, match="have no positive in their task's own pool"):
        check_collection(MBeir(root), images=False)
    pool.unlink()
    with pytest.raises(GeniusError, match="is missing"):
        MBeir(root)
    with pytest.raises(GeniusError, match="no M-BEIR queries"):
        MBeir(tmp_path / "nowhere")
    with pytest.raises(GeniusError, match="no dataset at"):
        open_collection(tmp_path / "nowhere")


def test_foreign_rows_fail_loudly(tmp_path: Path) -> None:
    root = write_synthetic_mbeir(tmp_path, rows=("nights_task4",))
    pool = root / "cand_pool" / "local" / "mbeir_nights_task4_cand_pool.jsonl"
    (root / "cand_pool" / "global" / "mbeir_union_test_cand_pool.jsonl").unlink()
    pool.write_text(json.dumps({"did": "4:1", "modality": "image", "img_path": None, "txt": "x"}) + "\n")
    with pytest.raises(GeniusError, match="candidate 4:1 is declared as image"):
        list(MBeir(root).pool())
    pool.write_text('{"did": "4:1"')
    with pytest.raises(GeniusError, match=":1 is not JSON"):
        list(MBeir(root).pool())
    with pytest.raises(GeniusError, match="no test queries for oven_task6"):
        MBeir(root, tasks=("oven_task6",))


def test_task_names_and_order() -> None:
    task = task_of("icons_task8")
    assert (task.query, task.target, task.main) == (Modality.PAIR, Modality.PAIR, 5)
    assert sorted(["icons_task7", "cirr_task7", "icons_task0"], key=order_of) == ["cirr_task7", "icons_task0", "icons_task7"]
    with pytest.raises(GeniusError, match="not an M-BEIR task name"):
        task_of("mscoco")


def test_published_instruction_file() -> None:
    if not SHARED_PROMPTS.is_file():
        pytest.skip("M-BEIR's instruction file is not here")
    prompts = read_instructions(SHARED_PROMPTS)
    assert len(prompts) == 16 and prompts[9, Modality.TEXT, Modality.IMAGE][0].startswith("Find me an everyday image")
