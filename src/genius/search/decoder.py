"""`Decoder`: the generator over the beams of several queries, one code at a time.

A thin wrapper around `genius.model.generator.Generator`: it keeps what was read (keys and values) with the beams, reorders it
when beams continue others, and hands out log-probabilities. All arithmetic is the generator's own. Beams of a query share the
keys and values of its prefix vectors. Used by beam search, its trace, evaluation and export. Knows nothing of tries.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from genius.errors import GeniusError
from genius.model.generator import ByModality, Generator, KeysValues, by_modality


@dataclass(slots=True)
class DecoderState:
    """What is remembered of the queries of a batch and of their beams."""

    z: Tensor  # (Q, D) the queries themselves
    cross: list[KeysValues]  # per layer: (Q, heads, prefix, d_kv), shared by the beams of a query
    past: list[KeysValues]  # per layer: (Q * n, heads, inputs read, d_kv); empty before the first

    @property
    def read(self) -> int:
        """Inputs read so far; the first is the start token."""
        if not self.past:
            return 0
        return int(self.past[0].keys.shape[2])

    def select(self, queries: Tensor) -> DecoderState:
        """The state of some of the queries (G,)."""
        cross = [KeysValues(k[queries], v[queries]) for k, v in self.cross]
        if not self.past:
            return DecoderState(self.z[queries], cross, [])
        beams = len(self.past[0].keys) // len(self.z)
        every = torch.arange(beams, device=queries.device)
        return self._rows(self.z[queries], cross, queries[:, None] * beams + every)

    def follow(self, parent: Tensor) -> DecoderState:
        """The state of beams that continue the beams `parent` (Q, n') of their queries."""
        if not self.past:
            return self
        beams = len(self.past[0].keys) // len(self.z)
        first = torch.arange(len(parent), device=parent.device)[:, None] * beams
        return self._rows(self.z, self.cross, first + parent)

    def _rows(self, z: Tensor, cross: list[KeysValues], rows: Tensor) -> DecoderState:
        index = rows.flatten()
        past = [KeysValues(k.index_select(0, index), v.index_select(0, index)) for k, v in self.past]
        return DecoderState(z, cross, past)


class CodeScorer(Protocol):
    """What a beam search needs of whatever scores codes. `Decoder` is the one; ablations bring their own."""

    @property
    def level_sizes(self) -> Sequence[int]: ...

    def start(self, z: Tensor) -> DecoderState:
        """The state of queries z (Q, D) before the first code."""
        ...

    def next_log_probs(self, codes: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState]:
        """Log-probabilities of every next code after codes (Q, n, l): (Q, n, K_l), and the state after reading them."""
        ...

    def path_log_probs(self, codes: Tensor, state: DecoderState, level: int) -> Tensor:
        """Log-probability of each code of IDs (Q, n, M) from `level` on, given the codes before it: (Q, n, M - level)."""
        ...


class Decoder:
    """A generator as beam search uses it: see `CodeScorer`. On the device and in the precision of the generator's weights.

    Args:
        generator: In evaluation mode.
        one_modality: All beams of a call have the same first code, so that no shape depends on a code (for export).
        all_modalities: Compute the logits of every modality for every beam. Then no shape depends on a code, either.
    """

    def __init__(self, generator: Generator, *, one_modality: bool = False, all_modalities: bool = False) -> None:
        self.generator = generator
        self.one_modality = one_modality
        self.all_modalities = all_modalities
        self.level_sizes = generator.config.level_sizes

    def start(self, z: Tensor) -> DecoderState:
        """Keys and values of the prefix vectors, once per query (Eq. 9)."""
        if self.generator.training:
            raise GeniusError("the generator is in training mode, where dropout changes every result: call its eval() first")
        return DecoderState(z, self.generator.cross_memory(z), [])

    def next_log_probs(self, codes: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState]:
        queries, beams, level = codes.shape
        hidden, state = self._run(codes, state)
        rows = codes.flatten(0, 1)
        residual = self.generator.residual(state.z.repeat_interleave(beams, 0), rows)
        log_probs = self.generator.log_probs(level, hidden[:, -1], residual, self._by_modality(rows))
        return log_probs.view(queries, beams, -1), state

    def path_log_probs(self, codes: Tensor, state: DecoderState, level: int) -> Tensor:
        queries, beams, levels = codes.shape
        hidden, _ = self._run(codes[:, :, :-1], state)
        unscored = hidden[:, -(levels - level) :]  # the states before the codes from `level` on
        rows = codes.flatten(0, 1)
        z = state.z.repeat_interleave(beams, 0)
        modalities = self._by_modality(rows)
        out = []
        for now in range(level, levels):
            residual = self.generator.residual(z, rows[:, :now])
            log_probs = self.generator.log_probs(now, unscored[:, now - level], residual, modalities)
            out.append(log_probs.gather(1, rows[:, now : now + 1]))
        return torch.cat(out, 1).view(queries, beams, -1)

    def _by_modality(self, codes: Tensor) -> ByModality | Tensor:
        """Which rows of codes (R, l) are of which modality, where the head asks for it."""
        if self.generator.config.head == "table" or not codes.shape[1]:
            return ()
        if self.one_modality:
            return [(codes[0, :1], slice(None))]
        if self.all_modalities:
            return codes[:, 0]
        return by_modality(codes[:, 0])

    def _run(self, codes: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState]:
        """Read those of the inputs of codes (Q, n, l) that were not read: hidden states (Q * n, new, d_model)."""
        inputs = self.generator.inputs(codes.flatten(0, 1), state.read)
        hidden, past = self.generator.hidden(inputs, state.cross, state.past or None)
        return hidden, DecoderState(state.z, state.cross, past)


@torch.inference_mode()
def first_log_probs(scorer: CodeScorer, z: NDArray[np.float32], device: str) -> NDArray[np.float32]:
    """Log-probabilities of the first code, which names the modality, for queries z (Q, D): (Q, K_0)."""
    queries = torch.from_numpy(z).to(device)
    no_codes = torch.empty(len(z), 1, 0, dtype=torch.long, device=device)
    log_probs, _ = scorer.next_log_probs(no_codes, scorer.start(queries))
    numbers: NDArray[np.float32] = log_probs[:, 0].float().cpu().numpy()
    return numbers
