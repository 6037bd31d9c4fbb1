import pytest
from hypothesis import given
from hypothesis import strategies as st

from winpod.errors import InvalidInput
from winpod.windows.paths import (
    casefold_name,
    container_path,
    host_path,
    invalid_name_reason,
    is_device_name,
    mount_destination,
)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("/data", r"C:\data"),
        ("/var/run/secrets/", r"C:\var\run\secrets"),
        (r"\data", r"C:\data"),
        ("data/x", r"C:\data\x"),
        ("C:/app/./a/../b", r"C:\app\b"),
        (r"d:\x\\y", r"d:\x\y"),
        ("/../../x", r"C:\x"),
        ("//data", r"C:\data"),
        ("C:/", "C:\\"),
        (r"\\.\pipe\docker_engine", r"\\.\pipe\docker_engine"),
        (r"\\.\PIPE\a/b", r"\\.\PIPE\a/b"),
        (r"\\server\share\x", r"\\server\share\x"),
    ],
)
def test_container_paths_match_containerd(written: str, meant: str) -> None:
    assert container_path(written) == meant


@pytest.mark.parametrize(
    ("named", "is_"),
    [
        ("/var/log/pods/x", "/var/log/pods/x"),
        (r"C:\var\log\pods\x", "/var/log/pods/x"),
        (r"c:/var\log/..\lib", "/var/lib"),
        (r"Z:\tmp\x", "/tmp/x"),
        ("z:", "/"),
        (r"\\.\pipe\x", r"\\.\pipe\x"),
    ],
)
def test_windows_client_paths_are_mapped_to_the_host(named: str, is_: str) -> None:
    assert host_path(named) == is_


def test_unknown_drives_are_rejected() -> None:
    with pytest.raises(InvalidInput, match="does not have"):
        host_path(r"D:\data")


@pytest.mark.parametrize("path", ["C:", "c:", "C:\\", "C:/", "/", "\\", "/x/.."])
def test_a_mount_over_the_c_drive_is_refused(path: str) -> None:
    with pytest.raises(InvalidInput, match="destination path can not be C drive"):
        mount_destination(path)


def test_other_drives_and_directories_may_be_mounts() -> None:
    assert mount_destination("E:") == "E:"
    assert mount_destination("/data") == r"C:\data"


def test_an_empty_path_is_refused() -> None:
    with pytest.raises(InvalidInput, match="empty"):
        container_path("")


@given(st.text(alphabet='abC:./\\ "', min_size=1))
def test_normalising_twice_changes_nothing(path: str) -> None:
    once = container_path(path)
    assert container_path(once) == once


@pytest.mark.parametrize(
    "name",
    [
        "CON",
        "nul",
        "Aux.txt",
        "COM1",
        "com9.tar.gz",
        "LPT0",
        "COM¹",
        "lpt³.x",
        "CONIN$",
        "conout$.log",
    ],
)
def test_device_names_are_rejected(name: str) -> None:
    for spelling in (name, f"{name} .txt"):
        assert is_device_name(spelling)
        assert "device" in invalid_name_reason(spelling)


@pytest.mark.parametrize("name", ["CONSOLE", "COM10", "COM", "nulls", "x.con", "COM⁴", "LPTA"])
def test_names_that_only_begin_like_devices_are_fine(name: str) -> None:
    assert not invalid_name_reason(name)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("", "not a file name"),
        ("..", "not a file name"),
        ("a:b", "':'"),
        ("a?", "'?'"),
        ("a\\b", "character"),
        ("tab\t", "character"),
        ("end.", "dot or a space"),
        ("end ", "dot or a space"),
        ("x" * 256, "255"),
        ("😀" * 128, "255"),
    ],
)
def test_illegal_names_say_why(name: str, says: str) -> None:
    assert says in invalid_name_reason(name)


def test_legal_names_have_no_problem() -> None:
    for name in ("a", ".gitignore", "a b", "ß", "日本語.txt", "x" * 255, "😀" * 127):
        assert not invalid_name_reason(name)


def test_names_compare_as_on_ntfs() -> None:
    assert casefold_name("ReadMe.TXT") == casefold_name("readme.txt")
    assert casefold_name("É") == casefold_name("é")
    assert casefold_name("straße") != casefold_name("STRASSE")
