"""A payload: what is listed is what is there, and each thing that is not is a sentence."""

import struct
from pathlib import Path

import pytest

from winpod.images.pe import Machine
from winpod.instances.errors import BadPayload
from winpod.instances.rules.versions import Version
from winpod.instances.software.payload import LIST, make_payload, read_payload
from winpod.instances.software.programs import PROGRAMS, REQUIRED
from winpod.windows.errors import InvalidInput

GO_BUILD = b"path\tx\nmod\tgithub.com/containerd/containerd/v2\tv2.4.2\th1:abc=\n"


def program(machine: int = Machine.AMD64, more: bytes = b"") -> bytes:
    """The smallest file that says it is a program for a machine."""
    dos = b"MZ" + bytes(58) + struct.pack("<I", 64)
    return (
        dos + struct.pack("<4sHHIIIHH", b"PE\0\0", machine, 0, 0, 0, 0, 240, 0) + bytes(240) + more
    )


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    for name in REQUIRED:
        path = tmp_path / ("kube-node" if name.startswith("kube") else "") / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(program(more=GO_BUILD if name == "containerd.exe" else name.encode()))
    return tmp_path


def test_a_payload_is_made_of_a_directory_and_read_back(directory: Path) -> None:
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


def test_logs_are_rotated_where_the_program_that_writes_them_can(directory: Path) -> None:
    assert not make_payload(directory, "6.0.0").rotates_logs
    runner = directory / "kube-node/kube-log-runner.exe"
    runner.write_bytes(program(more=bytes((1 << 20) - 320) + b"-log-file-size"))
    assert make_payload(directory, "6.0.0").rotates_logs


def test_making_it_twice_writes_the_same(directory: Path) -> None:
    make_payload(directory, "6.0.0")
    first = (directory / LIST).read_bytes()
    make_payload(directory, "6.0.0")
    assert (directory / LIST).read_bytes() == first


def test_who_reads_the_list_while_it_is_made_anew_reads_one_that_is_whole(directory: Path) -> None:
    make_payload(directory, "6.0.0")
    first = (directory / LIST).read_text()
    with (directory / LIST).open() as reading:
        make_payload(directory, "6.0.1")
        assert reading.read() == first


def test_a_containerd_that_does_not_say_its_version_is_asked_for(directory: Path) -> None:
    (directory / "containerd.exe").write_bytes(program())
    with pytest.raises(BadPayload, match="does not say which version of containerd it is"):
        make_payload(directory, "6.0.0")
    assert make_payload(directory, "6.0.0", "1.7.29").containerd == Version(1, 7, 29)


def test_the_version_is_found_across_the_pieces_a_file_is_read_in(directory: Path) -> None:
    head = program()
    gap = bytes((1 << 20) - len(head) - 20)
    (directory / "containerd.exe").write_bytes(head + gap + GO_BUILD)
    assert make_payload(directory, "6.0.0").containerd == Version(2, 4, 2)


def test_a_file_that_is_missing_is_told(directory: Path) -> None:
    make_payload(directory, "6.0.0")
    (directory / "crictl.exe").unlink()
    with pytest.raises(BadPayload, match=r"lists crictl.exe, and .*crictl.exe is not there"):
        read_payload(directory)


def test_a_file_that_was_changed_is_told_with_both_hashes(directory: Path) -> None:
    listed = make_payload(directory, "6.0.0").files["crictl.exe"].sha256
    (directory / "crictl.exe").write_bytes(program(more=b"changed"))
    with pytest.raises(BadPayload) as caught:
        read_payload(directory)
    assert f"and {listed} was expected" in str(caught.value)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"#!/bin/sh\n", "is no program of Windows"),
        (program(Machine.ARM64), "is for arm64, and the payload for amd64"),
        (program(0x1234), "is for machine 0x1234, and the payload for amd64"),
    ],
)
def test_a_file_that_windows_would_not_run_is_told(
    directory: Path, content: bytes, sentence: str
) -> None:
    (directory / "crictl.exe").write_bytes(content)
    with pytest.raises(BadPayload, match=sentence):
        make_payload(directory, "6.0.0")


def test_a_payload_for_another_architecture_is_that_of_its_containerd(directory: Path) -> None:
    for name in REQUIRED:
        (path,) = directory.rglob(name)
        path.write_bytes(program(Machine.ARM64, GO_BUILD))
    assert make_payload(directory, "6.0.0").architecture == "arm64"


@pytest.mark.parametrize("name", REQUIRED)
def test_a_payload_without_what_every_node_needs_is_refused(directory: Path, name: str) -> None:
    next(directory.rglob(name)).unlink()
    with pytest.raises(BadPayload, match=f"no {name}"):
        make_payload(directory, "6.0.0")


SHA = "0" * 64


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "version is required"),
        ("[", "is not TOML"),
        ("version = 6", "version must be text"),
        ('version = "six"', '"six" is not a version'),
        ('version = "6.0.0"\narchitecture = "mips"', 'architecture is "mips"'),
        ('version = "6.0.0"', "containerd is required"),
        ('version = "6.0.0"\nsize = 3', "size is not a setting"),
        (f'[files]\n"calc.exe" = "{SHA}"', "lists calc.exe, which is no program that goes"),
        (f'[files]\n"../kubelet.exe" = "{SHA}"', "lists ../kubelet.exe, which is outside of it"),
        (f'[files]\n"/kubelet.exe" = "{SHA}"', "lists /kubelet.exe, which is outside of it"),
        ('[files]\n"kubelet.exe" = "abc"', '"abc", of kubelet.exe, is no SHA256'),
    ],
)
def test_a_list_that_cannot_be_followed_is_a_sentence(
    tmp_path: Path, text: str, sentence: str
) -> None:
    head = 'version = "6.0.0"\ncontainerd = "2.4.2"\n' if text.startswith("[files") else ""
    (tmp_path / LIST).write_text(head + text)
    with pytest.raises(BadPayload) as caught:
        read_payload(tmp_path)
    assert sentence in str(caught.value)


def test_one_program_twice_is_refused(directory: Path) -> None:
    (directory / "again").mkdir()
    (directory / "again/crictl.exe").write_bytes(program())
    with pytest.raises(BadPayload, match=r"lists crictl.exe twice"):
        make_payload(directory, "6.0.0")


def test_a_directory_without_a_list_is_no_payload(tmp_path: Path) -> None:
    with pytest.raises(BadPayload, match=r"is no payload: it has no payload\.toml"):
        read_payload(tmp_path)


def test_every_program_of_the_issue_is_known() -> None:
    wanted = (
        "containerd kubelet kube-proxy csi-proxy windows_exporter crictl win-overlay host-local"
    )
    assert {f"{name}.exe" for name in wanted.split()} < set(PROGRAMS)


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
def test_versions_are_compared_as_numbers(older: str, newer: str) -> None:
    assert Version.parse(older) < Version.parse(newer)
    assert not Version.parse(newer) < Version.parse(older)


@pytest.mark.parametrize("text", ["", "six", "1", "1.2.3.4", "1.2.x", "1.2.3-"])
def test_what_is_no_version_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="is not a version"):
        Version.parse(text)
