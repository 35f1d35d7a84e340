"""`make release` refuses a release that is not ready."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.release import ADDRESSED, PLACEHOLDER, REQUIRED, changelog_faults, fill_address, version_of, wheel_faults

ROOT = Path(__file__).parents[2]
SAID = "What it can do. " * 20
GOOD = [*REQUIRED, "genius_search-0.1.0.dist-info/licenses/LICENSE", "genius_search-0.1.0.dist-info/METADATA"]


def test_the_changelog_has_a_section_of_the_present_version() -> None:
    version = version_of((ROOT / "src" / "genius" / "version.py").read_text(encoding="utf-8"))
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"\n## {version} (" in text


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (f"# Changelog\n\n## Unreleased\n\n## 0.1.0 (2026-11-18)\n{SAID}\n", None),
        (f"# Changelog\n\n## Unreleased\n{SAID}\n", "no section"),
        (f"# Changelog\n\n## 0.1.0\n{SAID}\n", "no section"),  # a date is missing
        ("# Changelog\n\n## 0.1.0 (2026-11-18)\n\nSoon.\n\n## 0.0.9 (2026-01-01)\n", "next to nothing"),
        (f"# Changelog\n\n## Unreleased\n- More.\n\n## 0.1.0 (2026-11-18)\n{SAID}\n", "unreleased entries"),
    ],
)
def test_a_changelog_that_is_not_ready_is_named(text: str, fault: str | None) -> None:
    faults = changelog_faults(text, "0.1.0")
    assert faults == [] if fault is None else fault in faults[0]


def test_a_release_names_its_repository(tmp_path: Path) -> None:
    for name in ADDRESSED:
        text = (ROOT / name).read_text(encoding="utf-8")
        assert PLACEHOLDER in text, f"{name} does not name the repository"
        (tmp_path / name).write_text(text, encoding="utf-8")
    fill_address(tmp_path, "https://code.example.com/genius")
    for name in ADDRESSED:
        text = (tmp_path / name).read_text(encoding="utf-8")
        assert PLACEHOLDER not in text and "https://code.example.com/genius" in text


def test_contents_of_the_wheel() -> None:
    assert wheel_faults(GOOD, 1000, "0.1.0") == []
    assert wheel_faults(GOOD[1:], 1000, "0.1.0") == ["the wheel lacks genius/py.typed"]
    assert "no part of the package" in wheel_faults([*GOOD, "tests/test_x.py"], 1000, "0.1.0")[0]
    assert "version 0.2.0" in wheel_faults(GOOD, 1000, "0.2.0")[0]
    assert "MB" in wheel_faults(GOOD, 10**9, "0.1.0")[0]


def test_the_container_runs_what_the_wheel_has() -> None:
    """The Dockerfile is built from the wheel, runs as a user of its own and serves on a volume with a health check."""
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    stages = [line for line in text.splitlines() if line.startswith("FROM ")]
    assert len(stages) == 2 and "COPY --from=build" in text and "COPY src" not in text
    for word in ("dist/*.whl", "USER genius", "VOLUME /data", "HEALTHCHECK", "/readyz", "STOPSIGNAL SIGTERM"):
        assert word in text, word


@pytest.mark.parametrize("name", ["ci.yml", "wheels.yml"])
def test_workflows_are_yaml_and_run_every_python(name: str) -> None:
    yaml = pytest.importorskip("yaml")
    body = yaml.safe_load((ROOT / ".github" / "workflows" / name).read_text(encoding="utf-8"))
    matrices = [job["strategy"]["matrix"]["python"] for job in body["jobs"].values() if "strategy" in job]
    assert matrices == [["3.11", "3.12", "3.13"]]
    for job in body["jobs"].values():
        assert job["runs-on"] and all("run" in step or "uses" in step for step in job["steps"])
