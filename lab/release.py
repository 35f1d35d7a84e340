"""Checks a release before it is tagged: version, changelog, wheel contents, and an installation in a fresh environment.

    make release REPOSITORY=URL  (python -m lab.release [--repository URL] [--quick])

Builds `dist/` with the wheel and the source archive. Writes no tag and uploads nothing. `--quick` leaves the
installation out. The address of the repository takes the place of a placeholder in what is built.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

from lab import ROOT

DIST = ROOT / "dist"
REQUIRED = (  # in the wheel
    "genius/py.typed",
    "genius/bundled/instructions/reader.safetensors",
    "genius/bundled/instructions/words.json",
    "genius/bundled/mini/config.json",
    "genius/bundled/mini/model.safetensors",
    "genius/serve/static/index.html",
    "genius/train/configs/default.toml",
    "genius/train/configs/paper.toml",
)
FOREIGN = re.compile(r"^(tests|lab|docs|\.github)/|\.pyc$|/__pycache__/|\.genius/")
PLACEHOLDER = "https://example.org/genius-search"
ADDRESSED = ("pyproject.toml", "README.md")  # files that name the repository
LARGEST_WHEEL = 40 << 20  # bytes
LARGEST_ARCHIVE = 60 << 20
TRIAL = (  # commands of the installed package, in an empty folder
    ("--version",),
    ("index", "rows.csv", "-o", "rows.genius"),
    ("search", "rows.genius", "a red bicycle", "--json"),
    ("check", "rows.genius"),
    ("train", "--list"),
)


def version_of(text: str) -> str:
    """The version that `src/genius/version.py` states."""
    found = re.search(r'^__version__ = "([^"]+)"$', text, re.MULTILINE)
    if found is None:
        raise SystemExit("src/genius/version.py states no version")
    return found[1]


def changelog_faults(text: str, version: str) -> list[str]:
    """What is wrong with the changelog for this version: one line each."""
    heading = re.search(rf"^## {re.escape(version)} \((\d{{4}}-\d\d-\d\d)\)$", text, re.MULTILINE)
    if heading is None:
        return [f"CHANGELOG.md has no section '## {version} (YYYY-MM-DD)'"]
    faults = []
    section = text[heading.end() :].partition("\n## ")[0]
    if len(section.strip()) < 200:
        faults.append(f"the section {version} of CHANGELOG.md says next to nothing")
    before = text[: heading.start()].partition("## Unreleased")[2]
    if before.strip():
        faults.append(f"CHANGELOG.md has unreleased entries above {version}: they belong into it, or into the next version")
    return faults


def wheel_faults(names: list[str], size: int, version: str) -> list[str]:
    """What is wrong with the contents of the wheel."""
    faults = [f"the wheel lacks {name}" for name in REQUIRED if name not in names]
    faults += [f"the wheel holds {name}, which is no part of the package" for name in names if FOREIGN.search(name)]
    if not any(name.endswith(".dist-info/licenses/LICENSE") for name in names):
        faults.append("the wheel lacks the licence")
    if not any(name.startswith(f"genius_search-{version}.dist-info/") for name in names):
        faults.append(f"the wheel is not of version {version}")
    if size > LARGEST_WHEEL:
        faults.append(f"the wheel has {size / 1e6:.0f} MB, expected at most {LARGEST_WHEEL / 1e6:.0f}")
    return faults


def fill_address(folder: Path, repository: str) -> None:
    """Write the address of the repository in place of the placeholder."""
    for name in ADDRESSED:
        text = (folder / name).read_text(encoding="utf-8")
        (folder / name).write_text(text.replace(PLACEHOLDER, repository), encoding="utf-8")


def build(repository: str) -> tuple[Path, Path]:
    """The wheel and the source archive, in `dist/`."""
    shutil.rmtree(DIST, ignore_errors=True)
    DIST.mkdir()
    with tempfile.TemporaryDirectory() as place:
        clean = Path(place) / "source"  # as committed: no caches, no build folders of the working tree
        files = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
        for name in filter(None, files.split("\0")):
            if (ROOT / name).is_file():
                (clean / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, clean / name)
        fill_address(clean, repository)
        for part in ("sdist", "wheel"):  # one process each: setuptools leaves settings of the first behind
            script = f"import sys; from setuptools import build_meta; build_meta.build_{part}(sys.argv[1])"
            subprocess.run([sys.executable, "-c", script, str(DIST)], cwd=clean, check=True, stdout=subprocess.DEVNULL)
    return next(DIST.glob("*.whl")), next(DIST.glob("*.tar.gz"))


def install_faults(wheel: Path) -> list[str]:
    """Install the wheel into a fresh environment and run some of its commands."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
        pip = [str(folder / "venv" / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        done = subprocess.run([*pip, "-c", str(ROOT / "constraints.txt"), f"{wheel}[serve]"], capture_output=True, text=True)
        if done.returncode:
            return [f"pip install {wheel.name}[serve] failed: {done.stderr.strip().splitlines()[-1]}"]
        (folder / "rows.csv").write_text("id,text\n1,a red bicycle\n2,a blue boat\n", encoding="utf-8")
        for words in TRIAL:
            run = subprocess.run(
                [folder / "venv" / "bin" / "genius", *words], cwd=folder, capture_output=True, text=True, env={"HOME": place}
            )
            if run.returncode:
                last = (run.stderr.strip() or run.stdout.strip()).splitlines()[-1:]
                return [f"the installed command failed: genius {' '.join(words)}: {' '.join(last)}"]
    return []


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m lab.release", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="leave the installation out")
    parser.add_argument("--repository", default=PLACEHOLDER, help="address of the repository, for README and package metadata")
    given = parser.parse_args()
    version = version_of((ROOT / "src" / "genius" / "version.py").read_text(encoding="utf-8"))
    faults = changelog_faults((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), version)
    wheel, archive = build(given.repository)
    with zipfile.ZipFile(wheel) as opened:
        faults += wheel_faults(opened.namelist(), wheel.stat().st_size, version)
    with tarfile.open(archive) as opened_archive:
        if not any(name.endswith("/src/genius/version.py") for name in opened_archive.getnames()):
            faults.append("the source archive lacks the package")
    if archive.stat().st_size > LARGEST_ARCHIVE:
        faults.append(f"the source archive has {archive.stat().st_size / 1e6:.0f} MB")
    if not faults and not given.quick:
        faults = install_faults(wheel)
    for fault in faults:
        print(fault)
    if faults:
        raise SystemExit(1)
    if given.repository == PLACEHOLDER:
        print("the address of the repository is still a placeholder: make release REPOSITORY=URL")
    print(f"{wheel.name} ({wheel.stat().st_size / 1e6:.1f} MB) and {archive.name} are ready: git tag -a v{version}")


if __name__ == "__main__":
    main()
