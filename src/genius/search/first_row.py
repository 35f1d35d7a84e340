"""The decoder's first row for a single question, in numpy.

One question is so little work that calling torch costs more than the arithmetic: numpy on the same memory takes a third of the
time. Computes what `Decoder.start`, `run` and `log_p` compute for the first code after the kind, and nothing else; a test holds
the two together. Knows the weights of a `Decoder` whose head is tied to the codebooks.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from genius.search.decoder import CodebookHead, Decoder

Floats = NDArray[np.float32]


class FirstRow:
    """Shares its weights with the decoder; nothing is copied."""

    def __init__(self, decoder: Decoder, head: CodebookHead) -> None:
        config = decoder.config
        self.heads, self.inner, self.eps = decoder.heads, decoder.inner, decoder.eps
        self.tokens, self.d_model = config.prefix_tokens, config.d_model
        self.prefix, self.prefix_bias = decoder.prefix_weight.numpy().T, decoder.prefix_bias.numpy()
        self.prefix_norm = decoder.prefix_norm.numpy()
        self.bias = decoder.bias[0, :, :2, :2].numpy()  # (heads, 2, 2)
        self.layers = [
            tuple(
                weight.numpy()
                for weight in (layer.qkv, layer.out, layer.cross_q, layer.cross_kv, layer.cross_out, layer.ff_in, layer.ff_out)
            )
            for layer in decoder.layers
        ]
        self.start, self.kinds = head.start.numpy(), head.modality_in.numpy()
        self.kind_weight, self.kind_bias = (part.numpy() for part in head.modality_out)
        self.bend, self.bend_bias = (part.numpy() for part in head.bend[0])
        self.doubled, self.means = head.doubled[0].numpy(), head.means.numpy()  # (1 or 3,), (3, D)
        self.books, self.biases = head.books[0].numpy(), head.biases[0].numpy()

    def liked(self, z: Floats, kinds: NDArray[np.int64]) -> tuple[Floats, Floats]:
        """z (D,) -> log p of the kinds (all of them), and of every first code of each of `kinds`: (n, K)."""
        memory = self._norm((z @ self.prefix + self.prefix_bias).reshape(self.tokens, self.d_model)) * self.prefix_norm
        beams = len(kinds)
        read = np.empty((beams, 2, self.d_model), np.float32)
        read[:, 0], read[:, 1] = self.start, self.kinds[kinds]
        x: Floats = read.reshape(2 * beams, self.d_model)
        for qkv, out, cross_q, cross_kv, cross_out, ff_in, ff_out in self.layers:
            q, k, v = np.split(self._norm(x) @ qkv, 3, axis=1)
            x = x + self._attend(self._split(q, beams), self._split(k, beams), self._split(v, beams), self.bias) @ out
            k, v = np.split(memory @ cross_kv, 2, axis=1)
            x = x + self._attend(self._split(self._norm(x) @ cross_q, 1), self._split(k, 1), self._split(v, 1)) @ cross_out
            x = x + np.maximum(self._norm(x) @ ff_in, 0) @ ff_out
        state = self._norm(x).reshape(beams, 2, self.d_model)
        scale = self.doubled if len(self.doubled) == 1 else self.doubled[kinds, None]
        aim = (state[:, 1] @ self.bend.T + self.bend_bias + z - self.means[kinds]) * scale
        if len(self.books) == 1:
            logits = aim @ self.books[0].T + self.biases[0]
        else:
            logits = np.stack([aim[i] @ self.books[kind].T + self.biases[kind] for i, kind in enumerate(kinds.tolist())])
        return _log_softmax(self.kind_weight @ state[0, 0] + self.kind_bias), _log_softmax(logits)

    def _norm(self, x: Floats) -> Floats:
        scaled: Floats = x * (1 / np.sqrt(np.square(x).mean(-1, keepdims=True) + np.float32(self.eps)))
        return scaled

    def _split(self, x: Floats, beams: int) -> Floats:
        return x.reshape(beams, -1, self.heads, self.inner // self.heads).transpose(0, 2, 1, 3)  # (beams, heads, length, d_kv)

    def _attend(self, q: Floats, k: Floats, v: Floats, bias: Floats | None = None) -> Floats:
        scores = q @ k.transpose(0, 1, 3, 2)
        if bias is not None:
            scores = scores + bias
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        scores /= scores.sum(-1, keepdims=True)
        mixed: Floats = (scores @ v).transpose(0, 2, 1, 3).reshape(-1, self.inner)
        return mixed


def _log_softmax(logits: Floats) -> Floats:
    shifted = logits - logits.max(-1, keepdims=True)
    out: Floats = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    return out
