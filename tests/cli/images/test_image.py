"""`winpod image`: output and exit codes."""

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import registries
from winpod.cli.main import main
from winpod.cli.options import human_size

home = registries.home
registry = registries.registry
basic_registry = registries.basic_registry


class Result:
    def __init__(self, status: int, out: str, err: str) -> None:
        self.status, self.out, self.err = status, out, err


class Winpod:
    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch = monkeypatch
        self._capsys = capsys

    def __call__(self, *arguments: object) -> Result:
        self._monkeypatch.setattr(sys, "argv", ["winpod", "image", *map(str, arguments)])
        with pytest.raises(SystemExit) as caught:
            main()
        status = caught.value.code
        assert isinstance(status, int | None)
        return Result(status or 0, *self._capsys.readouterr())


@pytest.fixture
def winpod(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Winpod:
    return Winpod(monkeypatch, capsys)


@pytest.fixture
def c_drive(tmp_path: Path) -> Path:
    (tmp_path / "c" / "app").mkdir(parents=True)
    (tmp_path / "c" / "app" / "app.exe").write_bytes(b"MZ")
    return tmp_path / "c"


BUILDS = ("--os-version", "10.0.17763.805", "--os-version", "10.0.20348.2113")


def test_pack_writes_a_layout_and_show_reads_it(
    winpod: Winpod, c_drive: Path, tmp_path: Path
) -> None:
    target = f"oci:{tmp_path}/layout:team/app:1"
    packed = winpod("pack", c_drive, "-t", target, *BUILDS)
    assert packed.status == 0
    assert packed.out.startswith(f"{target}  sha256:")
    assert packed.err == ""
    shown = winpod("show", target)
    assert shown.status == 0
    heading, columns, *rows = shown.out.splitlines()
    assert heading.startswith(f"{target} (index sha256:")
    assert columns.split() == ["digest", "os", "architecture", "variant", "build", "size"]
    assert [row.split()[1:5] for row in rows] == [
        ["windows", "amd64", "10.0.17763.805", "(Windows"],
        ["windows", "amd64", "10.0.20348.2113", "(Windows"],
    ]
    assert all(len(row.split()[0]) == len("sha256:") + 64 for row in rows)
    assert "(Windows Server 2019)" in rows[0]
    assert "(Windows Server 2022)" in rows[1]
    assert {row.split()[-1] for row in rows} <= {"B", "kB"}


def test_pack_pushes_to_and_show_reads_from_a_registry(
    winpod: Winpod, c_drive: Path, tmp_path: Path, registry: str
) -> None:
    name, layout = f"{registry}/packed/app:1", f"oci:{tmp_path}/layout:app:1"
    packed = winpod("pack", c_drive, "-t", name, "-t", layout, *BUILDS, "-o", "json")
    made = json.loads(packed.out)
    assert made["references"] == [name, layout]
    online = json.loads(winpod("show", name, "-o", "json").out)
    local = json.loads(winpod("show", layout, "-o", "json").out)
    offline = json.loads(winpod("show", name, "--offline", "-o", "json").out)
    assert online == offline
    assert {made["digest"]} == {online["digest"], local["digest"]}
    assert online["manifests"] == local["manifests"]
    first, second = online["manifests"]
    assert first["product"] == "Windows Server 2019"
    assert second == {
        "digest": made["manifests"][1]["digest"],
        "os": "windows",
        "architecture": "amd64",
        "variant": "",
        "osVersion": "10.0.20348.2113",
        "product": "Windows Server 2022",
        "size": second["size"],
    }


def test_default_build_is_the_default_host(winpod: Winpod, c_drive: Path, tmp_path: Path) -> None:
    target = f"oci:{tmp_path}/layout"
    winpod("pack", c_drive, "-t", target)
    shown = json.loads(winpod("show", target, "-o", "json").out)
    assert not shown["index"]
    assert shown["manifests"][0]["osVersion"] == "10.0.20348"
    assert winpod("show", target).out.startswith(f"{target} (one manifest)")


def test_packing_twice_gives_the_same_digest(winpod: Winpod, c_drive: Path, tmp_path: Path) -> None:
    options = ("--entrypoint", r"C:\app\app.exe", "-e", "A=1", "-l", "b=2", "-p", "80", *BUILDS)
    first = winpod("pack", c_drive, "-t", f"oci:{tmp_path}/one:a", *options, "-o", "json")
    (c_drive / "app" / "app.exe").touch()
    moved = c_drive.rename(tmp_path / "elsewhere")
    second = winpod("pack", moved, "-t", f"oci:{tmp_path}/two:a", *options, "-o", "json")
    assert json.loads(first.out)["digest"] == json.loads(second.out)["digest"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("show", "Bad:name"), "lowercase"),
        (("show", "127.0.0.1:1/app"), "cannot be reached"),
        (("show", "nginx", "--offline"), "offline"),
        (("show", "oci:nowhere:x"), "does not exist"),
        (("pack", "nowhere", "-t", "oci:x:y"), "does not exist"),
        (("pack", "c", "-t", "Bad"), "lowercase"),
        (("pack", "c", "-t", "app@sha256:" + "0" * 64), "digest"),
        (("pack", "c", "-t", "oci-archive:x.tar"), "read-only"),
        (("pack", "c", "-t", "oci:c/layout:x"), "packed into itself"),
        (("pack", "c", "-t", "oci:x:y", "--os-version", "95"), "not a Windows build"),
        (("pack", "c", "-t", "oci:x:y", "--os-version", "2019", "--os-version", "1809"), "twice"),
        (("pack", "c", "-t", "oci:x:y", "-e", "=1"), "environment variable"),
        (("pack", "c", "-t", "oci:x:y", "-p", "http"), "not a port"),
        (("pack", "c", "-t", "oci:x:y", "--arch", "vax"), "vax"),
        (("pack", "c", "-t", "oci:c/app/app.exe/l:y"), "packed into itself"),
        (("pack", "c", "-t", "127.0.0.1:1/app"), "cannot be reached"),
        (("pack", "c"), "-t"),
    ],
)
def test_bad_input_prints_one_line_and_exits_2(
    winpod: Winpod,
    c_drive: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    message: str,
) -> None:
    monkeypatch.chdir(c_drive.parent)
    result = winpod(*arguments)
    assert result.status == 2
    assert message in result.err
    assert "Traceback" not in result.err
    assert result.out == ""
    assert sorted(path.name for path in c_drive.parent.iterdir()) == ["c"]


def test_rejected_password_exits_2(winpod: Winpod, c_drive: Path, basic_registry: str) -> None:
    result = winpod("pack", c_drive, "-t", f"{basic_registry}/app")
    assert result.status == 2
    assert "docker login" in result.err


def test_terminal_shows_table_and_progress_bar(c_drive: Path, tmp_path: Path) -> None:
    (c_drive / "large").write_bytes(os.urandom(1 << 20))
    target = f"oci:{tmp_path}/layout:app:1"
    packed = on_terminal("pack", str(c_drive), "-t", target)
    assert "packing" in packed
    shown = on_terminal("show", target)
    assert "10.0.20348 (Windows Server 2022)" in shown
    assert "\x1b[1m" in shown


def on_terminal(*arguments: str) -> str:
    """Return the output on a terminal of 160 columns."""
    main_end, other_end = pty.openpty()
    environment = {**os.environ, "COLUMNS": "160", "TERM": "xterm"}
    process = subprocess.Popen(
        [sys.executable, "-m", "winpod", "image", *arguments],
        stdin=other_end,
        stdout=other_end,
        stderr=other_end,
        env=environment,
    )
    os.close(other_end)
    shown = b""
    while True:
        try:
            data = os.read(main_end, 1 << 16)
        except OSError:  # the other end is closed
            break
        shown += data
    os.close(main_end)
    assert process.wait() == 0, shown
    return shown.decode()


@pytest.mark.parametrize(
    ("size", "shown"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1 kB"),
        (1234567, "1.23 MB"),
        (999_700, "1 MB"),
        (5_600_000_000, "5.6 GB"),
        (7e12, "7 TB"),
    ],
)
def test_sizes_are_human_readable(size: float, shown: str) -> None:
    assert human_size(size) == shown
