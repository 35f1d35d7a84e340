"""Wrapping of generated pages: prose only, and nothing is lost."""

from __future__ import annotations

from lab.pages import wrap_prose

LONG = "word " * 40


def test_prose_is_wrapped_and_tables_stay() -> None:
    page = f"# {LONG}\n\n{LONG}\nand more\n\n- first\n- {LONG}\n  goes on\n\n| {LONG} |\n\n```\n{LONG}\n```\nshort\n"
    wrapped = wrap_prose(page)
    lines = wrapped.split("\n")
    assert wrapped.split() == page.split()
    assert [line[0] for line in lines if len(line) > 120] == ["#", "|", "w"]  # the last is code
    assert "- first" in lines and lines[lines.index("- first") + 1].startswith("- word")
    assert wrap_prose(wrapped) == wrapped
