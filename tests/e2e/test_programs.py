"""Real Windows programs from public packages, each in a container, as `winpod run` starts them."""

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
    return packed(winpod)


def packed(winpod: Winpod) -> str:
    content = winpod.home / "content"
    content.mkdir()
    (content / "server.js").write_text(SERVER)
    name = f"oci:{winpod.home}/images:empty"
    made = winpod("image", "pack", str(content), "-t", name, "--os-version", "2022")
    assert made.returncode == 0, made.stderr
    return name


def mounted(folder: Path) -> tuple[str, str]:
    return "-v", f"{folder}:C:\\programs:ro"


def test_the_document_tells_what_is_tested() -> None:
    written = Path(__file__).parents[2] / "docs/programs.md"
    assert written.read_text() == document(), "run: make docs"


@pytest.mark.parametrize("program", RUN, ids=lambda program: program.name)
def test_it_runs(program: Program, winpod: Winpod, image: str) -> None:
    volume = mounted(program.folder())
    ran = winpod("run", "--rm", "-m", "2g", *volume, image, *program.command)
    assert program.says in ran.stdout.replace("\r\n", "\n"), ran
    assert program.complains in ran.stderr, ran
    assert ran.returncode == program.code & 0xFF
    if program.complains:
        assert program.complains not in ran.stdout


@pytest.mark.parametrize("missing", DO_NOT_RUN, ids=lambda missing: missing.name)
def test_what_does_not_run_says_so(missing: Missing, winpod: Winpod, image: str) -> None:
    volume = mounted(missing.folder()) if missing.folder else ()
    ran = winpod("run", "--rm", *volume, image, *missing.command)
    assert missing.says in ran.stdout + ran.stderr
    assert ran.returncode == missing.code & 0xFF
    assert winpod.containers == []


def test_a_base_with_32bit_runs_32bit_programs(base_32bit: Base, tmp_path: Path) -> None:
    with winpod_in(tmp_path, base_32bit) as winpod:
        volume = mounted(windows_programs.go_program("386").parent)
        ran = winpod("run", "--rm", *volume, packed(winpod), "C:\\programs\\hello-go.exe")
    assert "Go on windows/386" in ran.stdout, ran.stderr


async def test_node_serves_http_on_a_published_port_and_a_forwarded_one(
    winpod: Winpod, image: str
) -> None:
    go_build.binaries(CRICTL, print)  # an idle runtime would exit during the build
    volume = mounted(windows_programs.node().parent)
    command = ("C:\\programs\\node.exe", "C:\\server.js")
    options = ("-d", "--name", "web", "-p", "8080:80", *volume)
    ran = winpod("run", *options, image, *command)
    assert ran.returncode == 0, ran.stderr
    until_logged(winpod, "web", "listening")
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
    ("program", "command", "ready", "heard", "code"),
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
def test_a_program_hears_that_it_is_to_stop(
    program: Callable[[], Path],
    command: tuple[str, ...],
    ready: str,
    heard: str,
    code: int,
    winpod: Winpod,
    image: str,
) -> None:
    volume = mounted(program().parent)
    assert winpod("run", "-d", "--name", "stops", *volume, image, *command).returncode == 0
    until_logged(winpod, "stops", ready)
    assert winpod("stop", "-t", "300", "stops").returncode == 0
    assert heard in winpod("logs", "stops").stdout
    ended = winpod("inspect", "stops").stdout
    assert f'"exitCode": {code}' in ended, ended
    assert winpod("rm", "stops").returncode == 0


def until_logged(winpod: Winpod, name: str, words: str) -> None:
    eventually(lambda: winpod("logs", name), lambda ran: words in ran.stdout)


def fetch(winpod: Winpod, url: str) -> str:
    def get() -> str:
        with urlopen(url, timeout=300) as answer:
            return str(answer.read().decode())

    return run_in_netns(Path(f"/run/netns/{winpod.netns}"), get)
