"""The parts of a model as ONNX files, small and without loss.

A weight whose rows are whole multiples of one number (`genius.weight_files`) is stored as int8 with that number, one that half
precision holds exactly as half precision, any other as it is: an exported model computes what the model computes.
"""

from __future__ import annotations

import logging
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch

from genius.errors import GeniusError
from genius.export.graphs import Graph, graphs
from genius.files import write_whole
from genius.model.genius import Genius
from genius.weight_files import SCALE, SMALL, pack, unpack

OPSET = 20
LONGEST = 4096  # of a size that may differ from call to call


def export_onnx(model: Genius, directory: Path) -> dict[str, int]:
    """Write every part of `model` as an ONNX file into `directory`: file name -> bytes."""
    try:
        import onnx
        import onnxscript  # noqa: F401 - what torch writes graphs with
    except ImportError:
        raise GeniusError("ONNX files need onnx and onnxscript: pip install 'genius-search[export]'") from None
    directory.mkdir(parents=True, exist_ok=True)
    sizes: dict[str, int] = {}
    for name, graph in graphs(model).items():
        body = _smaller(trace(graph), onnx)
        path = directory / f"{name}.onnx"
        write_whole(path, lambda target, body=body: onnx.save(body, str(target)))  # type: ignore[misc]
        sizes[path.name] = path.stat().st_size
    return sizes


def trace(graph: Graph) -> Any:
    """The ONNX model of one part."""
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
            opset_version=OPSET,
            input_names=list(graph.inputs),
            output_names=list(graph.outputs),
            dynamic_shapes=tuple(free.values()),
        )
    assert program is not None
    return program.model_proto


def _smaller(body: Any, onnx: Any) -> Any:
    """The same model with its weights as int8 or half precision wherever that loses nothing."""
    graph, before = body.graph, []
    for tensor in list(graph.initializer):
        if tensor.data_type != onnx.TensorProto.FLOAT:
            continue
        value = onnx.numpy_helper.to_array(tensor)
        if value.size < SMALL:
            continue
        found = _int8(value)
        if found is None and not np.array_equal(value.astype(np.float16).astype(np.float32), value):
            continue
        graph.initializer.remove(tensor)
        name = tensor.name
        if found is None:
            graph.initializer.append(onnx.numpy_helper.from_array(value.astype(np.float16), name + ".half"))
            before.append(onnx.helper.make_node("Cast", [name + ".half"], [name], to=onnx.TensorProto.FLOAT))
            continue
        whole, scale = found
        graph.initializer.append(onnx.numpy_helper.from_array(whole, name + ".int8"))
        graph.initializer.append(onnx.numpy_helper.from_array(scale, name + SCALE))
        plain = name if whole.shape == value.shape else name + ".rows"
        # plain arithmetic: runtimes answer a DequantizeLinear before a product with one in whole numbers, which is another result
        before.append(onnx.helper.make_node("Cast", [name + ".int8"], [name + ".whole"], to=onnx.TensorProto.FLOAT))
        before.append(onnx.helper.make_node("Mul", [name + ".whole", name + SCALE], [plain]))
        if plain != name:
            graph.initializer.append(onnx.numpy_helper.from_array(np.array(value.shape, np.int64), name + ".shape"))
            before.append(onnx.helper.make_node("Reshape", [plain, name + ".shape"], [name]))
    nodes = list(graph.node)
    del graph.node[:]
    graph.node.extend([*before, *nodes])
    onnx.checker.check_model(body)
    return body


def _int8(value: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]] | None:
    """Whole numbers and the scales of their rows or columns, if they give `value` exactly: tracing may turn a matrix over."""
    value = np.array(value)  # the file's own bytes may not be written to
    for axis, rows in ((0, value), (value.ndim - 1, np.moveaxis(value, -1, 0)), (0, value.reshape(-1, value.shape[-1]))):
        plain = torch.from_numpy(np.ascontiguousarray(rows))
        packed = pack({"w": plain})
        if "w" + SCALE in packed and torch.equal(unpack(packed)["w"], plain):
            whole, scale = packed["w"].numpy(), packed["w" + SCALE].float().numpy()
            if axis:
                return np.ascontiguousarray(np.moveaxis(whole, 0, -1)), scale
            return whole, scale.reshape(-1, *(1,) * (whole.ndim - 1))
    return None
