"""The site builds, every link resolves."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.site import build, copy_linked_files, dead_links


def test_the_site_builds_and_every_link_resolves(tmp_path: Path) -> None:
    pytest.importorskip("mkdocstrings")
    assert build(out=tmp_path / "site") == []
    home = (tmp_path / "site" / "docs" / "index.html").read_text(encoding="utf-8")
    assert "images/page.png" in home and (tmp_path / "site" / "docs" / "llms.txt").is_file()


def test_a_dead_link_is_found(tmp_path: Path) -> None:
    (tmp_path / "out" / "docs").mkdir(parents=True)
    page = tmp_path / "out" / "docs" / "a.html"
    page.write_text(
        '<h1 id="top">A</h1><a href="#top">x</a><a href="b.html">b</a><a href="a.html#none">n</a><a href="../f.txt">f</a>'
    )
    (tmp_path / "f.txt").write_text("copied")
    assert copy_linked_files(tmp_path / "out", tmp_path) == ["f.txt"]
    assert dead_links(tmp_path / "out") == [
        "docs/a.html: b.html does not exist",
        "docs/a.html: a.html#none names no anchor of that page",
    ]
