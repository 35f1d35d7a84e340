"""The generator as search runs it: fused weights, keys and values by ancestry, the prefix once per query.

Computes exactly what `Generator.hidden` computes, in another order: norm weights are folded into the matrices
behind them, q, k and v are one product, and beams are rows of the *query's* attention to its prefix, so that
prefix keys and values are never copied per beam. What a code is read as and how likely it is, the head says: `CodebookHead`, or
the paper's table (`genius.search.head`). Knows nothing of tries.

In int8 (CPU) the products are approximate, everything between them is float32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor

from genius.model.generator import Block, Generator
from genius.search.head import Head, Int8Matrix, Place, Products, TableHead


@dataclass(slots=True)
class Memory:
    """What is remembered of the queries of a batch and of their beams."""

    z: Tensor  # (Q, D) the queries themselves
    cross: list[tuple[Tensor, Tensor]]  # per layer: keys, values (Q, heads, prefix, d_kv), shared by a query's beams
    past: list[Tensor]  # per layer: (Q, n, t, 2 * inner) keys and values of the t inputs so far

    @property
    def read(self) -> int:
        """Inputs read so far; the first is the start."""
        return int(self.past[0].shape[2]) if self.past else 0

    def select(self, queries: Tensor) -> Memory:
        """Keep some queries."""
        return Memory(self.z[queries], [(k[queries], v[queries]) for k, v in self.cross], [p[queries] for p in self.past])

    def follow(self, parent: Tensor) -> Memory:
        """Beams of the next level (Q, n') continue the beams `parent` of this one."""
        queries = torch.arange(parent.shape[0], device=parent.device)[:, None]
        return Memory(self.z, self.cross, [p[queries, parent] for p in self.past])


class Writer(Protocol):
    """What a beam search needs of whatever writes codes. `Decoder` is the one; ablations bring their own."""

    @property
    def level_sizes(self) -> Sequence[int]: ...

    def start(self, z: Tensor) -> Memory:
        """z (Q, D) -> what is remembered of the queries before the first code."""
        ...

    def run(self, codes: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        """Read what of codes (Q, n, l) has not been read: states (Q, n, new, d), of which the last foretells code l."""
        ...

    def log_p(self, level: int, hidden: Tensor, memory: Memory, codes: Tensor, mass: Tensor | None = None) -> Tensor:
        """Scores of every next code after codes (Q, n, level), given states (Q, n, d): (Q * n, K_level)."""
        ...

    def mass(self, hidden: Tensor) -> Tensor | None:
        """The part of `log_p` that several levels share, of states (R, d): (R,); None where there is none."""
        ...

    def path_log_p(self, level: int, hidden: Tensor, memory: Memory, codes: Tensor) -> Tensor:
        """Sum of the scores of the codes from `level` on: codes (Q, n, M), states (Q, n, M - level, d) -> (Q, n)."""
        ...


M = TypeVar("M", Tensor, Int8Matrix)


@dataclass(slots=True)
class Layer(Generic[M]):
    """The matrices of one block."""

    qkv: M  # (d, 3 * inner), self-attention norm folded in
    out: M  # (inner, d)
    cross_q: M  # (d, inner), cross-attention norm folded in
    cross_kv: M  # (d, 2 * inner)
    cross_out: M  # (inner, d)
    ff_in: M  # (d, d_ff), feed-forward norm folded in
    ff_out: M  # (d_ff, d)


def _fuse(block: Block, place: Callable[[Tensor], M]) -> Layer[M]:
    own, cross = block.self_attention, block.cross_attention
    qkv = torch.cat([own.q.weight, own.k.weight, own.v.weight]).detach()  # (3 * inner, d)
    return Layer(
        qkv=place((qkv * block.self_norm.weight.detach()).T),
        out=place(own.o.weight.detach().T),
        cross_q=place((cross.q.weight.detach() * block.cross_norm.weight.detach()).T),
        cross_kv=place(torch.cat([cross.k.weight, cross.v.weight]).detach().T),
        cross_out=place(cross.o.weight.detach().T),
        ff_in=place((block.ff_in.weight.detach() * block.ff_norm.weight.detach()).T),
        ff_out=place(block.ff_out.weight.detach().T),
    )


class Decoder:
    """Fused copy of a `Generator` for inference, on one device in one dtype."""

    def __init__(self, generator: Generator, device: torch.device, dtype: torch.dtype = torch.float32) -> None:
        self.config, self.device, self.dtype = generator.config, device, dtype
        self.level_sizes = self.config.level_sizes
        self.heads, self.inner = self.config.heads, self.config.heads * self.config.d_kv
        self.eps = generator.final_norm.eps

        def place(weight: Tensor) -> Tensor:
            return weight.detach().to(device, dtype).contiguous()

        self.head: Head = TableHead(generator, place) if self.config.head == "table" else CodebookHead(generator, place)
        self.prefix_weight, self.prefix_bias = place(generator.prefix.weight), place(generator.prefix.bias)
        self.prefix_norm = place(generator.prefix_norm.weight)
        # additive position bias (1, heads, M, M), causal: row t serves the t-th input of any run
        self.bias = place(generator.bias(self.config.levels).float().clamp(min=-1e30))
        self.layers = [_fuse(block, place) for block in generator.blocks if isinstance(block, Block)]

    def _norm(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + self.eps).to(x.dtype)

    def start(self, z: Tensor) -> Memory:
        """Prefix keys and values of every layer, once per query (Eq. 9)."""
        queries, tokens, width = z.shape[0], self.config.prefix_tokens, self.config.d_model
        prefix = self._norm(self._project(z.to(self.dtype)).view(queries * tokens, width)) * self.prefix_norm
        cross = []
        for layer in self.layers:
            both = (prefix @ layer.cross_kv).view(queries, tokens, 2, self.heads, -1)
            cross.append((both[:, :, 0].transpose(1, 2).contiguous(), both[:, :, 1].transpose(1, 2).contiguous()))
        return Memory(z, cross, [])

    def _project(self, z: Tensor) -> Tensor:
        return torch.addmm(self.prefix_bias, z, self.prefix_weight.T)

    def run(self, codes: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        """Inputs of codes (Q, n, l) that were not read before -> normed states (Q, n, new, d), grown memory."""
        queries, beams, _ = codes.shape
        rows, d_kv, done = queries * beams, self.config.d_kv, memory.read
        x = self.head.inputs(codes.flatten(0, 1), done)  # (rows, new, d)
        length = x.shape[1]
        x = x.flatten(0, 1)
        bias = self.bias[:, :, done : done + length, : done + length]
        grown = []
        for i, layer in enumerate(self.layers):
            qkv = self._norm(x) @ layer.qkv
            q = qkv[:, : self.inner].view(rows, length, self.heads, d_kv).transpose(1, 2)
            new = qkv[:, self.inner :].view(queries, beams, length, 2 * self.inner)
            whole = torch.cat([memory.past[i], new], 2) if memory.past else new
            grown.append(whole)
            both = whole.reshape(rows, done + length, 2, self.heads, d_kv)
            k, v = both[:, :, 0].transpose(1, 2), both[:, :, 1].transpose(1, 2)
            if done + length > 1:
                v = F.scaled_dot_product_attention(q, k, v, attn_mask=bias.expand(rows, -1, -1, -1), scale=1.0)
            x = _plus(x, v.transpose(1, 2).reshape(rows * length, self.inner), layer.out)  # a lone input attends to itself
            q = (self._norm(x) @ layer.cross_q).view(queries, beams * length, self.heads, d_kv).transpose(1, 2)
            v = F.scaled_dot_product_attention(q, *memory.cross[i], scale=1.0)
            x = _plus(x, v.transpose(1, 2).reshape(rows * length, self.inner), layer.cross_out)
            x = _plus(x, torch.relu_(self._norm(x) @ layer.ff_in), layer.ff_out)
        return self._norm(x).view(queries, beams, length, -1), Memory(memory.z, memory.cross, grown)

    # -- how likely codes are --------------------------------------------------------------------------------------

    def log_p(self, level: int, hidden: Tensor, memory: Memory, codes: Tensor, mass: Tensor | None = None) -> Tensor:
        rows = hidden.flatten(0, 1)
        return self.head.log_p(level, rows, self._rest(memory, codes), codes[:, :, 0].flatten() if level else None, mass)

    def mass(self, hidden: Tensor) -> Tensor | None:
        return self.head.mass(hidden)

    def path_log_p(self, level: int, hidden: Tensor, memory: Memory, codes: Tensor) -> Tensor:
        whole = codes.flatten(0, 1)
        rest = self._rest(memory, codes[:, :, :level])
        return self.head.path(level, hidden.flatten(0, 1), rest, whole).view(codes.shape[:2])

    def _rest(self, memory: Memory, codes: Tensor) -> Tensor | None:
        """(Q * n, D) z minus the codes so far, where the head asks for it."""
        return self.head.rest(memory.z.repeat_interleave(codes.shape[1], 0), codes.flatten(0, 1))


class CodebookHead:
    """Nearness to the codebooks' rows, bent by the state (`genius.model.generator`)."""

    def __init__(self, generator: Generator, place: Place) -> None:
        model = generator.nearness
        self.config, self.quantizer = generator.config, model.quantizer
        levels = range(1, self.config.levels)
        norm = generator.final_norm.weight.detach().float()  # states come without it
        self.start, self.modality_in = place(model.start), place(model.modality_in.weight)
        self.modality_out = place(model.modality_out.weight.detach().float() * norm), place(model.modality_out.bias)
        self.read = [(place(layer.weight), place(layer.bias)) for layer in model.read]  # type: ignore[arg-type]
        # aim = 2 a (rest + U h)
        self.bend = [
            (place(layer.weight.detach().float() * norm), place(layer.bias.detach().float()))  # type: ignore[operator, union-attr]
            for layer in model.bend
        ]
        # (3 or 1, K, D) code vectors, (3 or 1, K) biases and (3 or 1,) 2 a of every level after the modality
        self.books, self.biases, self.doubled = [], [], []
        with torch.no_grad():
            for level in levels:
                size, kinds = self.config.level_sizes[level], range(3 if model.quantizer.config.own_books(level) else 1)
                self.books.append(place(model.quantizer.codebook(level)).view(-1, size, self.config.width))
                self.biases.append(torch.stack([place(model.bias(level, kind)).float() for kind in kinds]))
                self.doubled.append(torch.stack([place(2 * model.scale(level, kind)).float() for kind in kinds]))
        self.means = place(model.quantizer.codebook(0)).float()  # (3, D) what level 0 takes off

    def inputs(self, codes: Tensor, begin: int) -> Tensor:
        parts = [self.start.expand(len(codes), -1)] if begin == 0 else []
        for level in range(max(begin - 1, 0), codes.shape[1]):
            if level == 0:
                parts.append(F.embedding(codes[:, 0], self.modality_in))
            else:
                weight, bias = self.read[level - 1]
                parts.append(F.linear(self._vectors(level, codes[:, level], codes[:, 0]), weight, bias))
        return torch.stack(parts, 1)

    def _vectors(self, level: int, code: Tensor, modality: Tensor) -> Tensor:
        books = self.books[level - 1]
        return books.flatten(0, 1)[code if len(books) == 1 else code + modality * books.shape[1]]

    def rest(self, z: Tensor, codes: Tensor) -> Tensor:
        rest = z.float()
        for level in range(codes.shape[1]):
            vector = self.means[codes[:, 0]] if level == 0 else self._vectors(level, codes[:, level], codes[:, 0])
            rest = rest - vector
        return rest

    def aim(self, level: int, hidden: Tensor, rest: Tensor, modality: Tensor) -> Tensor:
        """(R, D) float32, whose products with the codes, plus biases, are their logits."""
        doubled = self.doubled[level - 1]
        reach = F.linear(hidden, *self.bend[level - 1]).float() + rest
        return reach * (doubled[0] if len(doubled) == 1 else doubled[modality][:, None])

    def log_p(
        self, level: int, hidden: Tensor, rest: Tensor | None, modality: Tensor | None, mass: Tensor | None = None
    ) -> Tensor:
        return self.logits(level, hidden, rest, modality).log_softmax(1)

    def logits(self, level: int, hidden: Tensor, rest: Tensor | None, modality: Tensor | None) -> Tensor:
        """(R, K_level) float32."""
        if level == 0:
            return F.linear(hidden, *self.modality_out).float()
        assert rest is not None and modality is not None
        books, biases = self.books[level - 1], self.biases[level - 1]
        aim = self.aim(level, hidden, rest, modality)
        if len(books) == 1:
            return torch.addmm(biases[0], aim.to(books.dtype), books[0].T).float()
        out = aim.new_empty(len(aim), books.shape[1])
        for kind in modality.unique().tolist():
            own = (modality == kind).nonzero()[:, 0]
            out[own] = torch.addmm(biases[kind], aim[own], books[kind].T)
        return out

    def mass(self, hidden: Tensor) -> None:
        return None

    def path(self, level: int, hidden: Tensor, rest: Tensor | None, codes: Tensor) -> Tensor:
        return self._path(level, hidden, rest, codes, lambda *now: self.logits(*now).log_softmax(1))

    def narrow(self) -> None:
        """Distances decide here: they keep float32."""

    def fixed(
        self, level: int, hidden: Tensor, rest: Tensor | None, modality: Tensor | None, ops: Products
    ) -> tuple[Tensor, Tensor]:
        if level == 0:
            logits = F.linear(hidden, *self.modality_out).float()
            return logits, logits.logsumexp(1)
        assert rest is not None and modality is not None
        books, biases = self.books[level - 1], self.biases[level - 1]
        aim = self.aim(level, hidden, rest, modality)
        if len(books) == 1:
            logits = ops.logits(aim.to(books.dtype), books[0]) + biases[0]
            return logits, logits.logsumexp(1)
        # which book a row reads is a value: all are read, and the row is masked out of the others
        mine = (modality[:, None] == torch.arange(len(books), device=modality.device)).float()  # (R, 3)
        logits = mine @ biases
        for kind, book in enumerate(books):
            logits = logits + ops.logits((aim * mine[:, kind : kind + 1]).to(book.dtype), book)
        return logits, logits.logsumexp(1)

    def fixed_path(self, level: int, hidden: Tensor, rest: Tensor | None, codes: Tensor, ops: Products) -> Tensor:
        def log_p(now: int, state: Tensor, left: Tensor, modality: Tensor | None) -> Tensor:
            logits, normalizer = self.fixed(now, state, left, modality, ops)
            return logits - normalizer[:, None]

        return self._path(level, hidden, rest, codes, log_p)

    def _path(self, level: int, hidden: Tensor, rest: Tensor | None, codes: Tensor, log_p: Callable[..., Tensor]) -> Tensor:
        total = torch.zeros(len(codes), device=codes.device)
        assert rest is not None
        for step in range(hidden.shape[1]):
            now = level + step
            scores = log_p(now, hidden[:, step], rest, codes[:, 0] if now else None)
            total = total + scores.gather(1, codes[:, now : now + 1])[:, 0]
            rest = rest - (self.means[codes[:, 0]] if now == 0 else self._vectors(now, codes[:, now], codes[:, 0]))
        return total


class Int8Decoder(Decoder):
    """The same with int8 products (CPU): for beams that only pick candidates."""

    def __init__(self, generator: Generator) -> None:
        super().__init__(generator, torch.device("cpu"))
        self.layers = [_fuse(block, Int8Matrix) for block in generator.blocks if isinstance(block, Block)]  # type: ignore[arg-type]
        self.prefix_matrix = Int8Matrix(self.prefix_weight.T)
        self.head.narrow()

    def _project(self, z: Tensor) -> Tensor:
        return (z @ self.prefix_matrix).add_(self.prefix_bias)


def _plus(x: Tensor, y: Tensor, weight: Tensor | Int8Matrix) -> Tensor:
    return torch.addmm(x, y, weight) if isinstance(weight, Tensor) else (y @ weight).add_(x)


_fused: WeakKeyDictionary[Generator, tuple[object, Decoder]] = WeakKeyDictionary()


def decoder_of(generator: Generator, device: torch.device) -> Decoder:
    """The float32 decoder of a generator, fused again only when a weight or a codebook of its head has changed or moved."""
    weights: list[Tensor] = list(generator.parameters())
    if generator.config.head == "codebooks":
        weights += list(generator.nearness.quantizer.buffers())
    try:
        state: object = (device, tuple((w.data_ptr(), w._version) for w in weights))
    except RuntimeError:  # inference tensors keep no version
        return Decoder(generator, device)
    known = _fused.get(generator)
    if known is None or known[0] != state:
        known = (state, Decoder(generator, device))
        _fused[generator] = known
    return known[1]
