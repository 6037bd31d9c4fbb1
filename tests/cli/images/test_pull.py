"""`winpod pull`, `images` and `rmi`."""

import asyncio
import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest
from aiohttp import web

from tests.support import registries
from tests.support.layer_server import serving
from tests.support.store_invariants import check, leftovers
from tests.support.windows_images import bundle, large_layer, two_builds
from tests.support.winpod_cli import Ran, winpod
from winpod.cli.main import main
from winpod.images.layout import write_image
from winpod.images.manifests import ImageBundle
from winpod.images.references import parse_reference
from winpod.images.registry.push import push_image

home = registries.home
registry = registries.registry
BUILDS = two_builds()
GUEST = "runhcs-wcow-hypervisor-17763"


class Command:
    """Runs `winpod` with its own home and root."""

    def __init__(
        self, root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        self.root = root
        self._monkeypatch = monkeypatch
        self._capsys = capsys

    def __call__(self, command: str, *arguments: object) -> Ran:
        command_line = [command, "--root", str(self.root), *map(str, arguments)]
        self._monkeypatch.setattr(sys, "argv", ["winpod", *command_line])
        with pytest.raises(SystemExit) as caught:
            main()
        code = caught.value.code
        assert isinstance(code, int | None)
        return Ran(code or 0, *self._capsys.readouterr())

    async def apart(self, command: str, *arguments: str) -> Ran:
        """Start the command in the background."""
        command_line = [command, "--root", str(self.root), *arguments]
        return await asyncio.to_thread(winpod, *command_line, home=self.root.parent)

    @contextmanager
    def running(self, *arguments: str) -> Iterator[subprocess.Popen[str]]:
        process = subprocess.Popen(
            [sys.executable, "-m", "winpod", "pull", "--root", self.root, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            yield process
        finally:
            process.kill()
            process.communicate()


@pytest.fixture
def run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Command:
    return Command(tmp_path / "root", monkeypatch, capsys)


@pytest.fixture
def layout(tmp_path: Path) -> Path:
    write_image(tmp_path / "layout", "example/app:1", bundle(BUILDS))
    return tmp_path / "layout"


def test_pull_prints_the_id_and_logs_what_it_does(run: Command, registry: str) -> None:
    name = f"{registry}/cli/app:1"
    asyncio.run(push_image(parse_reference(name), bundle(BUILDS)))
    ran = run("pull", name)
    assert (ran.code, ran.out) == (0, f"{BUILDS[1].id}\n")
    assert "2 layers, 1 to pull" in ran.err
    assert "base layer, not pulled" in ran.err
    assert ran.err.rstrip().endswith(" s")
    check(run.root)


def test_pull_for_a_handler_lists_by_handler(run: Command, layout: Path) -> None:
    image = f"oci:{layout}:example/app:1"
    assert run("pull", image).code == 0
    ran = run("pull", "--handler", "containerd-hyperv-1809", "-o", "json", image)
    found = json.loads(ran.out)
    assert (found["handler"], found["hostBuild"], found["id"]) == (
        GUEST,
        "10.0.20348",
        BUILDS[0].id,
    )
    assert found["osVersion"] == "10.0.17763.805"
    assert [(one["base"], one["kept"]) for one in found["layers"]] == [(True, False), (False, True)]
    listed = run("images").out.splitlines()
    assert listed[0].split() == ["repository", "tag", "id", "handler", "host", "build", "size"]
    assert [line.split()[:5] for line in listed[1:]] == [
        ["example/app", "1", BUILDS[0].id[7:19], GUEST, "10.0.20348"],
        ["example/app", "1", BUILDS[1].id[7:19], "runhcs-wcow-process", "10.0.20348"],
    ]
    assert "(Windows Server 2019)" in listed[1]
    only = json.loads(run("images", "--handler", GUEST, "-o", "json").out)
    assert only == [found]
    assert found["manifest"] not in run("images").out
    assert found["repoDigests"][0].partition("@")[2] in run("images", "--digests").out
    assert json.loads(run("images", "--host-build", "2019", "-o", "json").out) == []


def test_rmi_removes_for_one_handler_or_all(run: Command, layout: Path) -> None:
    image = f"oci:{layout}:example/app:1"
    for handler in ("", GUEST):
        run("pull", "--handler", handler, image)
    ran = run("rmi", "--handler", GUEST, "example/app:1")
    assert ran.code == 0
    assert ran.out.splitlines() == [
        f"untagged docker.io/example/app:1 ({GUEST}, host 10.0.20348)",
        f"removed {BUILDS[0].id[7:19]} ({GUEST}, host 10.0.20348)",
    ]
    assert len(json.loads(run("images", "-o", "json").out)) == 1
    rest = json.loads(run("rmi", "-o", "json", BUILDS[1].id[7:19]).out)
    assert [image["id"] for image in rest] == [BUILDS[1].id]
    assert leftovers(run.root) == set()


def test_rmi_reports_missing_images_and_removes_the_others(run: Command, layout: Path) -> None:
    run("pull", f"oci:{layout}")
    ran = run("rmi", "example/nothing:1", "example/app:1")
    assert ran.code == 1
    assert ran.err == (
        'winpod: No such image: "example/nothing:1". List images with `winpod images`.\n'
    )
    assert "untagged docker.io/example/app:1" in ran.out
    assert run("images").out.count("\n") == 1
    assert run("rmi").code == 2
    assert run("rmi", "--all", "x").code == 2


def test_rmi_all_removes_everything(run: Command, layout: Path) -> None:
    for handler in ("", GUEST):
        run("pull", "--handler", handler, f"oci:{layout}")
    assert run("rmi", "--all").code == 0
    assert leftovers(run.root) == set()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--handler", "runc", "app"], 'no runtime for "runc" is configured'),
        (["--host-build", "xp", "app"], '"xp" is not a Windows build'),
        (["UPPER"], "must be lowercase"),
        (["oci:/nowhere:app"], "/nowhere does not exist"),
        (["--host-build", "1903", "oci:LAYOUT"], "it has 10.0.17763.805, 10.0.20348.2113"),
        (["127.0.0.1:1/app"], "cannot be reached"),
    ],
)
def test_failed_pull_prints_an_error(
    run: Command, layout: Path, arguments: list[str], message: str
) -> None:
    ran = run("pull", *(text.replace("LAYOUT", str(layout)) for text in arguments))
    assert ran.code == 2
    (line,) = [line for line in ran.err.splitlines() if line.startswith("winpod: ")]
    assert message in line
    assert ran.out == ""


def test_base_layers_are_pulled_on_demand(run: Command, layout: Path) -> None:
    ran = run("pull", "--base-layers", "pull", "-o", "json", f"oci:{layout}")
    assert [one["kept"] for one in json.loads(ran.out)["layers"]] == [True, True]


def on_a_terminal(*arguments: object) -> bytes:
    """Return the output with stdout and stderr on a terminal."""
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "winpod", *map(str, arguments)],
        env={**os.environ, "TERM": "xterm", "COLUMNS": "160"},
        stdout=slave,
        stderr=slave,
    )
    os.close(slave)
    shown = b""
    with contextlib.suppress(OSError):
        while data := os.read(master, 4096):
            shown += data
    os.close(master)
    assert process.wait() == 0
    return shown


def test_terminal_shows_a_bar_per_layer(run: Command, layout: Path) -> None:
    shown = on_a_terminal("pull", "--root", run.root, f"oci:{layout}")
    for layer in BUILDS[1].layers:
        assert layer.descriptor.digest[7:19].encode() in shown
    assert b"base layer, not pulled" in shown
    assert b"done" in shown
    listed = on_a_terminal("images", "--root", run.root)
    assert BUILDS[1].id[7:19].encode() in listed
    assert b"example/app" in listed


@asynccontextmanager
async def half_a_layer(
    image: ImageBundle, digest: str
) -> AsyncIterator[tuple[str, Callable[[], list[str]], asyncio.Event]]:
    """Fake registry that pauses in the middle of a layer."""
    go_on = asyncio.Event()

    async def half(request: web.Request, content: bytes, start: int) -> web.StreamResponse | None:
        if go_on.is_set():
            return None
        response = web.StreamResponse()
        response.content_length = len(content)
        await response.prepare(request)
        await response.write(content[start : len(content) // 2])
        await go_on.wait()
        with contextlib.suppress(ConnectionError):
            await response.write(content[len(content) // 2 :])
        return response

    async with serving(image, half, digest) as (server, address):
        yield address, lambda: server.ranges(digest), go_on
        go_on.set()


@pytest.mark.parametrize(
    ("how", "code"), [(signal.SIGKILL, -9), (signal.SIGTERM, 143), (signal.SIGINT, 130)]
)
async def test_interrupted_pull_is_resumed_by_the_next(
    run: Command, how: signal.Signals, code: int
) -> None:
    large = large_layer(2)
    size, digest = large.descriptor.size, large.descriptor.digest
    partial = run.root / "ingest/blobs" / digest.replace(":", "-")
    async with half_a_layer(bundle(two_builds(large)), digest) as (address, ranges, go_on):
        with run.running(f"{address}/app:1") as process:
            for _ in range(12000):
                if partial.exists() and partial.stat().st_size >= size // 2:
                    break
                await asyncio.sleep(0.01)
            process.send_signal(how)
            assert await asyncio.to_thread(process.wait) == code
        listed = await run.apart("images")
        assert listed.out.count("\n") == 1
        assert partial.stat().st_size == size // 2
        go_on.set()
        ran = await run.apart("pull", f"{address}/app:1")
        assert ran.code == 0
        assert ranges() == ["", f"bytes={size // 2}-"]
    assert leftovers(run.root) == set()
    check(run.root)


async def test_concurrent_pulls_share_layers(run: Command) -> None:
    large = large_layer(2)
    digest = large.descriptor.digest
    partial = run.root / "ingest/blobs" / digest.replace(":", "-")
    async with half_a_layer(bundle(two_builds(large)), digest) as (address, ranges, go_on):
        with run.running(f"{address}/app:1") as first:
            for _ in range(12000):
                if partial.exists():
                    break
                await asyncio.sleep(0.01)
            with run.running("--handler", GUEST, f"{address}/app:1") as second:
                await asyncio.sleep(1)
                go_on.set()
                codes = [await asyncio.to_thread(one.wait) for one in (first, second)]
        assert codes == [0, 0]
        assert ranges() == [""]
    assert len(json.loads((await run.apart("images", "-o", "json")).out)) == 2
    assert len(list((run.root / "layers").iterdir())) == 1
    assert leftovers(run.root) == set()
