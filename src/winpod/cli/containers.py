"""The containers of a runtime as people name them: whoever started them, by the same grammar."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from winpod.cli.options import short_id
from winpod.cri.config import read_config
from winpod.cri.labels import RUN_LABEL
from winpod.cri.proto import api_pb2 as api
from winpod.cri.rpc import Client, RemoteError
from winpod.cri.serving import runtime_of
from winpod.windows.errors import InvalidInput, NotFound, WinpodError

Result = TypeVar("Result")

Target = Annotated[
    str, typer.Argument(metavar="CONTAINER", help="A name, an id, or the beginning of an id.")
]
Targets = Annotated[
    list[str],
    typer.Argument(metavar="CONTAINER...", help="Names, ids, or the beginnings of ids."),
]


@dataclass(frozen=True, slots=True)
class Listed:
    """A container and its pod."""

    container: Any
    sandbox: Any

    @property
    def id(self) -> str:
        return str(self.container.id)

    @property
    def is_of_run(self) -> bool:
        return RUN_LABEL in self.sandbox.labels

    @property
    def name(self) -> str:
        """Its own for what `run` started, else that of the pod and in the pod."""
        pod = str(self.sandbox.metadata.name)
        return pod if self.is_of_run else f"{pod}/{self.container.metadata.name}"

    @property
    def image(self) -> str:
        spec = self.container.image
        return str(spec.user_specified_image or spec.image)

    @property
    def is_running(self) -> bool:
        return bool(self.container.state == api.CONTAINER_RUNNING)


def with_runtime(root: Path | None, work: Callable[[Client], Awaitable[Result]]) -> Result:
    """Do something with the runtime of this root."""

    async def connected() -> Result:
        async with runtime_of((root or read_config().root).absolute()) as found:
            return await work(found.client)

    return asyncio.run(connected())


async def list_containers(client: Client) -> list[Listed]:
    """All, the newest first."""
    containers, sandboxes = await asyncio.gather(
        client.call("ListContainers", api.ListContainersRequest()),
        client.call("ListPodSandbox", api.ListPodSandboxRequest()),
    )
    pods = {sandbox.id: sandbox for sandbox in sandboxes.items}
    return sorted(
        (
            Listed(container, pods[container.pod_sandbox_id])
            for container in containers.containers
            if container.pod_sandbox_id in pods
        ),
        key=lambda listed: -listed.container.created_at,
    )


async def find_container(client: Client, text: str) -> Listed:
    return choose(await list_containers(client), text)


def choose(listed: list[Listed], text: str) -> Listed:
    """The one that is meant: by its id, else its name, else the beginning of its id."""
    for matches in (
        [one for one in listed if one.id == text],
        [one for one in listed if one.name == text],
        [one for one in listed if one.id.startswith(text)],
        [one for one in listed if text in (one.sandbox.metadata.name, one.container.metadata.name)],
    ):
        if len(matches) == 1:
            return matches[0]
        if matches and text:
            several = ", ".join(f"{short_id(one.id)} ({one.name})" for one in matches[:5])
            raise InvalidInput(f'"{text}" can be each of {several}.', "Write more of the id.")
    raise NotFound(f'There is no container "{text}".', "`winpod ps -a` lists them.")


async def container_status(client: Client, container: str) -> Any:
    request = api.ContainerStatusRequest(container_id=container)
    return (await client.call("ContainerStatus", request)).status


async def exit_code(client: Client, container: str) -> int:
    """Waits for the end of a container, and tells how it ended; 255 where nobody can tell.

    The event is listened for before the status is asked for, so the end is not missed, and it tells
    the code of a container that is removed as it ends.
    """
    ended = asyncio.create_task(_end_event(client, container))
    try:
        while not ended.done():
            try:
                status = await container_status(client, container)
            except RemoteError as error:
                if error.status.name != NotFound.code:
                    raise
                await asyncio.wait((ended,), timeout=1)
                break
            if status.state == api.CONTAINER_EXITED:
                return int(status.exit_code)
            await asyncio.wait((ended,), timeout=5)
        return ended.result() if ended.done() else 255
    finally:
        ended.cancel()


async def _end_event(client: Client, container: str) -> int:
    async for event in client.stream("GetContainerEvents", api.GetEventsRequest()):
        if event.container_event_type == api.CONTAINER_STOPPED_EVENT:
            for status in event.containers_statuses:
                if status.id == container:
                    return int(status.exit_code)
    return 255


async def remove_pod(client: Client, sandbox: str) -> None:
    request = api.RemovePodSandboxRequest(pod_sandbox_id=sandbox)
    await client.call("RemovePodSandbox", request)


async def for_each(
    client: Client, targets: Sequence[str], work: Callable[[Listed], Awaitable[None]]
) -> int:
    """Do it to each, print those that are done and say what the others lack; 1 if any does."""
    listed = await list_containers(client)
    code = 0
    for target in targets:
        try:
            await work(choose(listed, target))
            print(target)
        except WinpodError as error:
            print(f"winpod: {error}", file=sys.stderr)
            code = 1
    return code
