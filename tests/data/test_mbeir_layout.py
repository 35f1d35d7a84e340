"""M-BEIR's layout: every row is read, pools are kept apart, and what is missing fails loudly with counts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from genius.data.collection import Collection, check_collection, open_collection
from genius.data.mbeir import ROWS, MBeir, order_of, read_instructions, task_of
from genius.data.synthetic import write_synthetic_mbeir
from genius.errors import GeniusError
from genius.types import Modality

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
    pictures = sorted((root / "mbeir_images").rglob("*.png"))
    for path in pictures[:2]:
        path.unlink()
    with pytest.raises(GeniusError, match=r"2 candidates' images are missing \(e\.g\. 9:\d+: .*png"):
        check_collection(MBeir(root))
    pool = root / "cand_pool" / "local" / "mbeir_webqa_task1_cand_pool.jsonl"
    lines = pool.read_text().splitlines()
    pool.write_text("\n".join(lines[:-20]) + "\n")
    with pytest.raises(GeniusError, match="outside their task's pool"):
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
    with pytest.raises(GeniusError, match="candidate 4:1 lacks the image"):
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
