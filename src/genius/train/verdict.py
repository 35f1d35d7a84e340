"""What a training run is worth, for people: a table of the held-out questions, what limits it, and what to do next.

Knows the names of validation figures; nothing of stages.
"""

from __future__ import annotations

from collections.abc import Mapping

ROWS = {"dense": "dense, exhaustive", "genius": "GENIUS, log p alone", "genius_r": "GENIUS^R"}
AT = (1, 5, 10)
POOR = 0.5  # hit@5 of an exhaustive search below which the vectors, not the codes, are what to work on
KEPT = 0.9  # share of dense below which the decoder is


def table(values: Mapping[str, float]) -> list[str]:
    """The lines of a table; none where nothing was held out."""
    if not all(f"{row}_hit@{k}" in values for row in ROWS for k in AT):
        return []
    lines = [f"{'held-out questions':<22}{''.join(f'hit@{k}'.rjust(9) for k in AT)}   kept of dense, hit@5"]
    dense = values[f"dense_hit@{AT[1]}"]
    for row, name in ROWS.items():
        rates = [values[f"{row}_hit@{k}"] for k in AT]
        kept = "" if row == "dense" or not dense else f"{rates[1] / dense:11.2f}"
        lines.append(f"{name:<22}{''.join(f'{100 * rate:7.1f} %' for rate in rates)}{kept}")
    return lines


def verdict(values: Mapping[str, float], train: str) -> str | None:
    """What limits the answers, and what helps. `train`: what of the encoder was trained."""
    if not table(values):
        return None
    dense, found = values[f"dense_hit@{AT[1]}"], values[f"genius_r_hit@{AT[1]}"]
    if dense and found / dense < KEPT:
        kept = f"the decoder is the limit: it keeps {found / dense:.0%} of what the vectors find"
        return f"{kept}; try more steps (--set generator.steps=...)"
    if dense < POOR:
        more = {
            "none": "try heads (--set encoder.train=heads), or another encoder",
            "heads": "try towers (--set encoder.train=towers), more pairs, or another encoder",
        }.get(train, "try more pairs, or another encoder")
        return f"the encoder is the limit: even an exhaustive search finds only {dense:.0%} among the first {AT[1]}; {more}"
    return "the codes keep what the vectors find"


def next_command(output: str, has_encoder: bool, data: str) -> str:
    """What people do after a training run."""
    if has_encoder:
        return f"genius index FILES -o my.genius --model {output}"
    return (
        f"genius eval {output} features:{data or 'FEATURES'}   (attach an encoder to index files: genius attach {output} ENCODER)"
    )
