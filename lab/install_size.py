"""What an installation takes: bytes on disk, by package, and the largest resident memory of one `genius search`.

    python -m venv ENV && ENV/bin/pip install -c constraints.txt dist/genius_search-VERSION-py3-none-any.whl
    python -m lab.install_size ENV INDEX [-o lab/results/install_size.json]

ENV is a fresh environment that holds GENIUS and nothing else; INDEX is that of `genius demo`.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

from lab import current_commit


def megabytes(folder: Path) -> int:
    """Size of all files below a folder, compiled Python included; links are not followed."""
    return round(sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink()) / 1e6)


def packages(environment: Path) -> dict[str, float]:
    """Megabytes of each package of an environment, largest first; compiled Python and shared libraries included."""
    [folder] = environment.glob("lib/python*/site-packages")
    sizes = {}
    for found in metadata.distributions(path=[str(folder)]):
        paths = {Path(str(found.locate_file(file))).resolve() for file in found.files or ()}
        sizes[found.metadata["Name"]] = round(sum(path.stat().st_size for path in paths if path.is_file()) / 1e6, 1)
    return dict(sorted(sizes.items(), key=lambda entry: -entry[1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("environment", type=Path)
    parser.add_argument("index", type=Path)
    parser.add_argument("-o", "--output", type=Path, default=Path("lab/results/install_size.json"))
    given = parser.parse_args()
    program = given.environment / "bin" / "genius"
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run([program, "search", given.index, "a sad face"], check=True, capture_output=True, env=clean)
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss  # kB; the only child so far
    sizes = packages(given.environment)
    body = {
        "command": "python -m lab.install_size ENV INDEX",
        "commit": current_commit(),
        "date": datetime.now(UTC).date().isoformat(),
        "device": "cpu",
        "processors": os.cpu_count(),
        "installed_mb": megabytes(given.environment),
        "with_torch": "torch" in sizes,
        "packages": len(sizes),
        "search_peak_mb": round(peak * 1024 / 1e6),
        "mb_by_package": sizes,
    }
    given.output.write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(body, indent=1))


if __name__ == "__main__":
    main()
