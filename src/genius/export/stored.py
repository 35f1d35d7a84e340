"""Stores graphs in a model's folder, which then embeds queries and items without torch (`genius.encoders.graphs`).

A graph is traced from the model's own modules and holds no weights: each initializer is a range of bytes of the folder's own
safetensors file (external data of ONNX). Weights that are stored as int8 or half precision are converted by nodes of the graph,
in the arithmetic of `genius.weight_files.unpack`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from genius.encoders import load_encoder, resolve
from genius.encoders.graphs import TOKENIZER, encoder_settings, write_graphs_json
from genius.encoders.mini import WEIGHTS as ENCODER_WEIGHTS
from genius.encoders.mini import MiniEncoder
from genius.errors import GeniusError
from genius.export import Graph, Part, fuse, import_onnx, towers, trace_graph, without_metadata
from genius.files import write_whole
from genius.model.config import first_name
from genius.model.genius import ENCODER, WEIGHTS, Genius
from genius.search.decoder import Decoder
from genius.weight_arrays import SCALE, unpack
from genius.weight_files import read_shapes, read_tensors

ROWS = "rows"  # name of the size that differs from call to call
LARGEST_OWN = 1 << 16  # numbers of a weight that a graph may hold itself, where the file has it in another form
DTYPES = {"F32": "FLOAT", "F16": "FLOAT16", "I8": "INT8"}  # safetensors -> ONNX


def store_graphs(source: str | Path) -> dict[str, int]:
    """Write the graphs of a model into its folder and into its encoder's.

    Args:
        source: The model, as for `Genius.from_pretrained`; a folder that can be written to.

    Returns:
        File name, relative to the folder -> bytes.

    Raises:
        GeniusError: If the encoder's family has no graphs, or the export extra is missing.
    """
    directory = resolve(source)
    model = Genius.from_pretrained(source)
    sizes: dict[str, int] = {}
    if model.config.encoder is None and model.encoder is not None:
        sizes |= {f"{ENCODER}/{name}": size for name, size in store_encoder_graphs(directory / ENCODER).items()}
    sizes |= _store(directory, WEIGHTS, {name: (graph, "") for name, graph in _model_graphs(model).items()})
    settings: dict[str, str | None] = {"encoder": None}
    if model.encoder is not None:
        settings["encoder"] = model.encoder.fingerprint()
    write_graphs_json(directory, [WEIGHTS, *(name for name in sizes if "/" not in name)], model.fingerprint(), settings)
    return sizes


def _model_graphs(model: Genius) -> dict[str, Graph]:
    vector = torch.zeros(2, model.config.width)
    part, outputs = fuse(model)
    free = {"image": {0: ROWS}, "text": {0: ROWS}}
    graphs = {"fusion": Graph(part, {"image": vector, "text": vector + 1}, outputs, free)}

    def modality_log_probs(z: Tensor) -> Tensor:
        """The decoder's first step: (N, D) -> (N, 3)."""
        decoder = Decoder(model.generator)
        before_first = z.new_empty((z.shape[0], 1, 0), dtype=torch.long)
        log_probs, _ = decoder.next_log_probs(before_first, decoder.start(z))
        return log_probs[:, 0]

    if model.config.quantizer.labelled:
        part = Part(modality_log_probs, generator=model.generator)
        graphs["modality"] = Graph(part, {"z": vector}, ("log_probs",), {"z": {0: ROWS}})
    return graphs


def store_encoder_graphs(directory: Path) -> dict[str, int]:
    """Write the graphs of both towers into an encoder's folder.

    Args:
        directory: Of the encoder.

    Returns:
        File name -> bytes.

    Raises:
        GeniusError: If it is not an encoder of the family of `bundled:mini`, or the export extra is missing.
    """
    encoder = load_encoder(f"local-dir:{directory}")
    if not isinstance(encoder, MiniEncoder):
        raise GeniusError(f"graphs can be stored only for encoders like bundled:mini; a {type(encoder).__name__} needs torch")
    sizes = _store(directory, ENCODER_WEIGHTS, {name: (graph, f"{name}.") for name, graph in towers(encoder).items()})
    settings = encoder_settings(encoder.width, encoder.tokens.length, encoder.pixels)
    write_graphs_json(directory, [ENCODER_WEIGHTS, TOKENIZER, *sizes], encoder.fingerprint(), settings)
    return sizes


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a tensor lies in a safetensors file."""

    dtype: str
    shape: tuple[int, ...]
    offset: int
    length: int


class _WeightFile:
    """A safetensors file: its float32 weights, and where the bytes of each tensor are."""

    def __init__(self, path: Path) -> None:
        self.name = path.name
        self.weights = unpack(read_tensors(path))
        with path.open("rb") as file:
            header = int.from_bytes(file.read(8), "little")
            entries = json.loads(file.read(header))
        self.places = {
            name: _Place(entry["dtype"], tuple(entry["shape"]), 8 + header + entry["data_offsets"][0], _length(entry))
            for name, entry in entries.items()
            if name != "__metadata__"
        }

    def name_of(self, name: str, value: np.ndarray[Any, Any]) -> str | None:
        """The tensor of the file that is a weight of this name and value; None if there is none."""
        for candidate in (name, first_name(name)):
            stored = self.weights.get(candidate)
            if stored is not None and self.places[candidate].dtype in DTYPES and np.array_equal(stored.numpy(), value):
                return candidate
        return None


def _length(entry: dict[str, Any]) -> int:
    begin, end = entry["data_offsets"]
    return int(end - begin)


def _store(directory: Path, weights: str, graphs: dict[str, tuple[Graph, str]]) -> dict[str, int]:
    """Trace graphs, give each the prefix of its weights' names in the file, and write them: file name -> bytes."""
    onnx = import_onnx()
    read_shapes(directory / weights)  # checks the header
    file = _WeightFile(directory / weights)
    sizes = {}
    for name, (graph, prefix) in graphs.items():
        body = _refer(trace_graph(graph, optimize=False), file, prefix, onnx)
        content = body.SerializeToString()
        path = directory / f"{name}.onnx"
        write_whole(path, lambda target, content=content: target.write_bytes(content))  # type: ignore[misc]
        sizes[path.name] = len(content)
    return sizes


def _refer(body: Any, file: _WeightFile, prefix: str, onnx: Any) -> Any:
    """The model with its initializers as references into the weight file."""
    graph = body.graph
    conversions: list[Any] = []
    for tensor in list(graph.initializer):
        value = onnx.numpy_helper.to_array(tensor)
        stored = file.name_of(prefix + tensor.name, value)
        if stored is None:
            if value.size > LARGEST_OWN:
                raise GeniusError(f"the weight {prefix + tensor.name} in {file.name} differs from the model's")
            continue
        graph.initializer.remove(tensor)
        conversions += _references(tensor.name, stored, file, graph, onnx)
    nodes = list(graph.node)
    del graph.node[:]
    graph.node.extend([*conversions, *nodes])
    return without_metadata(body)


def _references(name: str, stored: str, file: _WeightFile, graph: Any, onnx: Any) -> list[Any]:
    """Add references to a stored tensor; the nodes that make the float32 weight `name` of it."""
    place = file.places[stored]
    if place.dtype == "F32":
        graph.initializer.append(_external(name, place, file.name, onnx))
        return []
    graph.initializer.append(_external(f"{name}.stored", place, file.name, onnx))
    to_float = onnx.TensorProto.FLOAT
    if place.dtype == "F16":
        return [onnx.helper.make_node("Cast", [f"{name}.stored"], [name], to=to_float)]
    scale = file.places[stored + SCALE]
    graph.initializer.append(_external(f"{name}.scale", scale, file.name, onnx))
    per_row = np.array([-1, *(1,) * (len(place.shape) - 1)], np.int64)
    graph.initializer.append(onnx.numpy_helper.from_array(per_row, f"{name}.per_row"))
    return [
        onnx.helper.make_node("Cast", [f"{name}.stored"], [f"{name}.whole"], to=to_float),
        onnx.helper.make_node("Cast", [f"{name}.scale"], [f"{name}.scale32"], to=to_float),
        onnx.helper.make_node("Reshape", [f"{name}.scale32", f"{name}.per_row"], [f"{name}.scales"]),
        onnx.helper.make_node("Mul", [f"{name}.whole", f"{name}.scales"], [name]),
    ]


def _external(name: str, place: _Place, location: str, onnx: Any) -> Any:
    tensor = onnx.TensorProto(name=name, data_type=getattr(onnx.TensorProto, DTYPES[place.dtype]), dims=place.shape)
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", place.offset), ("length", place.length)):
        tensor.external_data.add(key=key, value=str(value))
    return tensor
