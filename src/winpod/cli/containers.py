"""The containers of this machine as people name them: whoever started them, by the same grammar.

They are those of the root's own runtime, and those of the nodes that play manifests.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from winpod.cli.names import complete_names, has_pods, owner_named
from winpod.cli.options import short_id
from winpod.cri.config import Config, read_config
from winpod.cri.labels import DEFAULT_CONTAINER_ANNOTATION, OWNER_ANNOTATION, RUN_LABEL
from winpod.cri.proto import api_pb2 as api
from winpod.cri.rpc import Client, RemoteError
from winpod.cri.serving import own_directory, runtime_of
from winpod.windows.errors import InvalidInput, NotFound, WinpodError

Result = TypeVar("Result")

Target = Annotated[
    str,
    typer.Argument(
        metavar="CONTAINER",
        help="A name, an id or its beginning, POD, POD/CONTAINER, or a kind and name: deploy/web.",
        autocompletion=complete_names,
    ),
]
Targets = Annotated[
    list[str],
    typer.Argument(
        metavar="CONTAINER...",
        help="Names, ids or their beginnings, pods, or kinds and names: deploy/web.",
        autocompletion=complete_names,
    ),
]
Part = Annotated[
    str, typer.Option("--container", "-c", metavar="NAME", help="Which container of the pod.")
]
Namespace = Annotated[
    str, typer.Option("--namespace", "-n", metavar="NAME", help="Only pods of this namespace.")
]


class NotRunning(WinpodError):
    code = "FAILED_PRECONDITION"


@dataclass(frozen=True, slots=True)
class Listed:
    """A container, its pod, and the runtime that has them."""

    container: Any
    sandbox: Any
    client: Client

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


Clients = Sequence[Client]
"""One for each runtime."""


def with_runtimes(root: Path | None, work: Callable[[Clients], Awaitable[Result]]) -> Result:
    """Do something with the runtimes of this root."""

    async def connected() -> Result:
        config = read_config()
        async with _runtimes(replace(config, root=(root or config.root).absolute())) as clients:
            return await work(clients)

    return asyncio.run(connected())


@asynccontextmanager
async def _runtimes(config: Config) -> AsyncIterator[Clients]:
    """That of the root, unless it never had one, and those of its nodes."""
    async with AsyncExitStack() as stack:
        clients: list[Client] = []
        if has_pods(config.root):
            from winpod.node.play.client import play_of

            play = await stack.enter_async_context(play_of(config.root, config))
            for node in (await play.get("state"))["nodes"]:
                client = Client(f"unix:{node['socket']}")
                stack.push_async_callback(client.close)
                clients.append(client)
        if not clients or (own_directory(config.root) / "state.db").exists():
            found = await stack.enter_async_context(runtime_of(config.root))
            clients.insert(0, found.client)
        yield clients


async def list_containers(clients: Clients) -> list[Listed]:
    """All, the newest first."""
    found = await asyncio.gather(*map(_list_containers, clients))
    return sorted(
        (one for listed in found for one in listed),
        key=lambda listed: -listed.container.created_at,
    )


async def _list_containers(client: Client) -> list[Listed]:
    containers, sandboxes = await asyncio.gather(
        client.call("ListContainers", api.ListContainersRequest()),
        client.call("ListPodSandbox", api.ListPodSandboxRequest()),
    )
    pods = {sandbox.id: sandbox for sandbox in sandboxes.items}
    return [
        Listed(container, pods[container.pod_sandbox_id], client)
        for container in containers.containers
        if container.pod_sandbox_id in pods
    ]


async def find_container(
    clients: Clients, text: str, container: str = "", namespace: str = ""
) -> Listed:
    return choose(await list_containers(clients), text, container, namespace)


def choose(listed: Sequence[Listed], text: str, container: str = "", namespace: str = "") -> Listed:
    """The one that is meant: by its id, its name, the beginning of its id, or its pod."""
    if namespace:
        listed = [one for one in listed if one.sandbox.metadata.namespace == namespace]
    for matches in (
        [one for one in listed if one.id == text],
        _of_newest_pod([one for one in listed if one.name == text]),
        [one for one in listed if one.id.startswith(text)],
        of_pod(listed, text, container),
        [one for one in listed if text in (one.sandbox.metadata.name, one.container.metadata.name)],
    ):
        if len(matches) == 1:
            return matches[0]
        if matches and text:
            several = ", ".join(f"{short_id(one.id)} ({one.name})" for one in matches[:5])
            raise InvalidInput(
                f'"{text}" can be each of {several}.',
                "Write more of the id, or choose with -c and -n.",
            )
    raise _nothing_named(listed, text, container)


def _nothing_named(listed: Sequence[Listed], text: str, container: str) -> NotFound:
    if container and (pod := of_pod(listed, text, "")):
        name = pod[0].sandbox.metadata.name
        others = [one for one in listed if one.sandbox.metadata.name == name]
        names = ", ".join(sorted({one.container.metadata.name for one in others}))
        return NotFound(f'{name} has no container "{container}".', f"It has: {names}.")
    if owner_named(text):
        advice = "`winpod ps --pods` lists pods; name one, or what made it: deploy/web."
        return NotFound(f"There is no pod of {text} here.", advice)
    return NotFound(f'There is no container "{text}".', "`winpod ps -a` lists them.")


def require_running(found: Listed) -> None:
    """For what only a container that runs can do."""
    if not found.is_running:
        raise NotRunning(
            f"{found.name} does not run: it has ended, or was not started.",
            f"`winpod ps -a` tells how it ended, `winpod logs {found.name}` what it wrote.",
        )


def of_pod(listed: Sequence[Listed], text: str, container: str) -> list[Listed]:
    """The container that is meant by a pod's name, or by what made the pod: `deploy/web`.

    Without a name it is the pod's first. Of one that was started again the last counts, and of
    several pods the first that runs.
    """
    owner = owner_named(text)
    name = text.partition("/")[2] if owner and owner.startswith("Pod/") else text
    found = [
        one
        for one in listed
        if not one.is_of_run
        and (
            one.sandbox.metadata.name == name
            or (owner and one.sandbox.annotations.get(OWNER_ANNOTATION) == owner)
        )
    ]
    if owner and found:
        pods = sorted({(not one.is_running, one.sandbox.metadata.name) for one in found})
        found = [one for one in found if one.sandbox.metadata.name == pods[0][1]]
    if container:
        found = [one for one in found if one.container.metadata.name == container]
    else:
        defaults = {one.sandbox.annotations.get(DEFAULT_CONTAINER_ANNOTATION) for one in found}
        main = [one for one in found if one.container.metadata.name in defaults]
        found = main or found
    return _of_newest_pod(found)


def _of_newest_pod(found: Sequence[Listed]) -> list[Listed]:
    """Of each container the last one that was started; lists begin with the newest."""
    newest: dict[tuple[str, str, str], Listed] = {}
    for one in found:
        metadata = one.sandbox.metadata
        key = (metadata.namespace, metadata.name, one.container.metadata.name)
        newest.setdefault(key, one)
    return list(newest.values())


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
    clients: Clients, targets: Sequence[str], work: Callable[[Listed], Awaitable[None]]
) -> int:
    """Do it to each, print those that are done and say what the others lack; 1 if any does."""
    listed = await list_containers(clients)
    code = 0
    for target in targets:
        try:
            await work(choose(listed, target))
            print(target)
        except WinpodError as error:
            print(f"winpod: {error}", file=sys.stderr)
            code = 1
    return code
