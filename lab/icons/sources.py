"""Getting the source packages by name, with the ordinary clients: npm, apt and the installed Python packages.

Knows where packages come from and how to open them, not what is in them. Everything lands below one folder and is
fetched once; a half-finished download or unpacking never counts as done.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import shutil
import subprocess
import tarfile
from pathlib import Path

from genius.errors import GeniusError

NPM = {  # name -> version, so that the same benchmark comes out next year
    "@iconify/json": "2.2.535",
    "lucide-static": "1.62.0",
    "@tabler/icons": "3.51.0",
    "@mdi/svg": "7.4.47",
    "@phosphor-icons/core": "2.1.1",
    "emojibase-data": "17.0.0",
    "emojilib": "4.0.3",
    "moby": "1.1.2",
}
_DEBIAN_LICENCES = {
    "wordnet-base": "WordNet licence",
    "dict-gcide": "GPL-3.0-or-later",
    "papirus-icon-theme": "GPL-3.0",
    "numix-icon-theme-circle": "GPL-3.0-or-later",
    "breeze-icon-theme": "LGPL-3.0-or-later",
    "faenza-icon-theme": "GPL-3.0",
}


class Sources:
    """A folder of fetched and unpacked packages."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.provenance: list[dict[str, str]] = []

    def npm(self, name: str) -> Path:
        """The unpacked package folder of an npm package."""
        version = NPM[name]
        flat = name.lstrip("@").replace("/", "-")
        archive = self.folder / "npm" / f"{flat}-{version}.tgz"
        if not archive.exists():
            archive.parent.mkdir(parents=True, exist_ok=True)
            self._run(["npm", "pack", f"{name}@{version}"], archive.parent, f"npm package {name}")
        target = self.folder / "unpacked" / archive.stem
        if not target.exists():
            part = _fresh(target)
            with tarfile.open(archive) as tar:
                tar.extractall(part, filter="data")
            part.rename(target)
        package = target / "package"
        manifest = json.loads((package / "package.json").read_text())
        licence = str(manifest.get("license", ""))
        if name == "moby":
            licence = "public domain (Moby Thesaurus II); package " + licence
        self.provenance.append({"source": f"npm {name}", "version": version, "licence": licence})
        return package

    def debian(self, name: str) -> Path:
        """The root below which a Debian package's files lie."""
        folder = self.folder / "deb"
        found = sorted(folder.glob(f"{name}_*.deb"))
        if not found:
            folder.mkdir(parents=True, exist_ok=True)
            self._run(["apt-get", "download", name], folder, f"Debian package {name}")
            found = sorted(folder.glob(f"{name}_*.deb"))
        if not found:
            raise GeniusError(f"the Debian package {name} could not be downloaded")
        target = self.folder / "unpacked" / name
        if not target.exists():
            part = _fresh(target)
            self._run(["dpkg-deb", "-x", str(found[-1]), str(part)], folder, f"Debian package {name}")
            part.rename(target)
        version = found[-1].name.split("_")[1].replace("%3a", ":")
        self.provenance.append({"source": f"debian {name}", "version": version, "licence": _DEBIAN_LICENCES.get(name, "")})
        return target

    def appstream(self) -> Path:
        """The AppStream catalogue (DEP-11) of the Debian release in use.

        Some machines switch that index off by default; it is asked for on the command line, into lists of our own, so
        that nothing of the system changes.
        """
        home = self.folder / "apt"
        lists = home / "lists"
        found = sorted(lists.glob("*_main_dep11_Components-*.yml*"))
        if not found:
            (lists / "partial").mkdir(parents=True, exist_ok=True)
            options = {
                "Dir::State::lists": str(lists),
                "Dir::Cache": str(home / "cache"),
                "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled": "true",
                "APT::Sandbox::User": "root" if os.geteuid() == 0 else "_apt",
            }
            command = ["apt-get", *(part for k, v in options.items() for part in ("-o", f"{k}={v}")), "update"]
            self._run(command, home, "AppStream catalogue")
            found = sorted(lists.glob("*_main_dep11_Components-*.yml*"))
        if not found:
            raise GeniusError("apt-get fetched no AppStream catalogue: install the package appstream and try again")
        self.provenance.append({"source": "debian AppStream catalogue", "version": found[0].name, "licence": "per component"})
        return found[0]

    def python(self, distribution: str) -> Path:
        """The folder of an installed Python package whose module has the distribution's name."""
        spec = importlib.util.find_spec(distribution)
        if spec is None or not spec.submodule_search_locations:
            raise GeniusError(f"the Python package {distribution} is not installed: pip install {distribution}")
        meta = importlib.metadata.metadata(distribution).json
        licence = str(meta.get("license") or meta.get("license_expression") or "")
        self.provenance.append({"source": f"pypi {distribution}", "version": str(meta["version"]), "licence": licence})
        return Path(next(iter(spec.submodule_search_locations)))

    @staticmethod
    def _run(command: list[str], cwd: Path, what: str) -> None:
        try:
            done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=1800, check=False)
        except FileNotFoundError:
            raise GeniusError(f"cannot fetch the {what}: the program {command[0]} is not installed") from None
        except subprocess.TimeoutExpired:
            raise GeniusError(f"fetching the {what} took more than half an hour; run the command again to resume") from None
        if done.returncode != 0:
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise GeniusError(f"cannot fetch the {what}: {last}")


def _fresh(target: Path) -> Path:
    part = target.with_name(target.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    return part
