"""The documentation site: built with MkDocs (or Zensical), with the files of the repository that it links to, every link checked.

    python -m lab.site                     build/site, ready to be put on any host of files
    python -m lab.site --with zensical     the same pages by MkDocs' successor

The folder mirrors the repository: pages are in `docs/`, so that a link to `../lab/results/x.json` is true in both.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
from html import escape
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).parents[1]
OUT = ROOT / "build" / "site"
HOME = '<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="0; url=docs/index.html"><title>GENIUS</title>'

PLAIN = '<!doctype html><meta charset="utf-8"><title>GENIUS</title><pre>{}</pre>'


class _Links(HTMLParser):
    """Where a page points to, and the names that others may point to in it."""

    def __init__(self) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.names: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for key, value in attrs:
            if key in ("id", "name") and value:
                self.names.add(value)
            if key in ("href", "src") and value and tag in ("a", "img", "link", "script"):
                self.targets.append(value)


def read(page: Path) -> _Links:
    links = _Links()
    links.feed(page.read_text(encoding="utf-8"))
    return links


def inside(page: Path, target: str) -> tuple[Path, str] | None:
    """The file and the place in it that a link means; None for one that leaves the site."""
    parts = urlsplit(target)
    if parts.scheme or parts.netloc or target.startswith(("mailto:", "data:")):
        return None
    path = page if not parts.path else (page.parent / unquote(parts.path)).resolve()
    return (path / "index.html" if path.is_dir() else path), unquote(parts.fragment)


def bring_along(out: Path, root: Path = ROOT) -> list[str]:
    """Copy the files of the repository that pages link to; their names."""
    brought = []
    for page in sorted(out.rglob("*.html")):
        for target in read(page).targets:
            found = inside(page, target)
            if found is None or found[0].exists() or not found[0].is_relative_to(out):
                continue
            source = root / found[0].relative_to(out)
            written = source.with_suffix(".md")  # Zensical means X.html where a page says ../X.md
            if source.is_file() or (source.suffix == ".html" and written.is_file()):
                found[0].parent.mkdir(parents=True, exist_ok=True)
                if source.is_file():
                    shutil.copyfile(source, found[0])
                else:
                    found[0].write_text(PLAIN.format(escape(written.read_text(encoding="utf-8"))), encoding="utf-8")
                brought.append(str(found[0].relative_to(out)))
    return brought


def dead_links(out: Path) -> list[str]:
    """One line for each link that leads nowhere."""
    pages = {page: read(page) for page in sorted(out.rglob("*.html"))}
    dead = []
    for page, links in pages.items():
        for target in links.targets:
            found = inside(page, target)
            if found is None or page.name == "404.html":
                continue
            path, name = found
            known = pages.get(path)
            if not path.exists():
                dead.append(f"{page.relative_to(out)}: {target} is not there")
            elif name and known is not None and name not in known.names:
                dead.append(f"{page.relative_to(out)}: {target} names no place of that page")
    return dead


def listed(text: str, docs: Path) -> list[str]:
    """Links of llms.txt that lead nowhere: it is read as it is."""
    return [target for target in re.findall(r"\]\(([^)]+)\)", text) if not (docs / target).is_file()]


def build(program: str = "mkdocs", root: Path = ROOT, out: Path = OUT) -> list[str]:
    """Build everything into `out`; one line for each fault."""
    shutil.rmtree(out, ignore_errors=True)
    command = (
        [sys.executable, "-m", program, "build"]
        if program == "mkdocs"
        else [str(Path(sys.executable).with_name(program)), "build"]
    )
    quiet = ["--strict", "--quiet", "--site-dir", str(out / "docs")] if program == "mkdocs" else []
    done = subprocess.run([*command, *quiet], cwd=root, capture_output=True, text=True)
    if done.returncode:
        return [f"{program}: {line}" for line in (done.stderr + done.stdout).splitlines() if line.strip()][-20:]
    (out / "index.html").write_text(HOME, encoding="utf-8")
    bring_along(out, root)
    missing = listed((root / "docs" / "llms.txt").read_text(encoding="utf-8"), root / "docs")
    api = (out / "docs" / "api.html").read_text(encoding="utf-8")
    lacking = [name for name in ("search_embedded", "from_pretrained", "SearchParams") if name not in api]
    return [*dead_links(out), *(f"llms.txt: {target}" for target in missing), *(f"api.html lacks {name}" for name in lacking)]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m lab.site", description=__doc__)
    parser.add_argument("--with", dest="program", default="mkdocs", choices=("mkdocs", "zensical"))
    faults = build(parser.parse_args().program)
    print(
        "\n".join(faults)
        or f"built in {OUT.relative_to(ROOT)}: open {OUT.relative_to(ROOT)}/index.html; every link leads somewhere"
    )
    raise SystemExit(1 if faults else 0)


if __name__ == "__main__":
    main()
