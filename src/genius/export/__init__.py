"""What leaves GENIUS for other programs: the parts of a model as ONNX files, small and without loss; and a collection as a folder
that a browser searches alone (`web`).

Parts are traced from the model's own modules: the two towers of the encoder, the fusion, what codes stand for, and the decoder
(`genius.search.decoder`): what it remembers of a query, and a graph for each level, which reads the codes so far of some beams
and gives the log-probability of every next one. These graphs share their weights, which lie once in `decoder.bin` (ONNX's
external data). A weight whose rows are whole multiples of one number (`genius.weight_files`) is stored as int8 with that number,
one that half precision holds exactly as half precision, any other as it is: an exported model computes what the model computes.
"""

from __future__ import annotations

import hashlib
import logging
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from genius.encoders.base import Encoder
from genius.encoders.inputs import Pixels
from genius.encoders.mini import MiniEncoder
from genius.encoders.transformers_dual import DualEncoder
from genius.errors import GeniusError
from genius.features import Features
from genius.files import write_whole
from genius.model.generator import Generator, KeysValues
from genius.model.genius import Genius
from genius.model.quantizer import ResidualQuantizer, score_fusion
from genius.search.decoder import Decoder, DecoderState
from genius.weight_arrays import SCALE, unpack
from genius.weight_files import SMALL, pack

OPSET = 20
LONGEST = 4096  # of a size that may differ from call to call
SHARED = "decoder.bin"  # weights of the decoder's graphs
SHARED_FROM = 256  # bytes of a weight that lies there
ALIGNED = 64  # bytes that each begins at a multiple of


@dataclass(frozen=True, slots=True)
class Graph:
    """A module, an example of its inputs, and their names; sizes named in `free` may differ from call to call."""

    module: nn.Module
    inputs: dict[str, Tensor]
    outputs: tuple[str, ...]
    free: dict[str, dict[int, str]]  # input -> axis -> name of the size


def graphs(model: Genius) -> dict[str, Graph]:
    """Every part of a model by the name of its file.

    Args:
        model: The model.
    """
    out: dict[str, Graph] = {}
    if model.encoder is not None:
        out |= towers(model.encoder)
    config = model.config.generator
    vector = torch.zeros(1, model.config.width)
    part, outputs = fuse(model)
    out["fusion"] = Graph(part, {"image": vector, "text": vector + 1}, outputs, {})
    codes = torch.zeros(2, config.levels, dtype=torch.long)
    part = Part(model.quantizer.decode_prefix, quantizer=model.quantizer)
    out["reconstruct"] = Graph(part, {"codes": codes}, ("vector",), {"codes": {0: "items"}})
    out["start"] = Graph(start(model.generator), {"z": vector}, ("cross",), {})
    for level in range(config.levels):
        out[f"step_{level}"] = _step_graph(model, level)
    return out


def _step_graph(model: Genius, level: int) -> Graph:
    config = model.config.generator
    inputs = {
        "z": torch.zeros(1, config.width),
        "cross": torch.zeros(config.layers, 2, config.heads, config.prefix_tokens, config.d_kv),
    }
    free = {}
    if level:
        beams = 3
        inputs["codes"] = torch.zeros(beams, level, dtype=torch.long)
        inputs["past"] = torch.zeros(config.layers, 2, beams, config.heads, level, config.d_kv)
        free = {"codes": {0: "beams"}, "past": {2: "beams"}}
    return Graph(decoder_step(model.generator, model.quantizer), inputs, ("log_p", "past_after"), free)


def towers(encoder: Encoder) -> dict[str, Graph]:
    """The two towers of an encoder; one line for a family whose towers are not known here.

    Args:
        encoder: The encoder.
    """
    image: nn.Module
    text: nn.Module
    if isinstance(encoder, MiniEncoder):
        image = encoder.image
        text = encoder.text
        length = encoder.config.text_length
    elif isinstance(encoder, DualEncoder) and isinstance(encoder.pixels, Pixels):
        image = Part(encoder._pool_images, encoder=encoder)
        text = Part(encoder._pool_texts, encoder=encoder)
        length = encoder._length()
    else:
        raise GeniusError(
            f"the towers of a {type(encoder).__name__} cannot be exported: "
            "only those of CLIP, SigLIP of fixed size and bundled:mini"
        )
    side = pixels_of(encoder).size
    ids = torch.ones(2, min(5, length), dtype=torch.long)
    both = {"ids": {0: "texts", 1: "tokens"}, "mask": {0: "texts", 1: "tokens"}}
    return {
        "text": Graph(text, {"ids": ids, "mask": torch.ones_like(ids)}, ("vector",), both),
        "image": Graph(image, {"pixels": torch.zeros(2, 3, side, side)}, ("vector",), {"pixels": {0: "pictures"}}),
    }


def pixels_of(encoder: Any) -> Pixels:
    """How an encoder makes its input of an image.

    Args:
        encoder: An encoder whose pixels are prepared outside of its graph.
    """
    pixels: Pixels = encoder.pixels
    return pixels


class Part(nn.Module):
    """A function of tensors and the modules that it computes with, as one module to trace.

    Args:
        compute: The function.
        modules: What it computes with; names of weights begin with the names given here.
    """

    def __init__(self, compute: Callable[..., Any], **modules: nn.Module) -> None:
        super().__init__()
        self.compute = compute
        for name, module in modules.items():
            self.add_module(name, module)

    def forward(self, *inputs: Tensor) -> Any:
        """What the function makes of them.

        Args:
            inputs: Of the function.
        """
        return self.compute(*inputs)


def fuse(model: Genius) -> tuple[Part, tuple[str, ...]]:
    """Two vectors (n, D), zeros where there is none -> z, and the vector to rank by where that is another one.

    Args:
        model: The model.

    Returns:
        The part, and the names of its outputs.
    """
    dense = model.config.rerank_embedding != "fused"

    def compute(image: Tensor, text: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        present = torch.ones_like(image[:, 0], dtype=torch.bool)
        features = Features(image, text, present, present)
        z: Tensor = model.fusion(features)
        if dense:
            return z, score_fusion(features)
        return z

    return Part(compute, fusion=model.fusion), ("z", "dense") if dense else ("z",)


def start(generator: Generator) -> Part:
    """z (1, D) -> keys and values of every layer's attention to the query: (layers, 2, heads, prefix, d_kv).

    Args:
        generator: The decoder.
    """

    def compute(z: Tensor) -> Tensor:
        state = Decoder(generator).start(z)
        return torch.stack([torch.cat([memory.keys, memory.values]) for memory in state.cross])

    return Part(compute, generator=generator)


def decoder_step(generator: Generator, quantizer: ResidualQuantizer) -> Part:
    """One step of the decoder for n beams of one query and one modality: log p of every next code.

    z (1, D); cross: from `start`; codes (n, level): the codes so far; past (layers, 2, n, heads, level, d_kv): keys and values.
    At level 0 there is one beam, and neither codes nor past. -> log_p (n, K of the level), and past with one more place.

    Args:
        generator: The decoder.
        quantizer: Holds the codebooks of a tied head, which so have names.
    """

    def compute(z: Tensor, cross: Tensor, codes: Tensor | None = None, past: Tensor | None = None) -> tuple[Tensor, Tensor]:
        if codes is None:
            codes = torch.empty(1, 0, dtype=torch.long)
        read: list[KeysValues] = []
        if past is not None:
            read = [KeysValues(layer[0], layer[1]) for layer in past]
        state = DecoderState(z, [KeysValues(layer[:1], layer[1:]) for layer in cross], read)
        log_p, state = Decoder(generator, one_modality=True).next_log_probs(codes[None], state)
        return log_p[0], torch.stack([torch.stack([memory.keys, memory.values]) for memory in state.past])

    return Part(compute, generator=generator, quantizer=quantizer)


def import_onnx() -> Any:
    """The onnx module.

    Raises:
        GeniusError: If what graphs are written with is not installed.
    """
    try:
        import onnx
        import onnxscript  # noqa: F401 - torch's exporter imports it
    except ImportError:
        raise GeniusError("ONNX files need onnx and onnxscript: pip install 'genius-search[export]'") from None
    return onnx


def export_onnx(model: Genius, directory: Path) -> dict[str, int]:
    """Write every part of a model as an ONNX file.

    Args:
        model: The model.
        directory: The folder.

    Returns:
        File name -> its size in bytes.
    """
    onnx = import_onnx()
    directory.mkdir(parents=True, exist_ok=True)
    sizes: dict[str, int] = {}
    weights = SharedWeights()
    for name, graph in graphs(model).items():
        body = _smaller(trace_graph(graph), onnx)
        if name in ("reconstruct", "start") or name.startswith("step_"):
            weights.take(body)
        path = directory / f"{name}.onnx"
        content = body.SerializeToString()
        write_whole(path, lambda target, content=content: target.write_bytes(content))  # type: ignore[misc]
        sizes[path.name] = len(content)
    path = directory / SHARED
    write_whole(path, lambda target: target.write_bytes(weights.body))
    sizes[path.name] = len(weights.body)
    return sizes


class SharedWeights:
    """The weights of several graphs in one file, each once (ONNX's external data)."""

    def __init__(self) -> None:
        self.body = bytearray()
        self._places: dict[tuple[int, bytes], int] = {}  # type and content -> offset

    def take(self, model: Any) -> None:
        """Move the weights of an ONNX model of at least `SHARED_FROM` bytes out of it.

        Args:
            model: Changed in place.
        """
        from onnx.external_data_helper import set_external_data

        for tensor in model.graph.initializer:
            raw = bytes(tensor.raw_data)
            if len(raw) < SHARED_FROM:
                continue
            key = (tensor.data_type, hashlib.sha256(raw).digest())
            if key not in self._places:
                self.body += bytes(-len(self.body) % ALIGNED)
                self._places[key] = len(self.body)
                self.body += raw
            set_external_data(tensor, SHARED, self._places[key], len(raw))
            tensor.ClearField("raw_data")


def trace_graph(graph: Graph, optimize: bool = True) -> Any:
    """The ONNX model of one part.

    Args:
        graph: The part.
        optimize: Fold constants and fuse nodes; False: every weight keeps its name, shape and value.
    """
    free: dict[str, dict[int, Any]] = {}
    dims: dict[str, Any] = {}
    for name in graph.inputs:
        axes = graph.free.get(name, {})
        free[name] = {axis: dims.setdefault(size, torch.export.Dim(size, min=1, max=LONGEST)) for axis, size in axes.items()}
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    logging.getLogger("torch.onnx._internal.exporter._registration").setLevel(logging.ERROR)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            graph.module.eval(),
            tuple(graph.inputs.values()),
            dynamo=True,
            verbose=False,
            optimize=optimize,
            opset_version=OPSET,
            input_names=list(graph.inputs),
            output_names=list(graph.outputs),
            dynamic_shapes=(tuple(free.values()),) if isinstance(graph.module, Part) else tuple(free.values()),
        )
    assert program is not None
    body = program.model_proto
    for given in body.graph.input:  # a size that became a constant on the way would only be noticed by whoever runs the file
        sizes = given.type.tensor_type.shape.dim
        assert all(sizes[axis].dim_param for axis in graph.free.get(given.name, {})), f"{given.name} has a fixed size"
    return body


def _smaller(body: Any, onnx: Any) -> Any:
    """The same model with its weights as int8 or half precision wherever that loses nothing."""
    graph = body.graph
    before = []
    for tensor in list(graph.initializer):
        if tensor.data_type != onnx.TensorProto.FLOAT:
            continue
        value = onnx.numpy_helper.to_array(tensor)
        if value.size < SMALL:
            continue
        quantized = _int8(value)
        if quantized is None and not np.array_equal(value.astype(np.float16).astype(np.float32), value):
            continue
        graph.initializer.remove(tensor)
        name = tensor.name
        if quantized is None:
            graph.initializer.append(onnx.numpy_helper.from_array(value.astype(np.float16), name + ".half"))
            before.append(onnx.helper.make_node("Cast", [name + ".half"], [name], to=onnx.TensorProto.FLOAT))
            continue
        whole, scale = quantized
        graph.initializer.append(onnx.numpy_helper.from_array(whole, name + ".int8"))
        graph.initializer.append(onnx.numpy_helper.from_array(scale, name + SCALE))
        restored = name
        if whole.shape != value.shape:
            restored = name + ".rows"
        # Cast and Mul: runtimes replace a DequantizeLinear before a product by an integer product, which is another result
        before.append(onnx.helper.make_node("Cast", [name + ".int8"], [name + ".whole"], to=onnx.TensorProto.FLOAT))
        before.append(onnx.helper.make_node("Mul", [name + ".whole", name + SCALE], [restored]))
        if restored != name:
            graph.initializer.append(onnx.numpy_helper.from_array(np.array(value.shape, np.int64), name + ".shape"))
            before.append(onnx.helper.make_node("Reshape", [restored, name + ".shape"], [name]))
    nodes = list(graph.node)
    del graph.node[:]
    graph.node.extend([*before, *nodes])
    body = without_metadata(body)
    onnx.checker.check_model(body)
    return body


def without_metadata(body: Any) -> Any:
    """The model without shapes between nodes and without traces of where in Python each came from: most of its bytes.

    Args:
        body: An ONNX model.
    """
    graph = body.graph
    del graph.value_info[:]
    for part in (*graph.node, *graph.input, *graph.output, *graph.initializer):
        part.ClearField("metadata_props")
        part.ClearField("doc_string")
    return body


def _int8(value: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]] | None:
    """Whole numbers and the scales of their rows or columns, if they give `value` exactly: tracing may turn a matrix over."""
    value = np.array(value)  # a copy: the file's own bytes are read-only
    for axis, rows in ((0, value), (value.ndim - 1, np.moveaxis(value, -1, 0)), (0, value.reshape(-1, value.shape[-1]))):
        matrix = torch.from_numpy(np.ascontiguousarray(rows))
        packed = pack({"w": matrix})
        if "w" + SCALE in packed and torch.equal(unpack(packed)["w"], matrix):
            whole = packed["w"].numpy()
            scale = packed["w" + SCALE].float().numpy()
            if axis:
                return np.ascontiguousarray(np.moveaxis(whole, 0, -1)), scale
            return whole, scale.reshape(-1, *(1,) * (whole.ndim - 1))
    return None
