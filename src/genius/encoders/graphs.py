"""Parts of a model as ONNX graphs that compute from the model's own weight files, without torch.

A folder with weights may hold graphs (`NAME.onnx`) that `genius.export.stored` traced from the torch modules. They have no
weights of their own: their initializers are external data of ONNX, ranges of bytes of the safetensors file next to them.
`graphs.json` names the digests of the weights and graphs that belong together, so graphs of other weights are never run, and
the fingerprint of the torch model. `GraphEncoder` is an encoder made of such graphs. Knows numpy and onnxruntime, not torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from genius.config import from_dict
from genius.encoders import GRAPHS
from genius.encoders.inputs import Pixels, Tokens
from genius.errors import GeniusError, said
from genius.files import read_json, write_json
from genius.weight_arrays import check_files, digest_files

FORMAT = 1
TOKENIZER = "tokenizer.json"
MAX_GRAPHS = 1 << 16  # bytes of graphs.json

Floats = NDArray[np.float32]


class Graphs:
    """The graphs of one folder. Files are compared with their digests when it is opened; a graph is loaded when it first runs.

    Args:
        directory: With `graphs.json`.

    Raises:
        GeniusError: If the folder has no graphs, or a file is missing, damaged or exchanged.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        path = directory / GRAPHS
        try:
            body = read_json(path, MAX_GRAPHS)
        except FileNotFoundError:
            raise GeniusError(f"{directory} holds no graphs: genius export graphs makes them") from None
        if not isinstance(body, dict) or body.get("format") != FORMAT or not isinstance(body.get("settings"), dict):
            raise GeniusError(f"{path} does not describe graphs that this version reads: run genius export graphs again")
        self.settings: dict[str, Any] = body["settings"]
        self.fingerprint = str(body.get("fingerprint"))
        check_files(directory, body.get("sha256"), path.name)
        self._sessions: dict[str, Any] = {}

    def run(self, name: str, inputs: Mapping[str, NDArray[Any]]) -> list[Floats]:
        """The outputs of a graph.

        Args:
            name: Of the file, without its suffix.
            inputs: By name.
        """
        if name not in self._sessions:
            self._sessions[name] = open_session(self.directory / f"{name}.onnx")
        outputs: list[Floats] = self._sessions[name].run(None, dict(inputs))
        return outputs


def open_session(path: Path, threads: int = 0, any_device: bool = False) -> Any:
    """An onnxruntime session.

    Args:
        path: The ONNX file.
        threads: That it computes with; 0: its own choice.
        any_device: Use whatever this onnxruntime can compute on, best first; False: the CPU.

    Raises:
        GeniusError: If onnxruntime is missing or cannot read the file.
    """
    try:
        import onnxruntime
    except ImportError:
        raise GeniusError("an ONNX graph needs onnxruntime: pip install genius-search") from None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # idle threads would burn processor time
    providers = ["CPUExecutionProvider"]
    if any_device:
        providers = onnxruntime.get_available_providers()
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=providers)
    except Exception as error:  # onnxruntime raises its own classes
        raise GeniusError(f"cannot load the graph {path}: {said(error)}") from None


def has_graphs(directory: Path) -> bool:
    """Whether a folder holds graphs (of whatever state)."""
    return (directory / GRAPHS).is_file()


def write_graphs_json(directory: Path, names: Sequence[str], fingerprint: str, settings: Mapping[str, Any]) -> None:
    """Write `graphs.json`, last of all files.

    Args:
        directory: Of weights and graphs.
        names: Files that belong together: weights, graphs, tokenizer.
        fingerprint: Of the torch model that was traced.
        settings: What the reader needs besides.
    """
    body = {"format": FORMAT, "fingerprint": fingerprint, "settings": dict(settings), "sha256": digest_files(directory, names)}
    write_json(directory / GRAPHS, body, indent=2)


class GraphEncoder:
    """The encoder protocol, by the graphs `image` and `text`; vectors are numpy arrays.

    Args:
        graphs: Of the encoder's folder.
    """

    without_torch = True

    def __init__(self, graphs: Graphs) -> None:
        self.graphs = graphs
        where = str(graphs.directory / GRAPHS)
        settings = graphs.settings
        try:
            self.width = int(settings["width"])
            self._length = int(settings["length"])
            self.pixels = from_dict(Pixels, settings["pixels"], where)
        except (KeyError, TypeError, ValueError) as error:
            raise GeniusError(f"{where}: the field {error} is missing or invalid") from None

    @classmethod
    def load(cls, directory: Path) -> Self:
        """The encoder of a folder that `genius.export.stored` gave graphs."""
        return cls(Graphs(directory))

    @cached_property
    def tokens(self) -> Tokens:
        return Tokens.load(self.graphs.directory / TOKENIZER, self._length)

    def prepare_image(self, picture: Image.Image) -> Image.Image:
        return self.pixels.prepare(picture)

    def encode_images(self, images: Sequence[Image.Image]) -> Any:
        """RGB images -> (n, width) float32."""
        if not images:
            return np.empty((0, self.width), np.float32)
        return self.graphs.run("image", {"pixels": self.pixels(images, None)})[0]

    def encode_texts(self, texts: Sequence[str]) -> Any:
        """Texts -> (n, width) float32."""
        if not texts:
            return np.empty((0, self.width), np.float32)
        ids, mask = self.tokens(texts)
        return self.graphs.run("text", {"ids": ids, "mask": mask})[0]

    def fingerprint(self) -> str:
        """The torch encoder's."""
        return self.graphs.fingerprint

    def save(self, directory: Path) -> None:
        raise GeniusError("an encoder of stored graphs is not saved: copy its folder")


def encoder_settings(width: int, length: int, pixels: Pixels) -> dict[str, Any]:
    """The settings that `GraphEncoder` reads."""
    return {"width": width, "length": length, "pixels": asdict(pixels)}
