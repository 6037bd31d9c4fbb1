"""Finding containers by name, ID prefix, pod or owner, for every command.

Covers the containers of the runtime daemon and those of the nodes of `winpod play`.
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

from winpod.cli.options import short_id
from winpod.cli.play.names import complete_names, has_pods, owner_named
from winpod.concurrency import cancel_and_wait
from winpod.config import Config, read_config
from winpod.cri.daemon import connect_daemon, daemon_directory
from winpod.cri.proto import api_pb2 as api
from winpod.cri.rpc import CriClient, RemoteError
from winpod.errors import InvalidInput, NotFound, WinpodError
from winpod.labels import DEFAULT_CONTAINER_ANNOTATION, OWNER_ANNOTATION, RUN_LABEL

Result = TypeVar("Result")

Target = Annotated[
    str,
    typer.Argument(
        metavar="CONTAINER",
        help="Name, ID or ID prefix, POD, POD/CONTAINER, or KIND/NAME such as deploy/web.",
        autocompletion=complete_names,
    ),
]
Targets = Annotated[
    list[str],
    typer.Argument(
        metavar="CONTAINER...",
        help="Names, IDs or ID prefixes, pods, or KIND/NAME such as deploy/web.",
        autocompletion=complete_names,
    ),
]
ContainerOption = Annotated[
    str, typer.Option("--container", "-c", metavar="NAME", help="Container of the pod.")
]
Namespace = Annotated[
    str, typer.Option("--namespace", "-n", metavar="NAME", help="Namespace of the pod.")
]


class TargetNotRunning(WinpodError):
    code = "FAILED_PRECONDITION"


@dataclass(frozen=True, slots=True)
class ListedContainer:
    """A container, its pod sandbox and the client of its runtime."""

    container: Any
    sandbox: Any
    client: CriClient

    @property
    def id(self) -> str:
        return str(self.container.id)

    @property
    def is_from_run(self) -> bool:
        return RUN_LABEL in self.sandbox.labels

    @property
    def name(self) -> str:
        """Return the name given by `run`, or POD/CONTAINER."""
        pod = str(self.sandbox.metadata.name)
        return pod if self.is_from_run else f"{pod}/{self.container.metadata.name}"

    @property
    def image(self) -> str:
        spec = self.container.image
        return str(spec.user_specified_image or spec.image)

    @property
    def is_running(self) -> bool:
        return bool(self.container.state == api.CONTAINER_RUNNING)


Clients = Sequence[CriClient]
"""One client per runtime."""


def run_with_runtimes(root: Path | None, work: Callable[[Clients], Awaitable[Result]]) -> Result:
    """Run `work` with clients of all runtimes of this root."""

    async def connected() -> Result:
        config = read_config()
        async with _runtimes(replace(config, root=(root or config.root).absolute())) as clients:
            return await work(clients)

    return asyncio.run(connected())


@asynccontextmanager
async def _runtimes(config: Config) -> AsyncIterator[Clients]:
    """Connect to the runtime daemon, if it was ever used, and to the nodes of `play`."""
    async with AsyncExitStack() as stack:
        clients: list[CriClient] = []
        if has_pods(config.root):
            from winpod.play.client import connect_or_start

            play = await stack.enter_async_context(connect_or_start(config.root, config))
            for node in (await play.get("state"))["nodes"]:
                client = CriClient(f"unix:{node['socket']}")
                stack.push_async_callback(client.close)
                clients.append(client)
        if not clients or (daemon_directory(config.root) / "state.db").exists():
            found = await stack.enter_async_context(connect_daemon(config.root))
            clients.insert(0, found.client)
        yield clients


async def list_containers(clients: Clients) -> list[ListedContainer]:
    """List all containers, newest first."""
    found = await asyncio.gather(*map(_list_containers, clients))
    return sorted(
        (one for listed in found for one in listed),
        key=lambda listed: -listed.container.created_at,
    )


async def _list_containers(client: CriClient) -> list[ListedContainer]:
    containers, sandboxes = await asyncio.gather(
        client.call("ListContainers", api.ListContainersRequest()),
        client.call("ListPodSandbox", api.ListPodSandboxRequest()),
    )
    pods = {sandbox.id: sandbox for sandbox in sandboxes.items}
    return [
        ListedContainer(container, pods[container.pod_sandbox_id], client)
        for container in containers.containers
        if container.pod_sandbox_id in pods
    ]


async def find_container(
    clients: Clients, text: str, container: str = "", namespace: str = ""
) -> ListedContainer:
    return choose_container(await list_containers(clients), text, container, namespace)


def choose_container(
    listed: Sequence[ListedContainer], text: str, container: str = "", namespace: str = ""
) -> ListedContainer:
    """Find a container by ID, name, ID prefix, pod or owner, in this order."""
    if namespace:
        listed = [one for one in listed if one.sandbox.metadata.namespace == namespace]
    for matches in (
        [one for one in listed if one.id == text],
        _newest_attempts([one for one in listed if one.name == text]),
        [one for one in listed if one.id.startswith(text)],
        container_of_pod(listed, text, container),
        [one for one in listed if text in (one.sandbox.metadata.name, one.container.metadata.name)],
    ):
        if len(matches) == 1:
            return matches[0]
        if matches and text:
            several = ", ".join(f"{short_id(one.id)} ({one.name})" for one in matches[:5])
            raise InvalidInput(
                f'"{text}" is ambiguous: {several}.',
                "Write more of the ID, or select with -c and -n.",
            )
    raise _not_found(listed, text, container)


def _not_found(listed: Sequence[ListedContainer], text: str, container: str) -> NotFound:
    if container and (pod := container_of_pod(listed, text, "")):
        name = pod[0].sandbox.metadata.name
        others = [one for one in listed if one.sandbox.metadata.name == name]
        names = ", ".join(sorted({one.container.metadata.name for one in others}))
        return NotFound(f'{name} has no container "{container}".', f"It has: {names}.")
    if owner_named(text):
        advice = "List pods with `winpod ps --pods`; name a pod or its owner, such as deploy/web."
        return NotFound(f"{text} has no pod.", advice)
    return NotFound(f'No such container: "{text}".', "List containers with `winpod ps -a`.")


def require_running(found: ListedContainer) -> None:
    """Raise TargetNotRunning unless the container is running."""
    if not found.is_running:
        raise TargetNotRunning(
            f"{found.name} is not running: it has exited or was not started.",
            f"See `winpod ps -a` for its status and `winpod logs {found.name}` for its output.",
        )


def container_of_pod(
    listed: Sequence[ListedContainer], text: str, container: str
) -> list[ListedContainer]:
    """Find the containers of a pod, given by its name or its owner: `deploy/web`.

    Without a container name the default container annotation applies. Only the newest attempt of a
    container counts; of several pods of an owner, the first running one is used.
    """
    owner = owner_named(text)
    name = text.partition("/")[2] if owner and owner.startswith("Pod/") else text
    found = [
        one
        for one in listed
        if not one.is_from_run
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
    return _newest_attempts(found)


def _newest_attempts(found: Sequence[ListedContainer]) -> list[ListedContainer]:
    """Keep the newest attempt of each container. `found` has the newest first."""
    newest: dict[tuple[str, str, str], ListedContainer] = {}
    for one in found:
        metadata = one.sandbox.metadata
        key = (metadata.namespace, metadata.name, one.container.metadata.name)
        newest.setdefault(key, one)
    return list(newest.values())


async def container_status(client: CriClient, container: str) -> Any:
    request = api.ContainerStatusRequest(container_id=container)
    return (await client.call("ContainerStatus", request)).status


async def exit_code(client: CriClient, container: str) -> int:
    """Wait for a container to exit and return its exit code; 255 if it cannot be determined.

    Subscribes to events before reading the status, so that the exit is not missed. The event also
    carries the exit code of a container that is removed on exit.
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
        await cancel_and_wait(ended)


async def _end_event(client: CriClient, container: str) -> int:
    async for event in client.stream("GetContainerEvents", api.GetEventsRequest()):
        if event.container_event_type == api.CONTAINER_STOPPED_EVENT:
            for status in event.containers_statuses:
                if status.id == container:
                    return int(status.exit_code)
    return 255


async def remove_pod(client: CriClient, sandbox: str) -> None:
    request = api.RemovePodSandboxRequest(pod_sandbox_id=sandbox)
    await client.call("RemovePodSandbox", request)


async def for_each(
    clients: Clients, targets: Sequence[str], work: Callable[[ListedContainer], Awaitable[None]]
) -> int:
    """Run `work` for each target; print those done, and errors on stderr. Returns the exit code."""
    listed = await list_containers(clients)
    code = 0
    for target in targets:
        try:
            await work(choose_container(listed, target))
            print(target)
        except WinpodError as error:
            print(f"winpod: {error}", file=sys.stderr)
            code = 1
    return code
