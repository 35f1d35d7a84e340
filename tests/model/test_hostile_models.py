"""Files of weights and models from strangers: a part of the cases; all of them: `lab/trust/hostile_models.py`."""

from __future__ import annotations

import contextlib
import sys
import warnings
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

sys.path.insert(0, str(Path(__file__).parents[1] / "helpers"))

import hostile_models
from hostile_archives import PAYLOADS, Case, torchscript

from genius.cli import app
from genius.errors import GeniusError
from genius.plain_pickle import Refused, Unknown, load
from genius.torch_file import read_torch_file

SLOW = ("gigabyte", "90 MB", "hundred thousand", "400,000")  # to write, not to refuse
QUICK = [case for case in hostile_models.all_cases() if not any(word in case.name for word in SLOW)]
ACTING = [
    case
    for case in QUICK
    if any(word in case.name for word in ("TorchScript", "tar", "outside", "acts", "of its own", *PAYLOADS))
]
CASES = [*ACTING, *(case for number, case in enumerate(QUICK) if case not in ACTING and number % 3 == 0)]


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_nothing_acts_and_every_refusal_is_one_line(case: Case, tmp_path: Path) -> None:
    folder, mark = tmp_path / "in", tmp_path / "MARK"
    folder.mkdir()
    path = case.write(folder, mark)
    mark.unlink(missing_ok=True)
    if case.harmless:
        hostile_models.go_through(case.door, path)
    else:
        with pytest.raises(GeniusError) as caught:
            hostile_models.go_through(case.door, path)
        assert "\n" not in str(caught.value) and len(str(caught.value)) < 800
    assert not mark.exists()


def test_the_script_would_act_if_torch_were_asked(tmp_path: Path) -> None:
    """Without this the test above would prove nothing."""
    mark = tmp_path / "MARK"
    path = torchscript(tmp_path, mark)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.load(path, weights_only=False)
    assert mark.exists()


def test_the_command_line_refuses_programs(tmp_path: Path) -> None:
    mark = tmp_path / "MARK"
    path = str(torchscript(tmp_path, mark))
    result = CliRunner().invoke(
        app, ["convert", "official", "--quantizer", path, "--generator", path, "-o", str(tmp_path / "out")]
    )
    assert result.exit_code == 2 and "TorchScript" in result.stderr and result.stderr.count("\n") == 1
    assert not mark.exists() and not (tmp_path / "out").exists()


def test_what_torch_saves_is_read_as_torch_reads_it(tmp_path: Path) -> None:
    shared = torch.randn(6)
    content = {
        "a": torch.randn(3, 4),
        "turned": torch.randn(4, 3).T,
        "part": torch.arange(10)[2:8:2],
        "bool": torch.tensor([True, False]),
        "half": torch.randn(3).half(),
        "brain": torch.randn(3).bfloat16(),
        "nothing": torch.empty(0, 3),
        "scalar": torch.tensor(3.5),
        "parameter": torch.nn.Parameter(torch.randn(2)),
        "shared": [shared, shared.view(2, 3)],
        "plain": (1, -5, 2**40, 1.5, None, True, "ü", {"k": [()]}),
    }
    torch.save(content, tmp_path / "f.pt")
    for mapped in (True, False):
        found = read_torch_file(tmp_path / "f.pt", mapped=mapped)
        assert found.keys() == content.keys() and found["plain"] == content["plain"]
        for name, value in content.items():
            if isinstance(value, torch.Tensor):
                assert torch.equal(found[name], value.detach()) and found[name].dtype == value.dtype, name
        assert torch.equal(found["shared"][1], shared.view(2, 3))
    assert read_torch_file(tmp_path / "f.pt", lambda whole: {"a": whole["a"]}).keys() == {"a"}


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.lists(
        st.one_of(
            st.integers(0, 255).map(lambda n: bytes([n])),
            st.sampled_from(
                [
                    b"cos\nsystem\n",
                    b"X\x01\x00\x00\x00a",
                    b"K\x01",
                    b"}",
                    b"]",
                    b"(",
                    b"t",
                    b"R",
                    b"q\x00",
                    b"h\x00",
                    b"s",
                    b"b",
                    b"Q",
                ]
            ),
        ),
        max_size=60,
    )
)
def test_any_bytes_are_plain_values_or_refused(parts: list[bytes]) -> None:
    """No sequence of operations raises anything else, and no call is ever made but by name."""
    calls: list[object] = []
    with contextlib.suppress(Refused):
        load(b"".join(parts) + b".", lambda name, _: calls.append(name) or Unknown(), lambda _: None, 1000)  # type: ignore[func-returns-value]
    assert all(type(name).__name__ == "Name" for name in calls)
