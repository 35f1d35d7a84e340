"""The table of attacks in docs/serving.md, from the JSON of `lab.trust.attacks`; and parts of pages between two marks.

    python -m lab.tables

The table is known by its first line; what is below it on the page, up to the first empty line, is written anew. Sentences around
it belong to the page. A test compares page and file.
"""

from __future__ import annotations

import json
from pathlib import Path

ROOT = Path(__file__).parents[1]
ATTACKS = ROOT / "lab" / "trust" / "attacks.json"
PAGE = ROOT / "docs" / "serving.md"
Row = tuple[str, ...]


def write_between(page: Path, begin: str, end: str, text: str) -> None:
    """Write the part of a page between two marks anew.

    Args:
        page: The file.
        begin: The mark before it.
        end: The mark after it.
        text: What stands between them from now on.
    """
    before, _, rest = page.read_text(encoding="utf-8").partition(begin)
    _, _, after = rest.partition(end)
    page.write_text(f"{before}{begin}\n{text}\n{end}{after}", encoding="utf-8")


def attacks() -> list[Row]:
    """A bystander of the service before and during each attack."""
    body = json.loads(ATTACKS.read_text(encoding="utf-8"))
    rows: list[Row] = [("attack", "search p50, p99 before", "during", "`/healthz` p99", "recovery", "within 2 x + 1 s")]
    for name, found in body["results"].items():
        before, during = (
            f"{found[when]['search_p50_s']:.2f}, {found[when]['search_p99_s']:.2f}" for when in ("before", "during")
        )
        within = "yes"
        if not found["passes"]:
            within = f"**no** (limit {found['limit_s']:.2f})"
        rows.append((name, before, during, f"{found['during']['healthz_p99_s']:.2f}", f"{found['recovery_s']:.1f}", within))
    return rows


def page() -> str:
    """docs/serving.md with the table as the file has it."""
    text = PAGE.read_text(encoding="utf-8")
    head, *rows = [f"| {' | '.join(cells)} |" for cells in attacks()]
    before, found, rest = text.partition(head + "\n")
    if not found:
        raise SystemExit(f"{PAGE} has no table that begins with {head}")
    rule = rest.split("\n", 1)[0]
    return before + "\n".join([head, rule, *rows]) + "\n\n" + rest.partition("\n\n")[2]


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
