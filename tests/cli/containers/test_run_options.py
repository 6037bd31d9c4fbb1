"""Parsing of `winpod run` options."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from winpod.cli.containers.exec import wrap_command
from winpod.cli.containers.run_options import (
    check_address,
    check_hostname,
    check_name,
    describe_ports,
    hostname_for,
    parse_annotation,
    parse_cpus,
    parse_env_file,
    parse_memory,
    parse_mount,
    parse_port,
    parse_variable,
)
from winpod.cli.containers.terminal import to_shell_exit_code
from winpod.cli.main import main
from winpod.cri.proto import api_pb2 as api
from winpod.errors import InvalidInput
from winpod.windows.handlers import VM_MEMORY_MB, VM_PHYSICALLY_BACKED


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("", 0),
        ("512m", 512 << 20),
        ("2G", 2 << 30),
        ("100b", 100),
        ("512Mi", 512 << 20),
        ("1.5Gi", 3 << 29),
        ("1048576", 1 << 20),
    ],
)
def test_memory_accepts_docker_and_kubernetes_units(text: str, size: int) -> None:
    assert parse_memory(text) == size


@pytest.mark.parametrize(
    ("text", "count", "maximum"), [("", 0, 0), ("2", 2, 0), ("0.5", 0, 1250), ("1.5", 0, 3750)]
)
def test_whole_cpus_are_a_count_and_fractions_a_share(text: str, count: int, maximum: int) -> None:
    assert parse_cpus(text, host_cpus=4) == (count, maximum)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("8080:80", "8080->80/tcp"),
        ("127.0.0.1:8080:80", "127.0.0.1:8080->80/tcp"),
        ("53:53/udp", "53->53/udp"),
        ("[::1]:8080:80", "::1:8080->80/tcp"),
    ],
)
def test_ports_are_parsed_and_formatted(text: str, shown: str) -> None:
    assert describe_ports([parse_port(text)]) == shown


@pytest.mark.parametrize(
    ("text", "source", "destination", "readonly"),
    [
        ("/data:C:\\data", "/data", "C:\\data", False),
        ("/data:C:\\data:ro", "/data", "C:\\data", True),
        ("/data:C:\\data:rw", "/data", "C:\\data", False),
        (r"/run/x.sock:\\.\pipe\x", "/run/x.sock", r"\\.\pipe\x", False),
        (r"\\.\pipe\a:\\.\pipe\b", r"\\.\pipe\a", r"\\.\pipe\b", False),
    ],
)
def test_mounts_are_parsed(text: str, source: str, destination: str, readonly: bool) -> None:
    mount = parse_mount(text)
    assert (mount.host_path, mount.container_path, mount.readonly) == (
        source,
        destination,
        readonly,
    )


def test_variable_without_value_is_copied_from_the_environment() -> None:
    assert parse_variable("A", {"A": "1"}) == api.KeyValue(key="A", value=b"1")
    assert parse_variable("A=x=y", {}) == api.KeyValue(key="A", value=b"x=y")
    with pytest.raises(InvalidInput, match='"A" is not an environment variable'):
        parse_variable("A", {})


def test_env_file_may_contain_comments() -> None:
    pairs = parse_env_file("# one\n\nA=1\n  B=two words\nC\n", {"C": "3"})
    assert [(pair.key, pair.value) for pair in pairs] == [
        ("A", b"1"),
        ("B", b"two words"),
        ("C", b"3"),
    ]


@pytest.mark.parametrize(
    "refused",
    [
        lambda: parse_port("80"),
        lambda: parse_port("0:80"),
        lambda: parse_port("8080:70000"),
        lambda: parse_mount("C:\\x"),
        lambda: parse_memory("-1m"),
        lambda: parse_cpus("none", 2),
        lambda: check_name("-x"),
        lambda: check_name("a/b"),
        lambda: check_hostname("bad_name"),
        lambda: check_hostname("-box"),
        lambda: check_hostname("b" * 64),
        lambda: check_address("dns.example"),
        lambda: parse_annotation("key"),
        lambda: parse_annotation(f"{VM_MEMORY_MB}=lots"),
        lambda: parse_annotation(f"{VM_MEMORY_MB}=-5"),
        lambda: parse_annotation(f"{VM_PHYSICALLY_BACKED}=maybe"),
    ],
)
def test_invalid_options_are_rejected(refused: Callable[[], object]) -> None:
    with pytest.raises(InvalidInput):
        refused()


def test_hostname_and_dns_server_are_passed_unchanged() -> None:
    assert check_hostname("Box-1") == "Box-1"
    assert check_address("fd00::1") == "fd00::1"


def test_hostname_is_derived_from_container_name() -> None:
    assert hostname_for("My_web.1") == "my-web-1"


@pytest.mark.parametrize(
    ("code", "seen"), [(0, 0), (7, 7), (256, 1), (-1073741819, 5), (0xC000013A, 0x3A)]
)
def test_nonzero_exit_code_is_never_reduced_to_zero(code: int, seen: int) -> None:
    assert to_shell_exit_code(code) == seen


def test_exec_applies_env_workdir_and_detach_through_cmd() -> None:
    assert wrap_command(["a", "b c"], {}, "", False) == ["a", "b c"]
    variables = ["set", "X=1&&", "set", "Y=two words", "&&"]
    expected = ["cmd", "/c", *variables, "cd", "/d", "C:\\My dir", "&&", "a"]
    assert wrap_command(["a"], {"X": "1", "Y": "two words"}, "C:\\My dir", False) == expected
    assert wrap_command(["a"], {}, "", True) == ["cmd", "/c", "start", "", "/b", "a"]
    for bad in ('say "x"', "a&b", "a>b"):
        with pytest.raises(InvalidInput, match=r"cmd\.exe"):
            wrap_command([bad], {}, "C:\\", False)


def test_unreadable_env_file_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    binary = tmp_path / "binary"
    binary.write_bytes(b"A=\xff\n")
    for file, message in (
        (tmp_path / "none", "cannot be read: No such file or directory."),
        (binary, "is not UTF-8 text. Write one NAME=value per line."),
    ):
        arguments = ["winpod", "run", "--root", str(tmp_path), "--env-file", str(file), "image"]
        monkeypatch.setattr(sys, "argv", arguments)
        with pytest.raises(SystemExit):
            main()
        assert f"{file} {message}" in capsys.readouterr().err
