"""Real Windows programs from public packages, run with `winpod run`."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from urllib.request import urlopen

import pytest
from tests.e2e.crictl import MODULE as CRICTL
from tests.e2e.crictl import Crictl
from tests.support.e2e import go_build, windows_programs
from tests.support.e2e.command_line import Winpod, winpod_in
from tests.support.e2e.programs_table import DO_NOT_RUN, RUN, Missing, Program, document
from tests.support.e2e.waiting import eventually

from winpod.images.base.builder import Base
from winpod.network.netns import run_in_netns

SERVER = """\
const server = require('http').createServer((request, answer) => answer.end('node on ' +
  process.platform + ' at ' + request.url));
server.listen(80, () => console.log('listening'));
for (const name of ['SIGHUP', 'SIGTERM', 'SIGINT'])
  process.on(name, () => { console.log('heard ' + name); setTimeout(() => process.exit(5), 100); });
"""


@pytest.fixture(scope="module")
def winpod(base: Base, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Winpod]:
    with winpod_in(tmp_path_factory.mktemp("programs"), base) as command:
        yield command


@pytest.fixture(scope="module")
def image(winpod: Winpod) -> str:
    return pack_image(winpod)


def pack_image(winpod: Winpod) -> str:
    content = winpod.home / "content"
    content.mkdir()
    (content / "server.js").write_text(SERVER)
    name = f"oci:{winpod.home}/images:empty"
    result = winpod("image", "pack", str(content), "-t", name, "--os-version", "2022")
    assert result.returncode == 0, result.stderr
    return name


def mount_options(folder: Path) -> tuple[str, str]:
    return "-v", f"{folder}:C:\\programs:ro"


def test_document_matches_tested_programs() -> None:
    path = Path(__file__).parents[2] / "docs/programs.md"
    assert path.read_text() == document(), "run: make docs"


@pytest.mark.parametrize("program", RUN, ids=lambda program: program.name)
def test_program_runs(program: Program, winpod: Winpod, image: str) -> None:
    volume = mount_options(program.folder())
    result = winpod("run", "--rm", "-m", "2g", *volume, image, *program.command)
    assert program.says in result.stdout.replace("\r\n", "\n"), result
    assert program.complains in result.stderr, result
    assert result.returncode == program.code & 0xFF
    if program.complains:
        assert program.complains not in result.stdout


@pytest.mark.parametrize("missing", DO_NOT_RUN, ids=lambda missing: missing.name)
def test_unsupported_program_is_reported(missing: Missing, winpod: Winpod, image: str) -> None:
    volume = mount_options(missing.folder()) if missing.folder else ()
    result = winpod("run", "--rm", *volume, image, *missing.command)
    assert missing.says in result.stdout + result.stderr
    assert result.returncode == missing.code & 0xFF
    assert winpod.containers == []


def test_32bit_base_runs_32bit_programs(base_32bit: Base, tmp_path: Path) -> None:
    with winpod_in(tmp_path, base_32bit) as winpod:
        volume = mount_options(windows_programs.go_program("386").parent)
        result = winpod("run", "--rm", *volume, pack_image(winpod), "C:\\programs\\hello-go.exe")
    assert "Go on windows/386" in result.stdout, result.stderr


async def test_node_serves_http_on_published_and_forwarded_ports(
    winpod: Winpod, image: str
) -> None:
    go_build.binaries(CRICTL, print)  # an idle runtime would exit during the build
    volume = mount_options(windows_programs.node().parent)
    command = ("C:\\programs\\node.exe", "C:\\server.js")
    options = ("-d", "--name", "web", "-p", "8080:80", *volume)
    result = winpod("run", *options, image, *command)
    assert result.returncode == 0, result.stderr
    wait_until_logged(winpod, "web", "listening")
    assert fetch(winpod, "http://10.213.0.1:8080/published") == "node on win32 at /published"
    nsenter = ("nsenter", f"--net=/run/netns/{winpod.netns}", "--")
    crictl = Crictl(Path(winpod.serving().socket), nsenter, winpod.environment)
    pod = (await crictl("pods", "-q")).split()[0]
    async with crictl.running("port-forward", pod, "18080:80") as process:
        assert process.stdout
        assert b"Forwarding from 127.0.0.1:18080" in await process.stdout.readline()
        assert fetch(winpod, "http://127.0.0.1:18080/led") == "node on win32 at /led"
    assert winpod("rm", "-f", "web").returncode == 0


@pytest.mark.parametrize(
    ("program", "command", "ready", "expected", "code"),
    [
        (
            partial(windows_programs.go_program, name="signals"),
            ("C:\\programs\\signals-go.exe",),
            "waiting",
            "heard terminated",
            7,
        ),
        (
            windows_programs.node,
            ("C:\\programs\\node.exe", "C:\\server.js"),
            "listening",
            "heard SIGHUP",
            5,
        ),
    ],
    ids=["Go", "node"],
)
def test_stop_is_delivered_to_program(
    program: Callable[[], Path],
    command: tuple[str, ...],
    ready: str,
    expected: str,
    code: int,
    winpod: Winpod,
    image: str,
) -> None:
    volume = mount_options(program().parent)
    assert winpod("run", "-d", "--name", "stops", *volume, image, *command).returncode == 0
    wait_until_logged(winpod, "stops", ready)
    assert winpod("stop", "-t", "300", "stops").returncode == 0
    assert expected in winpod("logs", "stops").stdout
    inspected = winpod("inspect", "stops").stdout
    assert f'"exitCode": {code}' in inspected, inspected
    assert winpod("rm", "stops").returncode == 0


def wait_until_logged(winpod: Winpod, name: str, text: str) -> None:
    eventually(lambda: winpod("logs", name), lambda result: text in result.stdout)


def fetch(winpod: Winpod, url: str) -> str:
    def get() -> str:
        with urlopen(url, timeout=300) as answer:
            return str(answer.read().decode())

    return run_in_netns(Path(f"/run/netns/{winpod.netns}"), get)
