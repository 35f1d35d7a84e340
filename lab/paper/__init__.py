"""The paper's tables and figures, the baselines in them, and what its rivals are called there."""

from genius.evaluate.report import TITLES

TITLES |= {"irgen": "IRGen-style"} | {
    f"grace-{kind}": f"GRACE-style, {kind}" for kind in ("numeric", "string", "semantic", "structured")
}
