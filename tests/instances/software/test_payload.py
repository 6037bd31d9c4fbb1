"""Payloads: creation, verification and error messages; version comparison."""

from pathlib import Path

import pytest

from tests.support.payloads import GO_BUILD, program
from winpod.errors import InvalidInput
from winpod.images.pe import PeMachine
from winpod.instances.errors import InvalidPayload
from winpod.instances.planner.versions import Version
from winpod.instances.software.payload import PAYLOAD_FILE, make_payload, read_payload
from winpod.instances.software.programs import PROGRAMS, REQUIRED


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    for name in REQUIRED:
        path = tmp_path / ("kube-node" if name.startswith("kube") else "") / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(program(extra=GO_BUILD if name == "containerd.exe" else name.encode()))
    return tmp_path


def test_payload_is_created_from_a_directory_and_read_back(directory: Path) -> None:
    (directory / "notes.txt").write_text("not for instances")
    (directory / "other.exe").write_bytes(program())
    made = make_payload(directory, "6.0.0")
    assert made == read_payload(directory)
    assert set(made.files) == set(REQUIRED)
    assert (made.version, made.architecture) == ("6.0.0", "amd64")
    assert made.containerd == Version(2, 4, 2)
    kubelet = made.files["kubelet.exe"]
    assert kubelet.program.path == r"C:\k\bin\kubelet.exe"
    assert kubelet.source == directory / "kube-node/kubelet.exe"
    assert kubelet.size == kubelet.source.stat().st_size


def test_log_rotation_follows_the_log_runner(directory: Path) -> None:
    assert not make_payload(directory, "6.0.0").rotates_logs
    runner = directory / "kube-node/kube-log-runner.exe"
    runner.write_bytes(program(extra=bytes((1 << 20) - 320) + b"-log-file-size"))
    assert make_payload(directory, "6.0.0").rotates_logs


def test_creation_is_reproducible(directory: Path) -> None:
    make_payload(directory, "6.0.0")
    first = (directory / PAYLOAD_FILE).read_bytes()
    make_payload(directory, "6.0.0")
    assert (directory / PAYLOAD_FILE).read_bytes() == first


def test_list_is_replaced_atomically(directory: Path) -> None:
    make_payload(directory, "6.0.0")
    first = (directory / PAYLOAD_FILE).read_text()
    with (directory / PAYLOAD_FILE).open() as reading:
        make_payload(directory, "6.0.1")
        assert reading.read() == first


def test_unknown_containerd_version_has_to_be_specified(directory: Path) -> None:
    (directory / "containerd.exe").write_bytes(program())
    with pytest.raises(InvalidPayload, match="does not contain the version of containerd"):
        make_payload(directory, "6.0.0")
    assert make_payload(directory, "6.0.0", "1.7.29").containerd == Version(1, 7, 29)


def test_version_is_found_across_chunk_boundaries(directory: Path) -> None:
    head = program()
    gap = bytes((1 << 20) - len(head) - 20)
    (directory / "containerd.exe").write_bytes(head + gap + GO_BUILD)
    assert make_payload(directory, "6.0.0").containerd == Version(2, 4, 2)


def test_missing_file_is_reported(directory: Path) -> None:
    make_payload(directory, "6.0.0")
    (directory / "crictl.exe").unlink()
    with pytest.raises(InvalidPayload, match=r"lists crictl.exe, and .*crictl.exe does not exist"):
        read_payload(directory)


def test_changed_file_is_reported_with_both_hashes(directory: Path) -> None:
    listed = make_payload(directory, "6.0.0").files["crictl.exe"].sha256
    (directory / "crictl.exe").write_bytes(program(extra=b"changed"))
    with pytest.raises(InvalidPayload) as caught:
        read_payload(directory)
    assert f"and {listed} was expected" in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"#!/bin/sh\n", "is not a Windows program"),
        (program(PeMachine.ARM64), "is for arm64, and the payload for amd64"),
        (program(0x1234), "is for machine 0x1234, and the payload for amd64"),
    ],
)
def test_file_that_windows_cannot_run_is_rejected(
    directory: Path, content: bytes, message: str
) -> None:
    (directory / "crictl.exe").write_bytes(content)
    with pytest.raises(InvalidPayload, match=message):
        make_payload(directory, "6.0.0")


def test_architecture_is_that_of_containerd(directory: Path) -> None:
    for name in REQUIRED:
        (path,) = directory.rglob(name)
        path.write_bytes(program(PeMachine.ARM64, GO_BUILD))
    assert make_payload(directory, "6.0.0").architecture == "arm64"


@pytest.mark.parametrize("name", REQUIRED)
def test_payload_without_a_required_program_is_rejected(directory: Path, name: str) -> None:
    next(directory.rglob(name)).unlink()
    with pytest.raises(InvalidPayload, match=f"no {name}"):
        make_payload(directory, "6.0.0")


SHA = "0" * 64


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "version is required"),
        ("[", "is not TOML"),
        ("version = 6", "version must be text"),
        ('version = "six"', '"six" is not a version'),
        ('version = "6.0.0"\narchitecture = "mips"', 'architecture is "mips"'),
        ('version = "6.0.0"', "containerd is required"),
        ('version = "6.0.0"\nsize = 3', "size is not a setting"),
        (f'[files]\n"calc.exe" = "{SHA}"', "lists calc.exe, which is not a program of"),
        (
            f'[files]\n"../kubelet.exe" = "{SHA}"',
            "lists ../kubelet.exe, which is outside the payload",
        ),
        (f'[files]\n"/kubelet.exe" = "{SHA}"', "lists /kubelet.exe, which is outside the payload"),
        ('[files]\n"kubelet.exe" = "abc"', '"abc", of kubelet.exe, is not a SHA256'),
    ],
)
def test_invalid_list_is_rejected(tmp_path: Path, text: str, message: str) -> None:
    head = 'version = "6.0.0"\ncontainerd = "2.4.2"\n' if text.startswith("[files") else ""
    (tmp_path / PAYLOAD_FILE).write_text(head + text)
    with pytest.raises(InvalidPayload) as caught:
        read_payload(tmp_path)
    assert message in str(caught.value)


def test_duplicate_program_is_rejected(directory: Path) -> None:
    (directory / "again").mkdir()
    (directory / "again/crictl.exe").write_bytes(program())
    with pytest.raises(InvalidPayload, match=r"lists crictl.exe twice"):
        make_payload(directory, "6.0.0")


def test_directory_without_a_list_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(InvalidPayload, match=r"is not a payload: it has no payload\.toml"):
        read_payload(tmp_path)


def test_expected_programs_are_in_the_table() -> None:
    expected = (
        "containerd kubelet kube-proxy csi-proxy windows_exporter crictl win-overlay host-local"
    )
    assert {f"{name}.exe" for name in expected.split()} < set(PROGRAMS)


@pytest.mark.parametrize(
    ("older", "newer"),
    [
        ("1.9.0", "1.10.0"),
        ("v2.0", "2.0.1"),
        ("2.0.0-rc.1", "2.0.0"),
        ("2.0.0-rc.2", "2.0.0-rc.10"),
        ("2.0.0-1", "2.0.0-rc.1"),
        ("2.0.0-rc", "2.0.0-rc.1"),
        ("1.0.0+zzz", "1.0.1+aaa"),
    ],
)
def test_versions_compare_numerically(older: str, newer: str) -> None:
    assert Version.parse(older) < Version.parse(newer)
    assert not Version.parse(newer) < Version.parse(older)


@pytest.mark.parametrize("text", ["", "six", "1", "1.2.3.4", "1.2.x", "1.2.3-"])
def test_invalid_version_is_rejected(text: str) -> None:
    with pytest.raises(InvalidInput, match="is not a version"):
        Version.parse(text)
