"""`winpod run`: one Windows container, now, on this machine."""

from __future__ import annotations

import asyncio
import secrets
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from winpod.cli.pull import Root
from winpod.cri.config import read_config
from winpod.cri.local import SOCKET, Place, assembled
from winpod.cri.proto import api_pb2 as api
from winpod.cri.rpc import Client
from winpod.windows.builds import parse_build
from winpod.windows.errors import InvalidInput
from winpod.windows.quantities import parse_quantity

_LABEL = "winpod.dev/run"


def command(
    image: Annotated[str, typer.Argument(metavar="IMAGE", help="A reference, or oci:DIR:NAME.")],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="[COMMAND]...", help="Instead of the image's own.")
    ] = None,
    env: Annotated[
        list[str] | None, typer.Option("--env", "-e", metavar="K=V", help="Set a variable.")
    ] = None,
    volume: Annotated[
        list[str] | None,
        typer.Option("--volume", "-v", metavar="SRC:C:\\DST[:ro]", help="Mount a path."),
    ] = None,
    publish: Annotated[
        list[str] | None,
        typer.Option("--publish", "-p", metavar="8080:80", help="Lead a port to the container."),
    ] = None,
    memory: Annotated[str, typer.Option(metavar="SIZE", help="Memory limit, such as 512Mi.")] = "",
    cpus: Annotated[int, typer.Option(help="How many processors it has.")] = 0,
    user: Annotated[str, typer.Option("--user", "-u", help="ContainerUser, for one.")] = "",
    workdir: Annotated[str, typer.Option("--workdir", "-w", help="Working directory.")] = "",
    host_build: Annotated[
        str, typer.Option("--host-build", metavar="BUILD", help="The Windows to be: 2022, 2019.")
    ] = "",
    root: Root = None,
) -> None:
    """Run a Windows container to its end, with its output and its exit code.

    It uses a runtime that is running, else it is one for as long as it takes.
    """
    config = read_config()
    host = parse_build(host_build) if host_build else config.host_build
    runtime = replace(config.runtime, warm_shells=0)
    place = Place(
        root or config.root, host, config.images, config.handlers, config.network, runtime
    )
    container = api.ContainerConfig(
        metadata=api.ContainerMetadata(name="run"),
        image=api.ImageSpec(image=image),
        args=arguments or (),
        envs=[_variable(text) for text in env or ()],
        mounts=[_mount(text) for text in volume or ()],
        working_dir=workdir,
        log_path="run.log",
        windows=api.WindowsContainerConfig(
            resources=api.WindowsContainerResources(
                cpu_count=cpus, memory_limit_in_bytes=_bytes(memory)
            ),
            security_context=api.WindowsContainerSecurityContext(run_as_username=user),
        ),
    )
    ports = [_port(text) for text in publish or ()]
    raise typer.Exit(asyncio.run(_run(place, container, ports)) & 0xFF)


async def _run(place: Place, container: api.ContainerConfig, ports: list[api.PortMapping]) -> int:
    with tempfile.TemporaryDirectory(prefix="winpod-run-") as logs:
        async with _client(place) as client:
            pulled = await client.call("PullImage", api.PullImageRequest(image=container.image))
            container.image.image = pulled.image_ref
            name = f"run-{secrets.token_hex(4)}"
            sandbox = api.PodSandboxConfig(
                metadata=api.PodSandboxMetadata(name=name, namespace="winpod", uid=name),
                hostname=name,
                log_directory=logs,
                port_mappings=ports,
                labels={_LABEL: name},
            )
            request = api.RunPodSandboxRequest(config=sandbox)
            id_ = (await client.call("RunPodSandbox", request)).pod_sandbox_id
            try:
                return await _to_the_end(client, id_, container, Path(logs) / "run.log")
            finally:
                removal = api.RemovePodSandboxRequest(pod_sandbox_id=id_)
                await asyncio.shield(client.call("RemovePodSandbox", removal))


async def _to_the_end(client: Client, sandbox: str, config: api.ContainerConfig, log: Path) -> int:
    request = api.CreateContainerRequest(pod_sandbox_id=sandbox, config=config)
    container = (await client.call("CreateContainer", request)).container_id
    await client.call("StartContainer", api.StartContainerRequest(container_id=container))
    status_request = api.ContainerStatusRequest(container_id=container)
    follower = _Follower(log)
    while True:
        status: Any = (await client.call("ContainerStatus", status_request)).status
        follower.print_new()
        if status.state == api.CONTAINER_EXITED:
            return int(status.exit_code)
        await asyncio.sleep(0.02)


class _Follower:
    """Prints what a CRI log has got since last time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0

    def print_new(self) -> None:
        if not self._path.exists():
            return
        with self._path.open("rb") as log:
            log.seek(self._read)
            for line in log:
                if not line.endswith(b"\n"):
                    break
                self._read += len(line)
                _, stream, kind, content = line[:-1].split(b" ", 3)
                out = sys.stderr if stream == b"stderr" else sys.stdout
                out.buffer.write(content + (b"\n" if kind == b"F" else b""))
                out.buffer.flush()


@asynccontextmanager
async def _client(place: Place) -> AsyncIterator[Client]:
    """A client of the runtime that runs, else of one that is started here for the purpose."""
    if SOCKET.exists() and await _answers(SOCKET):
        client = Client(f"unix:{SOCKET}")
        yield client
        await client.close()
        return
    async with assembled(place) as server:
        socket = place.own / "run.sock"
        await server.start(f"unix:{socket}")
        client = Client(f"unix:{socket}")
        try:
            await _remove_orphans(client)
            yield client
        finally:
            await client.close()
            await server.stop()
            socket.unlink(missing_ok=True)


async def _remove_orphans(client: Client) -> None:
    """What a killed `run` left: nobody else has the runtime now, so its owner is gone."""
    for sandbox in (await client.call("ListPodSandbox", api.ListPodSandboxRequest())).items:
        if _LABEL in sandbox.labels:
            request = api.RemovePodSandboxRequest(pod_sandbox_id=sandbox.id)
            await client.call("RemovePodSandbox", request)


async def _answers(socket: Path) -> bool:
    try:
        _, writer = await asyncio.open_unix_connection(str(socket))
    except OSError:
        return False
    writer.close()
    return True


def _variable(text: str) -> api.KeyValue:
    name, sign, value = text.partition("=")
    if not name or not sign:
        raise InvalidInput(f'"{text}" is not a variable.', "Write NAME=value.")
    return api.KeyValue(key=name, value=value.encode())


def _mount(text: str) -> api.Mount:
    source, _, rest = text.partition(":")
    readonly = rest.endswith(":ro")
    destination = rest.removesuffix(":ro")
    if not source or not destination:
        raise InvalidInput(f'"{text}" is not a mount.', "Write /path/here:C:\\path\\there[:ro].")
    return api.Mount(
        host_path=str(Path(source).absolute()), container_path=destination, readonly=readonly
    )


def _port(text: str) -> api.PortMapping:
    host, _, container = text.rpartition(":")
    address, _, port = host.rpartition(":")
    if not container.isdigit() or not port.isdigit():
        raise InvalidInput(f'"{text}" is not a pair of ports.', "Write 8080:80.")
    return api.PortMapping(container_port=int(container), host_port=int(port), host_ip=address)


def _bytes(text: str) -> int:
    if not text:
        return 0
    amount = parse_quantity(text)
    if amount is None or amount <= 0:
        raise InvalidInput(f'"{text}" is not an amount of memory.', "Write 512Mi or 2Gi.")
    return int(amount)
