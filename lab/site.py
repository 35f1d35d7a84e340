"""The documentation site: built with MkDocs (or Zensical), together with the files of the repository that its pages link to.

    python -m lab.site                     build/site, ready for any static host; every link is checked
    python -m lab.site --tab               also exports an index of our own drawings as the live demo in build/site/try

The folder mirrors the repository: pages are in `docs/`, so a link to `../lab/results/x.json` is valid in both.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

from lab import ROOT

OUT = ROOT / "build" / "site"
REDIRECT = (
    '<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="0; url=docs/index.html"><title>GENIUS</title>'
)
TEXT_PAGE = '<!doctype html><meta charset="utf-8"><title>GENIUS</title><pre>{}</pre>'
NO_TAB = "The live demo is not part of this build. Run: python -m lab.site --tab"


class _Links(HTMLParser):
    """The links of a page, and the anchors that others may link to."""

    def __init__(self) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.anchors: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for key, value in attrs:
            if key in ("id", "name") and value:
                self.anchors.add(value)
            if key in ("href", "src") and value and tag in ("a", "img", "link", "script"):
                self.targets.append(value)


def read(page: Path) -> _Links:
    links = _Links()
    links.feed(page.read_text(encoding="utf-8"))
    return links


def resolve(page: Path, target: str) -> tuple[Path, str] | None:
    """The file and the anchor that a link means; None if it leaves the site."""
    parts = urlsplit(target)
    if parts.scheme or parts.netloc or target.startswith(("mailto:", "data:")):
        return None
    path = page
    if parts.path:
        path = (page.parent / unquote(parts.path)).resolve()
    if path.is_dir():
        path = path / "index.html"
    return path, unquote(parts.fragment)


def copy_linked_files(out: Path, root: Path = ROOT) -> list[str]:
    """Copy the files of the repository that pages link to.

    Returns:
        Their names, relative to `out`.
    """
    copied = []
    for page in sorted(out.rglob("*.html")):
        for target in read(page).targets:
            found = resolve(page, target)
            if found is None or found[0].exists() or not found[0].is_relative_to(out):
                continue
            destination = found[0]
            source = root / destination.relative_to(out)
            if source.is_file():
                destination.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, destination)
            else:
                continue
            copied.append(str(destination.relative_to(out)))
    return copied


def dead_links(out: Path) -> list[str]:
    """One line per link to a file or an anchor that does not exist."""
    pages = {page: read(page) for page in sorted(out.rglob("*.html"))}
    dead = []
    for page, links in pages.items():
        for target in links.targets:
            found = resolve(page, target)
            if found is None or page.name == "404.html":
                continue
            path, anchor = found
            known = pages.get(path)
            if not path.exists():
                dead.append(f"{page.relative_to(out)}: {target} does not exist")
            elif anchor and known is not None and anchor not in known.anchors:
                dead.append(f"{page.relative_to(out)}: {target} names no anchor of that page")
    return dead


def dead_links_of_text(text: str, docs: Path) -> list[str]:
    """Links of llms.txt to files that do not exist."""
    return [target for target in re.findall(r"\]\(([^)]+)\)", text) if not (docs / target).is_file()]


def export_tab(out: Path) -> None:
    """Export an index of our own drawings as a search in a browser tab."""
    from genius.export.web import export_web
    from genius.index import Index
    from lab.pictograms import build as build_index

    with tempfile.TemporaryDirectory() as folder, Index.open(build_index(Path(folder))) as index:
        export_web(index, out)


def build(root: Path = ROOT, out: Path = OUT, tab: bool = False) -> list[str]:
    """Build the site into `out`.

    Returns:
        One line per problem.
    """
    shutil.rmtree(out, ignore_errors=True)
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(out / "docs")]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True)
    if done.returncode:
        return [f"mkdocs: {line}" for line in (done.stderr + done.stdout).splitlines() if line.strip()][-20:]
    (out / "index.html").write_text(REDIRECT, encoding="utf-8")
    if tab:
        export_tab(out / "try")
    else:
        (out / "try").mkdir()
        (out / "try" / "index.html").write_text(TEXT_PAGE.format(NO_TAB), encoding="utf-8")
    copy_linked_files(out, root)
    problems = dead_links(out)
    listed = dead_links_of_text((root / "docs" / "llms.txt").read_text(encoding="utf-8"), root / "docs")
    problems += [f"llms.txt: {target}" for target in listed]
    api = (out / "docs" / "api.html").read_text(encoding="utf-8")
    expected = ("search_embedded", "from_pretrained", "SearchParams")
    problems += [f"api.html lacks {name}" for name in expected if name not in api]
    return problems


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m lab.site", description=__doc__)
    parser.add_argument("--tab", action="store_true", help="export the live demo, a search in a browser tab")
    given = parser.parse_args()
    problems = build(tab=given.tab)
    if problems:
        print("\n".join(problems))
        raise SystemExit(1)
    print(f"built: open {OUT.relative_to(ROOT)}/index.html; all links resolve")


if __name__ == "__main__":
    main()
