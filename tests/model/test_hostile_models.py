"""Untrusted files of weights and models: a part of the cases; all of them: `lab/trust/hostile_models.py`."""

from __future__ import annotations

import warnings
from pathlib import Path

import hostile_models
import pytest
import torch
from hostile_archives import FOUR, PAYLOADS, Case, archive, number, op, state, tensor, torchscript, word
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from genius.cli import app
from genius.errors import GeniusError
from genius.torch_file import Placeholder, read_torch_file

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
    found = read_torch_file(tmp_path / "f.pt")
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
def test_any_bytes_are_plain_values_or_refused(tmp_path_factory: pytest.TempPathFactory, parts: list[bytes]) -> None:
    """No sequence of pickle operations raises anything but a GeniusError of one line."""
    path = tmp_path_factory.mktemp("pickles") / "f.pth"
    try:
        read_torch_file(archive(path, b"\x80\x02" + b"".join(parts) + b".", FOUR))
    except GeniusError as error:
        assert "\n" not in str(error)


class Settings:
    """A class of the file's author, with a state."""

    def __init__(self) -> None:
        self.rate = 0.1


def test_unknown_classes_become_placeholders(tmp_path: Path) -> None:
    torch.save({"a": torch.ones(2), "config": Settings()}, tmp_path / "f.pt")
    found = read_torch_file(tmp_path / "f.pt")
    assert torch.equal(found["a"], torch.ones(2))
    assert type(found["config"]) is Placeholder and not vars(found["config"])


def call(name: str, *arguments: bytes) -> bytes:
    return b"c" + name.replace(".", "\n", 1).encode() + b"\n(" + b"".join(arguments) + b"tR"


REFUSED = {
    "bytearray": (op(call("builtins.bytearray", number(2**40))), "it calls builtins.bytearray"),
    "bytearray of Python 2": (op(call("__builtin__.bytearray", number(2**40))), "it calls builtins.bytearray"),
    "storage": (op(call("torch.FloatStorage", number(2**40))), "it calls torch.FloatStorage"),
    "encode": (op(call("_codecs.encode", word("x"), word("zlib"))), "it calls _codecs.encode"),
    "counter": (op(call("collections.Counter", word("x"))), "it calls collections.Counter"),
    "tuple as a key": (op(b"})\x85Ns"), "a key of a dictionary"),
    "large integer as a key": (op(b"}", number(2**61 - 1), b"Ns"), "a key of a dictionary"),
    "a key from the memo": (op(b"])\x85q\x01a}h\x01Ns"), "a key of a dictionary"),
    "a dictionary of pairs": (op(call("collections.OrderedDict", b"]")), "makes a dictionary"),
    "system": (op(call("posix.system", word("true"))), "acts on the system"),
    "huge tensor": (state(tensor(shape=(4_000_000_000,), stride=(0,))), "its tensors claim 16,000,000,000 bytes"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_torch_would_do_without_bound_is_refused_before(tmp_path: Path, name: str) -> None:
    body, message = REFUSED[name]
    with pytest.raises(GeniusError, match=message):
        read_torch_file(archive(tmp_path / "f.pth", body, FOUR))


def test_a_damaged_number_is_noticed(tmp_path: Path) -> None:
    path = archive(tmp_path / "f.pth", state(tensor()), FOUR)
    assert torch.equal(read_torch_file(path)["model"]["t0"], torch.arange(4.0))
    path.write_bytes(path.read_bytes().replace(FOUR["0"], bytes(16), 1))
    with pytest.raises(GeniusError, match="checksum"):
        read_torch_file(path)
