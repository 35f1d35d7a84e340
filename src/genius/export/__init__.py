"""What leaves GENIUS for other programs: the parts of a model as ONNX files, small and without loss; and a collection as a folder
that a browser searches alone (`web`).

Five functions of fixed shape: the two towers of the encoder, the fusion, what the decoder remembers of a query, and one step of
the decoder, which reads a code and says how likely each next one is. All arithmetic is the model's own modules; only the order in
which keys and values are kept differs: M places, the `level`-th filled by each step, so that no shape depends on how far a beam
is. A weight whose rows are whole multiples of one number (`genius.weight_files`) is stored as int8 with that number, one that
half precision holds exactly as half precision, any other as it is: an exported model computes what the model computes.
"""

from __future__ import annotations

import logging
import warnings
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
from genius.model.generator import SPECIALS, START, Block, Generator, KeysValues
from genius.model.genius import Genius
from genius.model.quantizer import Fusion, score_fusion
from genius.weight_files import SCALE, SMALL, pack, unpack

NEVER = -1e30  # log p of a code that a level does not have
OPSET = 20
LONGEST = 4096  # of a size that may differ from call to call


@dataclass(frozen=True, slots=True)
class Graph:
    """A module, an example of its inputs, and their names; sizes named in `free` may differ from call to call."""

    module: nn.Module
    inputs: dict[str, Tensor]
    outputs: tuple[str, ...]
    free: dict[str, dict[int, str]]  # input -> axis -> name of the size


def graphs(model: Genius) -> dict[str, Graph]:
    """Every part of a model by the name of its file."""
    out = towers(model.encoder) if model.encoder is not None else {}
    width, config = model.config.width, model.config.generator
    vector = torch.zeros(1, width)
    dense = model.config.rerank_embedding != "fused"
    out["fusion"] = Graph(
        Fuse(model.fusion, dense), {"image": vector, "text": vector + 1}, ("z", "dense") if dense else ("z",), {}
    )
    out["start"] = Graph(Start(model.generator), {"z": vector}, ("cross",), {})
    rows, places = 2, config.levels
    step = {
        "level": torch.tensor([1]),
        "modality": torch.tensor([0]),
        "code": torch.zeros(rows, dtype=torch.long),
        "rest": torch.zeros(rows, width),
        "cross": torch.zeros(config.layers, 2, config.heads, config.prefix_tokens, config.d_kv),
        "past": torch.zeros(config.layers, 2, rows, config.heads, places, config.d_kv),
    }
    free = {"code": {0: "beams"}, "rest": {0: "beams"}, "past": {2: "beams"}}
    out["step"] = Graph(Step(model.generator), step, ("log_p", "rest_after", "past_after"), free)
    return out


def towers(encoder: Encoder) -> dict[str, Graph]:
    """The two towers of an encoder; one line for a family whose towers are not known here."""
    image: nn.Module
    text: nn.Module
    if isinstance(encoder, MiniEncoder):
        image, text, length = encoder.image, encoder.text, encoder.config.text_length
    elif isinstance(encoder, DualEncoder):
        image, text, length = _Pooled(encoder, "_pool_images"), _Pooled(encoder, "_pool_texts"), encoder._length()
    else:
        raise GeniusError(
            f"the towers of a {type(encoder).__name__} cannot be exported: only those of CLIP, SigLIP and bundled:mini"
        )
    side = pixels_of(encoder).size
    ids = torch.ones(2, min(5, length), dtype=torch.long)
    both = {"ids": {0: "texts", 1: "tokens"}, "mask": {0: "texts", 1: "tokens"}}
    return {
        "text": Graph(text, {"ids": ids, "mask": torch.ones_like(ids)}, ("vector",), both),
        "image": Graph(image, {"pixels": torch.zeros(2, 3, side, side)}, ("vector",), {"pixels": {0: "pictures"}}),
    }


def pixels_of(encoder: Any) -> Pixels:
    pixels: Pixels = encoder.pixels
    return pixels


class _Pooled(nn.Module):
    """One tower of a dual encoder as a module of its own."""

    def __init__(self, encoder: DualEncoder, method: str) -> None:
        super().__init__()
        self.encoder, self.method = encoder, method

    def forward(self, *inputs: Tensor) -> Tensor:
        vector: Tensor = getattr(self.encoder, self.method)(*inputs)
        return vector


class Fuse(nn.Module):
    """Two vectors (n, D), zeros where there is none -> z, and the vector to rank by where that is another one."""

    def __init__(self, fusion: Fusion, dense: bool) -> None:
        super().__init__()
        self.fusion, self.dense = fusion, dense

    def forward(self, image: Tensor, text: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        there = torch.ones(len(image), dtype=torch.bool)
        features = Features(image, text, there, there)
        z: Tensor = self.fusion(features)
        return (z, score_fusion(features)) if self.dense else z


class Start(nn.Module):
    """z (1, D) -> keys and values of every layer's attention to the query: (layers, 2, heads, prefix, d_kv)."""

    def __init__(self, generator: Generator) -> None:
        super().__init__()
        self.generator = generator

    def forward(self, z: Tensor) -> Tensor:
        return torch.stack([torch.cat([memory.keys, memory.values]) for memory in self.generator.cross_memory(z)])


class Step(nn.Module):
    """Read the last code of n beams of one modality; log p of every next code.

    level (1,): of the code to be written, 0 for the first; modality (1,): the beams' first code (level 0: any); code (n,): of the
    level before (level 0: any); rest (n, D): z minus the codes before `code`; cross: from `Start`; past
    (layers, 2, n, heads, M, d_kv): keys and values, zeros before the first step.
    -> log_p (n, K of the widest level), rest and past of the next step.
    """

    bias: Tensor
    places: Tensor

    def __init__(self, generator: Generator) -> None:
        super().__init__()
        self.generator = generator
        self.head: nn.Module = _Codebooks(generator) if generator.config.head == "codebooks" else _Table(generator)
        self.register_buffer("bias", generator.bias(generator.config.levels).detach().clamp(min=NEVER)[0])  # (heads, M, M)
        self.register_buffer("places", torch.arange(generator.config.levels)[:, None])

    def forward(
        self, level: Tensor, modality: Tensor, code: Tensor, rest: Tensor, cross: Tensor, past: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        token, rest = self.head.read(level, modality, code, rest)  # type: ignore[operator]
        x = token[:, None]  # (n, 1, d)
        here = self.places == level  # (M, 1)
        bias = self.bias.index_select(1, level)[None]  # (1, heads, 1, M)
        grown = []
        for i, block in enumerate(self.generator.blocks):
            assert isinstance(block, Block)
            normed = block.self_norm(x)
            new = block.self_attention.project(normed)
            memory = KeysValues(torch.where(here, new.keys, past[i, 0]), torch.where(here, new.values, past[i, 1]))
            x = x + block.self_attention(normed, memory, bias)
            x = x + block.cross_attention(block.cross_norm(x), KeysValues(cross[i, 0][None], cross[i, 1][None]))
            x = x + block.ff_out(torch.relu(block.ff_in(block.ff_norm(x))))
            grown.append(torch.stack([memory.keys, memory.values]))
        hidden = self.generator.final_norm(x)[:, 0]
        logits: Tensor = self.head.logits(level, modality, hidden, rest)  # type: ignore[operator]
        return logits, rest, torch.stack(grown)


class _Codebooks(nn.Module):
    """`genius.model.generator` with the level as an input: rows of all codebooks in one table."""

    books: Tensor
    starts: Tensor
    sizes: Tensor
    squares: Tensor
    scales: Tensor
    spread: Tensor

    def __init__(self, generator: Generator) -> None:
        super().__init__()
        near, config = generator.nearness, generator.config
        quantizer = near.quantizer
        self.near, self.d_model, self.width = near, config.d_model, config.width
        self.widest, self.read_levels, self.levels = max(config.level_sizes), len(near.read), len(near.bend)
        books = [quantizer.codebook(level).detach() for level in range(config.levels)]
        first = torch.tensor([0, *(len(book) for book in books)]).cumsum(0)[:-1]
        own = torch.tensor([size * quantizer.config.own_books(level) for level, size in enumerate(config.level_sizes)])
        kinds = torch.arange(config.level_sizes[0])
        with torch.no_grad():
            later = range(1, config.levels)
            each = [near.bias(level, kind) for level in later for kind in range(3 if quantizer.config.own_books(level) else 1)]
            squares = [torch.zeros(len(books[0])), *each]
            scales = torch.stack([torch.stack([near.scale(level, kind) for kind in kinds.tolist()]) for level in later])
        self.register_buffer("books", torch.cat(books))  # (rows, D)
        self.register_buffer("starts", first[:, None] + own[:, None] * kinds)  # (M, 3) first row of a level's book of a modality
        self.register_buffer("sizes", torch.tensor(config.level_sizes))
        self.register_buffer("squares", torch.cat(squares))  # (rows,)
        self.register_buffer("scales", 2 * scales)  # (M - 1, 3) 2 a_l of a modality
        self.register_buffer("spread", torch.arange(self.widest))
        reads = [layer for layer in near.read if isinstance(layer, nn.Linear)]
        bends = [layer for layer in near.bend if isinstance(layer, nn.Linear)]
        self.read_weight = nn.Parameter(torch.cat([layer.weight for layer in reads]))
        self.read_bias = nn.Parameter(torch.stack([layer.bias for layer in reads]))
        self.bend_weight = nn.Parameter(torch.cat([layer.weight for layer in bends]))
        self.bend_bias = nn.Parameter(torch.stack([layer.bias for layer in bends]))

    def read(self, level: Tensor, modality: Tensor, code: Tensor, rest: Tensor) -> tuple[Tensor, Tensor]:
        before = (level - 1).clamp(min=0)
        start = self.starts.flatten().index_select(0, before * self.starts.shape[1] + modality * (before > 0))
        vector = self.books.index_select(0, start + code)  # (n, D)
        at = (level - 2).clamp(min=0)
        weight = self.read_weight.view(self.read_levels, self.d_model, self.width).index_select(0, at)[0]
        later = vector @ weight.T + self.read_bias.index_select(0, at)
        first = self.near.modality_in(code.clamp(max=self.starts.shape[1] - 1))
        token = torch.where(level == 0, self.near.start[None], torch.where(level == 1, first, later))
        return token, rest - vector * (level > 0).float()

    def logits(self, level: Tensor, modality: Tensor, hidden: Tensor, rest: Tensor) -> Tensor:
        at = (level - 1).clamp(min=0)
        weight = self.bend_weight.view(self.levels, self.width, self.d_model).index_select(0, at)[0]
        scale = self.scales.flatten().index_select(0, at * self.scales.shape[1] + modality)
        aim = scale * (rest + hidden @ weight.T + self.bend_bias.index_select(0, at))
        size = self.sizes.index_select(0, level)
        start = self.starts.flatten().index_select(0, level.clamp(min=1) * self.starts.shape[1] + modality)
        rows = start + torch.minimum(self.spread, size - 1)
        later = aim @ self.books.index_select(0, rows).T + self.squares.index_select(0, rows)
        first = nn.functional.pad(self.near.modality_out(hidden), (0, self.widest - self.near.modality_out.out_features))
        logits = torch.where(level == 0, first, later)
        return torch.where(self.spread < size, logits, NEVER).log_softmax(1)


class _Table(nn.Module):
    """A free row for each code (the paper's head)."""

    offsets: Tensor
    sizes: Tensor
    spread: Tensor

    def __init__(self, generator: Generator) -> None:
        super().__init__()
        config = generator.config
        self.tokens, self.scale, self.whole = generator.tokens, config.d_model**-0.5, config.normalizer == "vocabulary"
        self.register_buffer("offsets", torch.tensor([START, *config.offsets]))  # of what each level reads
        self.register_buffer("sizes", torch.tensor(config.level_sizes))
        self.register_buffer("spread", torch.arange(max(config.level_sizes)))

    def read(self, level: Tensor, modality: Tensor, code: Tensor, rest: Tensor) -> tuple[Tensor, Tensor]:
        return self.tokens(self.offsets.index_select(0, level) + code * (level > 0)), rest

    def logits(self, level: Tensor, modality: Tensor, hidden: Tensor, rest: Tensor) -> Tensor:
        size = self.sizes.index_select(0, level)
        there = self.spread < size
        rows = self.offsets.index_select(0, level + 1) + torch.minimum(self.spread, size - 1)
        own = (hidden * self.scale) @ self.tokens.weight.index_select(0, rows).T
        if not self.whole:
            return torch.where(there, own, NEVER).log_softmax(1)
        mass = ((hidden * self.scale) @ self.tokens.weight.T).logsumexp(1, keepdim=True)
        return torch.where(there, own - mass, NEVER)


assert SPECIALS > START  # the start token is one of the rows before the codes


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
