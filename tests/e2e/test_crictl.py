"""crictl with `winpod runtime`: every command, with both streaming transports."""

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.crictl import Crictl
from tests.support.e2e import windows_programs
from tests.support.e2e.terminals import terminal
from tests.support.e2e.windows_container import link_base
from tests.support.registries import docker_registry

from winpod.cri.proto import api_pb2 as api
from winpod.cri.rpc import CriClient
from winpod.images.base.builder import Base
from winpod.network.netns import NetworkNamespaces

TIMEOUT = 300.0
HYPERVISOR_2019 = "runhcs-wcow-hypervisor-17763"
TRANSPORTS = pytest.mark.parametrize("transport", ["spdy", "websocket"])


class Machine:
    """A runtime and a registry in their own network namespace."""

    def __init__(self, folder: Path, inside: Sequence[str], image: str, crictl: Crictl) -> None:
        self.folder = folder
        self.inside = inside
        self.image = image
        self.crictl = crictl

    def write(self, name: str, content: Mapping[str, Any]) -> str:
        file = self.folder / name
        file.write_text(json.dumps(content))
        return str(file)

    @asynccontextmanager
    async def container(self, name: str, **config: Any) -> AsyncIterator[tuple[str, str]]:
        """Run a pod with one started container; yield the IDs of both."""
        pod_config = self.write(
            "pod.json",
            {
                "metadata": {"name": name, "namespace": "default", "uid": name},
                "hostname": name,
                "log_directory": str(self.folder / "logs"),
            },
        )
        container_config = self.write(
            "container.json",
            {
                "metadata": {"name": "talker"},
                "image": {"image": self.image},
                "log_path": f"{name}.log",
                "stdin": True,
                **config,
            },
        )
        await self.crictl("pull", self.image)
        pod = (await self.crictl("runp", pod_config)).strip()
        try:
            created = await self.crictl("create", pod, container_config, pod_config)
            container = created.strip()
            assert (await self.crictl("start", container)).strip() == container
            yield pod, container
        finally:
            await self.crictl.run("rmp", "--force", pod)

    async def container_status(self, container: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(await self.crictl("inspect", container))
        return dict(found["status"])

    async def wait_exited(self, container: str) -> dict[str, Any]:
        async with asyncio.timeout(TIMEOUT):
            while (found := await self.container_status(container))["state"] != "CONTAINER_EXITED":  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        return found

    async def wait_until_logged(self, name: str, text: str) -> None:
        log = self.folder / f"logs/{name}.log"
        async with asyncio.timeout(TIMEOUT):
            while text not in log.read_text():  # noqa: ASYNC110 - files are polled
                await asyncio.sleep(0.1)


@pytest.fixture(scope="module")
def machine(
    base: Base, tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config
) -> Iterator[Machine]:
    def report(line: str) -> None:
        with pytestconfig.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
            print(line, flush=True)

    folder = tmp_path_factory.mktemp("crictl")
    root, socket, content = folder / "root", folder / "cri.sock", folder / "content"
    root.mkdir()
    link_base(root, base)
    content.mkdir()
    shutil.copy(windows_programs.go_program(name="talker"), content / "talker.exe")
    environment = {**os.environ, "HOME": str(folder), "WINPOD_ROOT": str(root)}
    namespaces = NetworkNamespaces(folder / "machine")
    inside = ["nsenter", f"--net={namespaces.create('net')}", "--"]
    crictl = Crictl(socket, inside, environment, report)
    winpod = [*inside, sys.executable, "-m", "winpod"]
    try:
        with docker_registry(folder / "registry", inside=inside) as registry:
            image = f"{registry}/talker:1"
            pack = ["image", "pack", str(content), "-t", image, "--cmd", "C:\\talker.exe"]
            pack += ["--os-version", "2019", "--os-version", "2022"]
            subprocess.run([*winpod, *pack], env=environment, check=True, capture_output=True)
            with _runtime([*winpod, "runtime", "--socket", str(socket)], environment, folder):
                yield Machine(folder, inside, image, crictl)
    finally:
        namespaces.remove("net")
    for directory in ("containers", "netns", "warm"):
        assert list((root / "runtime" / directory).glob("*")) == []


@contextmanager
def _runtime(
    command: Sequence[str], environment: Mapping[str, str], folder: Path
) -> Iterator[None]:
    log = folder / "runtime.log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=output)
    try:
        while f"unix:{folder}" not in log.read_text():
            assert process.poll() is None, log.read_text()
            time.sleep(0.05)
        yield
    finally:
        process.terminate()
        assert process.wait(TIMEOUT) == 0, log.read_text()


async def test_crictl_manages_pod_lifecycle(machine: Machine) -> None:
    crictl = machine.crictl
    assert "RuntimeName:  winpod" in await crictl("version")
    conditions = json.loads(await crictl("info"))["status"]["conditions"]
    assert {c["type"]: c["status"] for c in conditions} == {
        "RuntimeReady": True,
        "NetworkReady": True,
    }
    async with machine.container("life", annotations={"a": "b"}) as (pod, container):
        await machine.wait_until_logged("life", "listening")
        images = json.loads(await crictl("images", "-o", "json"))["images"]
        assert [image["repoTags"] for image in images] == [[machine.image]]
        assert (await crictl("pods", "-q")).split() == [pod]
        assert (await crictl("ps", "-q")).split() == [container]
        pod_status = json.loads(await crictl("inspectp", pod))["status"]
        assert pod_status["state"] == "SANDBOX_READY"
        assert re.fullmatch(r"10\.\d+\.\d+\.\d+", pod_status["network"]["ip"])
        status = await machine.container_status(container)
        assert (status["state"], status["annotations"]) == ("CONTAINER_RUNNING", {"a": "b"})

        output = await crictl("exec", "-s", container, "cmd", "/c", "ver&hostname")
        assert "Microsoft Windows 10.0.20348" in output
        assert "life" in output.lower().splitlines()
        sleep = ("cmd", "/c", "ping -n 90 127.0.0.1 >nul")
        timed_out = await crictl.run("exec", "-s", "--timeout", "1", container, *sleep)
        assert (timed_out.code, "DeadlineExceeded" in timed_out.err) == (1, True)
        assert (await crictl("logs", container)).splitlines() == ["listening"]

        stats = json.loads(await crictl("stats", "-o", "json", container))["stats"]
        assert [s["attributes"]["id"] for s in stats] == [container]
        assert int(stats[0]["memory"]["workingSetBytes"]["value"]) > 1 << 20
        pod_stats = json.loads(await crictl("statsp", "-o", "json", "--id", pod))["stats"]
        assert int(pod_stats[0]["windows"]["process"]["processCount"]["value"]) > 0

        descriptors = json.loads(await crictl("metricdescs", "-o", "json"))["descriptors"]
        metrics = json.loads(await crictl("metricsp", "-o", "json"))["podMetrics"]
        names = {metric["name"] for metric in metrics[0]["containerMetrics"][0]["metrics"]}
        assert names
        assert names <= {descriptor["name"] for descriptor in descriptors}
        filesystems = json.loads(await crictl("imagefsinfo"))["status"]["imageFilesystems"]
        assert int(filesystems[0]["usedBytes"]["value"]) > 0

        assert (await crictl("update", "--memory", str(768 << 20), container)).strip() == container
        resources = (await machine.container_status(container))["resources"]["windows"]
        assert int(resources["memoryLimitInBytes"]) == 768 << 20

        await crictl("stop", "--timeout", "5", container)
        status = await machine.container_status(container)
        assert status["state"] == "CONTAINER_EXITED"
        assert (await crictl("ps", "-q")).split() == []
        assert (await crictl("ps", "-aq")).split() == [container]
        await crictl("rm", container)
        assert (await crictl("ps", "-aq")).split() == []
        await crictl("stopp", pod)
        assert json.loads(await crictl("inspectp", pod))["status"]["state"] == "SANDBOX_NOTREADY"
        await crictl("rmp", pod)
        assert (await crictl("pods", "-q")).split() == []
    await crictl("rmi", machine.image)
    assert json.loads(await crictl("images", "-o", "json"))["images"] == []


@TRANSPORTS
async def test_exec_streams(machine: Machine, transport: str) -> None:
    crictl, flags = machine.crictl, ("--transport", transport)
    async with machine.container("exec") as (_, container):
        command = ("cmd", "/c", "echo out&echo err>&2&exit 7")
        result = await crictl.run("exec", *flags, container, *command)
        assert (result.out.strip(), result.err.splitlines()[0].strip()) == ("out", "err")
        assert result.code != 0
        assert "7" in result.err.splitlines()[-1]
        output = await crictl("exec", "-i", *flags, container, "C:\\talker.exe", stdin=b"hello\n")
        assert output == "listening\nheard hello\nno more input\n"


@TRANSPORTS
async def test_exec_terminal(machine: Machine, transport: str) -> None:
    async with machine.container("terminal") as (_, container):
        arguments = ("exec", "-it", "--transport", transport, container, "cmd")
        async with (
            asyncio.timeout(TIMEOUT),
            terminal() as (console, tty),
            machine.crictl.running(*arguments, terminal=tty) as process,
        ):
            await console.until("C:\\>")
            console.type("ver\r")
            await console.until("Microsoft Windows 10.0.20348")
            await console.until("C:\\>")
            console.type("ping -n 90 127.0.0.1\r")
            await console.until("Reply from")
            console.type("\x03")
            await console.until("C:\\>")
            console.type("exit\r")
            assert await process.wait() == 0


@TRANSPORTS
async def test_attach_streams(machine: Machine, transport: str) -> None:
    async with machine.container(f"attach-{transport}") as (_, container):
        await machine.wait_until_logged(f"attach-{transport}", "listening")
        arguments = ("attach", "-i", "--transport", transport, container)
        async with machine.crictl.running(*arguments) as process, asyncio.timeout(TIMEOUT):
            assert process.stdin
            assert process.stdout
            process.stdin.write(b"hello\n")
            line = await process.stdout.readline()
            if line == b"listening\n":  # logged already, but not yet delivered to the client
                line = await process.stdout.readline()
            assert line == b"heard hello\n"
            process.stdin.write(b"exit 9\n")
            assert await process.wait() == 0
        assert (await machine.wait_exited(container))["exitCode"] == 9


@TRANSPORTS
async def test_port_forward(machine: Machine, transport: str) -> None:
    name, command = f"forward-{transport}", ["C:\\talker.exe", "127.0.0.1:8080"]
    async with machine.container(name, command=command) as (pod, _):
        await machine.wait_until_logged(name, "serving")
        arguments = ("port-forward", "--transport", transport, pod, "18080:8080")
        async with machine.crictl.running(*arguments) as process, asyncio.timeout(TIMEOUT):
            assert process.stdout
            assert b"Forwarding from 127.0.0.1:18080" in await process.stdout.readline()
            curl = ("curl", "--silent", "http://127.0.0.1:18080/path")
            done = await asyncio.create_subprocess_exec(
                *machine.inside, *curl, stdout=asyncio.subprocess.PIPE
            )
            answer, _ = await done.communicate()
            assert answer == b"/path from Windows"


async def test_logs_are_followed_until_exit(machine: Machine) -> None:
    crictl = machine.crictl
    async with machine.container("logs") as (_, container):
        async with crictl.running("logs", "-f", container) as following, asyncio.timeout(TIMEOUT):
            assert following.stdout
            assert await following.stdout.readline() == b"listening\n"
            async with crictl.running("attach", "-i", container) as attached:
                assert attached.stdin
                attached.stdin.write(b"one\ntwo\n")
                for word in (b"one", b"two"):
                    assert await following.stdout.readline() == b"heard %b\n" % word
                (machine.folder / "logs/logs.log").rename(machine.folder / "logs/logs.log.1")
                await crictl("logs", "--reopen", container)
                attached.stdin.write(b"three\nexit 0\n")
                await following.stdout.read()
            assert await following.wait() == 0
        assert (await crictl("logs", "--tail", "1", container)).strip() == "heard three"


async def test_image_pulled_for_two_handlers_is_listed_twice(machine: Machine) -> None:
    """crictl cannot set the handler of a pull, but lists and removes both images."""
    await machine.crictl("pull", machine.image)
    client = CriClient(f"unix:{machine.folder}/cri.sock")
    spec = api.ImageSpec(image=machine.image, runtime_handler=HYPERVISOR_2019)
    await client.call("PullImage", api.PullImageRequest(image=spec))
    await client.close()
    images = json.loads(await machine.crictl("images", "-o", "json"))["images"]
    handlers = {image["spec"]["runtimeHandler"] for image in images}
    assert handlers == {"runhcs-wcow-process", HYPERVISOR_2019}
    await machine.crictl("rmi", *(image["id"] for image in images))
    assert json.loads(await machine.crictl("images", "-o", "json"))["images"] == []
