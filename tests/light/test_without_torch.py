"""An installation without torch: a real process in which importing torch fails indexes, searches, filters, adds and deletes.

The graphs that it runs are compared with the torch model that they were traced from.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from genius import Genius, GeniusError, Index, Item, Query
from genius.encoders import bundled_names
from genius.encoders.graphs import GraphEncoder, Graphs
from genius.model.graphs import GraphModel, load_model
from genius.types import Modality

pytestmark = pytest.mark.skipif("mini" not in bundled_names(), reason="the bundled weights are not in this checkout")

BLOCKED = """
import sys

class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError("torch is not installed", name="torch")

sys.meta_path.insert(0, NoTorch())
"""

PROGRAM = """
import json
from pathlib import Path
from PIL import Image
from genius import GeniusError, Index, Item

folder = Path(sys.argv[1])
red = Image.open(folder / "red.png")
index = Index(folder / "a.genius", "bundled:mini")
index.add([Item("red", image=folder / "red.png", metadata={"price": 1})])
index.add([Item("blue", image=folder / "blue.png", metadata={"price": 2})])
index.add([Item("bicycle", text="a red bicycle", metadata={"price": 3}), Item("pair", image=folder / "blue.png", text="the sea")])
out = {
    "model": type(index.model).__name__,
    "text": [[hit.id, hit.score, hit.codes] for hit in index.search("a red bicycle", target="any")],
    "image": [[hit.id, hit.score, hit.codes] for hit in index.search(image=red, target="image")],
    "both": [[hit.id, hit.score, hit.codes] for hit in index.search("more blue", image=red, target="image")],
    "negative": [[hit.id, hit.score, hit.codes] for hit in index.search("a bicycle", minus="the sea", target="text")],
    "where": [[hit.id, hit.score, hit.codes] for hit in index.search("a red bicycle", where="price < 3")],
}
try:
    index.search("a bicycle", beams=5, rerank=0)
except GeniusError as error:
    out["beam"] = str(error)
index.delete("bicycle")
index.upsert([Item("blue", text="now a text")])
out["after"] = sorted(hit.id for hit in index.search("a red bicycle", target="any"))
index.close()
codes_only = Index(folder / "codes.genius", "bundled:mini", vectors=False)
codes_only.add([Item("bicycle", text="a red bicycle"), Item("sea", text="the sea"), Item("boat", text="a boat")])
out["codes"] = [[hit.id, hit.score, hit.codes] for hit in codes_only.search("a red bicycle", target="text")]
out["torch"] = "torch" in sys.modules
print(json.dumps(out))
"""


def run_without_torch(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", BLOCKED + program, *arguments], capture_output=True, text=True, timeout=240)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("light")
    for colour in ("red", "blue"):
        Image.new("RGB", (80, 64), colour).save(root / f"{colour}.png")
    return root


def test_a_process_without_torch_answers_as_one_with_torch(folder: Path) -> None:
    done = run_without_torch(PROGRAM, str(folder))
    assert done.returncode == 0, done.stderr
    out = json.loads(done.stdout.splitlines()[-1])
    assert out["model"] == "GraphModel" and out["torch"] is False
    assert out["beam"] == "a beam search needs torch: pip install 'genius-search[torch]'"
    assert out["after"] == ["blue", "pair", "red"]
    red = Image.open(folder / "red.png")
    with Index(folder / "b.genius", Genius.from_pretrained("bundled:mini")) as index:
        index.add(
            [
                Item("red", image=folder / "red.png", metadata={"price": 1}),
                Item("blue", image=folder / "blue.png", metadata={"price": 2}),
                Item("bicycle", text="a red bicycle", metadata={"price": 3}),
                Item("pair", image=folder / "blue.png", text="the sea"),
            ]
        )
        expected = {
            "text": index.search("a red bicycle", target="any"),
            "image": index.search(image=red, target="image"),
            "both": index.search("more blue", image=red, target="image"),
            "negative": index.search("a bicycle", minus="the sea", target="text"),
            "where": index.search("a red bicycle", where="price < 3"),
        }
    with Index(folder / "d.genius", Genius.from_pretrained("bundled:mini"), vectors=False) as index:
        index.add([Item("bicycle", text="a red bicycle"), Item("sea", text="the sea"), Item("boat", text="a boat")])
        expected["codes"] = index.search("a red bicycle", target="text")
    for name, hits in expected.items():
        assert [[hit.id, list(hit.codes)] for hit in hits] == [[item_id, codes] for item_id, _, codes in out[name]], name
        np.testing.assert_allclose([hit.score for hit in hits], [score for _, score, _ in out[name]], atol=2e-3)


def test_the_commands_of_the_readme_need_no_torch(folder: Path, tmp_path: Path) -> None:
    """A wheel without extras: `genius index` asked for a torch device."""
    call = "from genius.cli import main; main()"
    made = run_without_torch(call, "index", str(folder / "red.png"), str(folder / "blue.png"), "-o", str(tmp_path / "d.genius"))
    assert made.returncode == 0 and "2 items" in made.stdout, made.stderr
    found = run_without_torch(call, "search", str(tmp_path / "d.genius"), "red", "--json")
    assert found.returncode == 0 and len(json.loads(found.stdout)["hits"]) == 2, found.stderr


def test_an_index_of_the_torch_model_is_searched_without_it(folder: Path) -> None:
    with Index(folder / "c.genius", Genius.from_pretrained("bundled:mini")) as index:
        index.add([Item("1", text="a red bicycle"), Item("2", text="a boat")])
    call = "from genius.cli import main; sys.argv[1:1] = ['search']; main()"
    done = run_without_torch(call, str(folder / "c.genius"), "a bicycle", "--json")
    assert done.returncode == 0, done.stderr
    assert [hit["id"] for hit in json.loads(done.stdout)["hits"]] == ["1", "2"]


@pytest.mark.parametrize(
    ("arguments", "what"),
    [(("explain", "x.genius", "a"), "no index at"), (("train", "x"), ""), (("export", "onnx", "bundled:mini", "-o", "x"), "")],
)
def test_what_needs_torch_says_so_in_one_line(tmp_path: Path, arguments: tuple[str, ...], what: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", BLOCKED + "from genius.cli import main; main()", *arguments],
        capture_output=True,
        text=True,
        timeout=240,
        cwd=tmp_path,
    )
    line = done.stderr.strip()
    assert done.returncode == 2 and "\n" not in line, line
    assert what in line if what else "genius-search[" in line


def test_graphs_compute_what_the_modules_compute() -> None:
    model, graphs = Genius.from_pretrained("bundled:mini"), GraphModel("bundled:mini")
    assert graphs.fingerprint() == model.fingerprint() and graphs.encoder is not None
    pictures = [Image.new("RGB", (40, 90), colour) for colour in ("red", "green", "white")]
    queries = [Query("a dog"), Query("two birds on a wire", pictures[0], target=Modality.IMAGE), Query(image=pictures[1])]
    expected, got = model.embed_queries(queries), graphs.embed_queries(queries)
    np.testing.assert_allclose(got.z, expected.z.numpy(), atol=2e-6)
    items = [Item(str(i), image=picture) for i, picture in enumerate(pictures)] + [Item("t", text="a boat, and the sea")]
    embedded = graphs.embed_items(items)
    z = model.embed_items(items).z
    codes = graphs.assign(embedded.z, embedded.modality)
    assert codes.tolist() == model.assign(z, embedded.modality).tolist()
    np.testing.assert_allclose(graphs.reconstruct(codes), model.reconstruct(codes).numpy(), atol=1e-5)


def test_graphs_of_other_weights_are_refused(tmp_path: Path) -> None:
    source = Path(load_model("bundled:mini", graphs=True).directory)  # type: ignore[attr-defined]
    shutil.copytree(source, tmp_path / "m")
    weights = tmp_path / "m" / "model.safetensors"
    body = bytearray(weights.read_bytes())
    body[-1] ^= 1
    weights.write_bytes(body)
    with pytest.raises(GeniusError, match="damaged or was exchanged"):
        GraphModel(tmp_path / "m")
    (tmp_path / "m" / "encoder" / "graphs.json").write_text('{"format": 1, "settings": {}, "sha256": {"../x": "0"}}')
    with pytest.raises(GeniusError, match="no file next to it"):
        GraphEncoder.load(tmp_path / "m" / "encoder")
    (tmp_path / "m" / "graphs.json").unlink()
    with pytest.raises(GeniusError, match="holds no graphs"):
        Graphs(tmp_path / "m")


def test_saving_a_model_removes_graphs_of_other_weights(tmp_path: Path) -> None:
    model = Genius.from_pretrained("bundled:mini")
    for place in (tmp_path, tmp_path / "encoder"):
        place.mkdir(exist_ok=True)
        (place / "graphs.json").write_text("{}")
    model.save_pretrained(tmp_path)
    assert not (tmp_path / "graphs.json").exists() and not (tmp_path / "encoder" / "graphs.json").exists()
    assert type(load_model(tmp_path, graphs=True)) is Genius


VECTORS = """
import json
import numpy as np
from genius import GeniusError, Index, Item

index = Index.create(sys.argv[1], dim=6)
vectors = np.random.default_rng(0).normal(size=(40, 6))
index.add(Item(str(i), vector=row, metadata={"n": i}) for i, row in enumerate(vectors))
index.upsert([Item("1", vector={"image": vectors[2], "text": vectors[3]}, metadata={"n": 100})])
index.delete("39")
out = {
    "model": type(index.model).__name__,
    "hits": [[hit.id, hit.score, hit.codes] for hit in index.search(vector=vectors[5], target="any")],
    "where": [hit.id for hit in index.search(vector=vectors[5], target="any", where="n < 3")],
    "kept": len(Index.open(sys.argv[1])),
    "fingerprint": index.model.fingerprint(),
}
try:
    index.search("a text")
except GeniusError as error:
    out["text"] = str(error)
out["torch"] = "torch" in sys.modules
print(json.dumps(out))
"""


def test_an_index_of_vectors_is_made_and_searched_without_torch(tmp_path: Path) -> None:
    done = run_without_torch(VECTORS, str(tmp_path / "own.genius"))
    assert done.returncode == 0, done.stderr
    out = json.loads(done.stdout)
    assert (out["model"], out["torch"], out["kept"]) == ("GraphModel", False, 39)
    assert "holds vectors only and has no encoder" in out["text"]
    vectors = np.random.default_rng(0).normal(size=(40, 6))
    # the torch model of the same folder is the same model, and answers the same
    index = Index.open(tmp_path / "own.genius")
    assert isinstance(index.model, Genius) and index.model.fingerprint() == out["fingerprint"]
    hits = index.search(vector=vectors[5], target="any")
    assert [hit.id for hit in hits] == [found[0] for found in out["hits"]] and out["hits"][0][0] == "5"
    assert [hit.score for hit in hits] == pytest.approx([found[1] for found in out["hits"]], abs=1e-5)
    assert [list(hit.codes) for hit in hits] == [found[2] for found in out["hits"]]
    assert [hit.id for hit in index.search(vector=vectors[5], target="any", where="n < 3")] == out["where"]
    units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    units[1] = (units[2] + units[3]) / np.linalg.norm(units[2] + units[3])
    truth = sorted(range(39), key=lambda row: -float(units[row] @ units[5]))[:10]
    assert [hit.id for hit in hits] == [str(row) for row in truth]


def test_a_fitted_index_of_vectors_is_searched_without_torch(tmp_path: Path) -> None:
    from genius.fit import FitConfig
    from genius.fit.folder import refit

    vectors = np.random.default_rng(1).normal(size=(60, 6))
    index = Index.create(tmp_path / "own.genius", dim=6)
    index.add(Item(str(i), vector=row) for i, row in enumerate(vectors))
    refit(tmp_path / "own.genius", FitConfig(steps=1, iterations=1))
    model = load_model(tmp_path / "own.genius" / "model", graphs=True)
    assert isinstance(model, GraphModel) and model.graphs is None
    own = Genius.from_pretrained(tmp_path / "own.genius" / "model")
    assert model.fingerprint() == own.fingerprint()
    with Index.open(tmp_path / "own.genius", model) as light, Index.open(tmp_path / "own.genius") as full:
        wanted = [(hit.id, hit.codes) for hit in full.search(vector=vectors[7])]
        assert [(hit.id, hit.codes) for hit in light.search(vector=vectors[7])] == wanted and wanted[0][0] == "7"
        codes = np.array([codes for _, codes in wanted])
        summed = model.reconstruct(codes)
    torch = pytest.importorskip("torch")
    assert np.allclose(summed, own.quantizer.decode(torch.from_numpy(codes)).numpy(), atol=1e-6)


def test_unfitted_weights_are_those_of_the_torch_modules() -> None:
    from genius.model.unfitted import config_for, unfitted_weights

    for width in (1, 7, 40):
        weights = unfitted_weights(config_for(width), 0)
        wanted = {name: tuple(tensor.shape) for name, tensor in Genius(config_for(width)).network.state_dict().items()}
        assert {name: array.shape for name, array in weights.items()} == wanted
