"""Containers: planned and made, started, watched to their end, and removed."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import secrets
import stat
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from winpod.compute import backend as compute
from winpod.compute.backend import Backend, Exit
from winpod.compute.disk_sources import disk_source
from winpod.compute.plan import (
    NO_DOMAIN_LOGON,
    ContainerAsked,
    Mount,
    Plan,
    SourceKind,
    make_plan,
    read_image_config,
)
from winpod.compute.processes import to_its_end
from winpod.compute.resources import Asked, enforce
from winpod.cri.labels import RUN_LABEL
from winpod.cri.proto import api_pb2 as api
from winpod.cri.resources import asked_change, asked_resources, write_resources
from winpod.cri.rpc import MESSAGE_LIMIT
from winpod.cri.sandboxes import selected
from winpod.cri.state import Container, Phase, Sandbox, State
from winpod.cri.statuses import container_item, container_state, container_status, signed
from winpod.cri.turns import Turns
from winpod.images.pull import variant_for
from winpod.images.pull_choice import narrowing_of
from winpod.images.store import Store
from winpod.images.stored import StoredImage
from winpod.windows.builds import Build, parse_version
from winpod.windows.errors import InvalidInput, NotFound, WinpodError
from winpod.windows.handlers import Handlers
from winpod.windows.paths import is_pipe, machine_path

_log = logging.getLogger(__name__)
_PAGE = 100
_OUTPUT_LIMIT = MESSAGE_LIMIT - 1024
_START_FAILED = 128
_NOBODY_SAW = 255
_RUN_LOG_LIMIT = 50 << 20
"""Of a log that no node rotates; as much again is kept of what was before."""


class NotRunning(WinpodError):
    code = "FAILED_PRECONDITION"


class ImageVolumeFailed(NotFound):
    """An image to be mounted as a volume is not there; the kubelet knows it by its first word."""

    def __init__(self, error: WinpodError) -> None:
        super().__init__(f"ImageVolumeMountFailed: {error}")


class Containers:
    def __init__(
        self,
        state: State,
        backend: Backend,
        store: Store,
        host: Build,
        handlers: Handlers,
        host_cpus: int,
        changed: Callable[[str, api.ContainerEventType, Sandbox], None],
    ) -> None:
        self._state = state
        self._backend = backend
        self._store = store
        self._host = host
        self._handlers = handlers
        self._host_cpus = host_cpus
        self._changed = changed
        self._watches: dict[str, asyncio.Task[None]] = {}
        self._turns = Turns()

    async def create_container(
        self, request: api.CreateContainerRequest
    ) -> api.CreateContainerResponse:
        sandbox = ready_sandbox(self._state, request.pod_sandbox_id)
        config = request.config
        if not config.metadata.name:
            raise InvalidInput("the container has no name.", "metadata.name is required.")
        image = await self._image(config.image, sandbox)
        volumes = await self._image_volumes(config, sandbox)
        cpus = await self._backend.processors(sandbox.id)
        plan = self._plan(config, sandbox, image, volumes, cpus)
        container = Container(
            id=secrets.token_hex(32),
            sandbox=sandbox.id,
            name=f"{config.metadata.name}_{sandbox.name}_{config.metadata.attempt}",
            config=config.SerializeToString(),
            phase=Phase.MAKING,
            created_at=time.time_ns(),
            image_id=image.id,
            image_ref=next(iter(image.digests), image.id),
            plan=json.dumps(asdict(plan)),
            log_path=_log_path(sandbox, config),
        )
        ready_sandbox(self._state, sandbox.id)  # it may have ended while the image was looked up
        self._state.add(container)
        try:
            await to_its_end(self._make(container, plan, image, volumes.values()))
        except asyncio.CancelledError:
            await self.remove(container)  # nobody was told of it
            raise
        return api.CreateContainerResponse(container_id=container.id)

    async def _make(
        self, container: Container, plan: Plan, image: StoredImage, volumes: Iterable[StoredImage]
    ) -> None:
        async with self._turns.of(container.id):
            try:
                for held in (image, *volumes):
                    await asyncio.to_thread(self._store.hold, container.id, held)
                await self._backend.make(self._asked(container, image, plan))
                self._state.save(container, phase=Phase.CREATED)
            except BaseException:
                await self._unmake(container)
                raise
        if sandbox := self._state.sandboxes.get(container.sandbox):
            self._changed(container.id, api.CONTAINER_CREATED_EVENT, sandbox)

    async def _image(self, image: api.ImageSpec, sandbox: Sandbox) -> StoredImage:
        """The variant of the image that the sandbox's handler needs, from what is stored."""
        annotations = {**sandbox.known.annotations, **image.annotations}
        return await variant_for(
            self._store,
            image.image,
            self._handlers.get(sandbox.handler),
            self._host,
            narrowing_of(annotations),
        )

    async def _image_volumes(
        self, config: api.ContainerConfig, sandbox: Sandbox
    ) -> dict[str, StoredImage]:
        """The images that are mounted as volumes, by the names they are asked for with."""
        wanted = {m.image.image: m.image for m in config.mounts if m.image.image}
        try:
            return {name: await self._image(image, sandbox) for name, image in wanted.items()}
        except WinpodError as error:
            raise ImageVolumeFailed(error) from error

    def _plan(
        self,
        config: api.ContainerConfig,
        sandbox: Sandbox,
        image: StoredImage,
        volumes: Mapping[str, StoredImage],
        cpus: int,
    ) -> Plan:
        document = json.loads(self._store.content(image.manifest))
        described = read_image_config(self._store.content(document["config"]["digest"]))
        layers = {name: self._store.layers_of(volume) for name, volume in volumes.items()}
        return make_plan(
            container_asked(config, sandbox.known.annotations, layers),
            described,
            hostname=sandbox.hostname,
            host_cpus=self._host_cpus,
            sandbox_cpus=cpus,
        )

    def _asked(
        self, container: Container, image: StoredImage, plan: Plan
    ) -> compute.ContainerParts:
        return compute.ContainerParts(
            id=container.id,
            sandbox=container.sandbox,
            plan=plan,
            build=parse_version(image.os_version) or self._host,
            layers=tuple(self._store.layers_of(image)),
            log_path=container.log_path,
            log_limit=_RUN_LOG_LIMIT if RUN_LABEL in container.known.labels else 0,
        )

    async def _unmake(self, container: Container) -> None:
        try:
            await self._backend.remove(container.id)
        except (WinpodError, OSError) as error:
            _log.warning("container %s could not be undone: %s", container.id, error)
            self._state.note(container, phase=Phase.EXITED, reason="Unknown")
            return
        await asyncio.to_thread(self._store.release, container.id)
        self._state.forget(container)

    async def start_container(
        self, request: api.StartContainerRequest
    ) -> api.StartContainerResponse:
        container = self._state.container(request.container_id)
        await to_its_end(self._start_in_turn(container))
        return api.StartContainerResponse()

    async def _start_in_turn(self, container: Container) -> None:
        async with self._turns.of(container.id):
            if container.phase is not Phase.CREATED:
                state = api.ContainerState.Name(container_state(container))
                raise NotRunning(
                    f"container is in {state} state, and only a created one is started"
                )
            await self._start(container, ready_sandbox(self._state, container.sandbox))

    async def _start(self, container: Container, sandbox: Sandbox) -> None:
        """A program that runs is known to, on a disk that takes no word of it too."""
        self._state.save(container, phase=Phase.STARTING)
        try:
            await self._backend.start(container.id)
        except Exception as error:
            self._ended(container, Exit(_START_FAILED, time.time_ns(), "StartError", str(error)))
            raise
        started = max(time.time_ns(), container.created_at)
        self._state.note(container, phase=Phase.RUNNING, started_at=started)
        self._changed(container.id, api.CONTAINER_STARTED_EVENT, sandbox)
        self._watch(container)

    def _watch(self, container: Container) -> None:
        task = asyncio.create_task(self._until_the_end(container))
        self._watches[container.id] = task
        task.add_done_callback(lambda _: self._watches.pop(container.id, None))

    async def _until_the_end(self, container: Container) -> None:
        try:
            end = await self._backend.wait(container.id)
        except (WinpodError, OSError, ValueError) as error:
            _log.exception("how container %s ended is not known", container.id)
            end = Exit(_NOBODY_SAW, time.time_ns(), "Unknown", str(error))
        self._ended(container, end)

    def _ended(self, container: Container, end: Exit) -> None:
        """What the disk cannot take now is found again at the next start."""
        if container.phase in (Phase.EXITED, Phase.REMOVING):
            return
        self._state.note(
            container,
            phase=Phase.EXITED,
            finished_at=max(end.finished_at, container.started_at),
            exit_code=end.code,
            reason=end.reason or ("Completed" if end.code == 0 else "Error"),
            message=end.message,
        )
        sandbox = self._state.sandboxes.get(container.sandbox)
        if sandbox:
            self._changed(container.id, api.CONTAINER_STOPPED_EVENT, sandbox)

    async def stop_container(self, request: api.StopContainerRequest) -> api.StopContainerResponse:
        if container := self._maybe(request.container_id):
            await self._stop(container, request.timeout)
        return api.StopContainerResponse()

    async def _stop(self, container: Container, grace: float) -> None:
        async with self._turns.of(container.id):
            watch = self._watches.get(container.id)
        if watch is None:
            return
        if grace > 0:
            await self._backend.signal(container.id, kill=False)
            await asyncio.wait((watch,), timeout=grace)
        await self._kill(container)

    async def _kill(self, container: Container) -> None:
        watch = self._watches.get(container.id)
        if watch and not watch.done():
            await self._backend.signal(container.id, kill=True)
            await asyncio.wait((watch,))

    async def end(self, container: Container) -> None:
        """At once, as the end of its sandbox asks."""
        await self._stop(container, 0)

    async def remove_container(
        self, request: api.RemoveContainerRequest
    ) -> api.RemoveContainerResponse:
        if container := self._maybe(request.container_id):
            await self.remove(container)
        return api.RemoveContainerResponse()

    async def remove(self, container: Container) -> None:
        await to_its_end(self._remove(container))

    async def _remove(self, container: Container) -> None:
        async with self._turns.of(container.id):
            if container.id in self._state.containers:
                await self._kill(container)
                await self._take_apart(container)

    async def _take_apart(self, container: Container) -> None:
        self._state.note(container, phase=Phase.REMOVING)
        await self._backend.remove(container.id)
        await asyncio.to_thread(self._store.release, container.id)
        if sandbox := self._state.sandboxes.get(container.sandbox):
            self._changed(container.id, api.CONTAINER_DELETED_EVENT, sandbox)
        self._state.forget(container)

    async def container_status(
        self, request: api.ContainerStatusRequest
    ) -> api.ContainerStatusResponse:
        container = self._state.container(request.container_id)
        info = {"info": _details(container)} if request.verbose else {}
        handler = self._handler(container)
        return api.ContainerStatusResponse(status=container_status(container, handler), info=info)

    async def list_containers(
        self, request: api.ListContainersRequest
    ) -> api.ListContainersResponse:
        return api.ListContainersResponse(containers=self._listed(request.filter))

    async def stream_containers(
        self, request: api.StreamContainersRequest
    ) -> AsyncIterator[api.StreamContainersResponse]:
        items = self._listed(request.filter)
        for start in range(0, len(items), _PAGE):
            yield api.StreamContainersResponse(containers=items[start : start + _PAGE])

    def _listed(self, wanted: api.ContainerFilter) -> list[api.Container]:
        return [
            container_item(container, self._handler(container))
            for container in self._state.containers.values()
            if container.phase is not Phase.MAKING
            and container.id.startswith(wanted.id)
            and container.sandbox.startswith(wanted.pod_sandbox_id)
            and (not wanted.HasField("state") or wanted.state.state == container_state(container))
            and selected(wanted.label_selector, container.known.labels)
        ]

    def _handler(self, container: Container) -> str:
        sandbox = self._state.sandboxes.get(container.sandbox)
        return sandbox.handler if sandbox else ""

    async def update_container_resources(
        self, request: api.UpdateContainerResourcesRequest
    ) -> api.UpdateContainerResourcesResponse:
        """All of it or nothing; a zero leaves a value as it is."""
        container = self._state.container(request.container_id)
        async with self._turns.of(container.id):
            await self._update(container, request)
        return api.UpdateContainerResourcesResponse()

    async def _update(
        self, container: Container, request: api.UpdateContainerResourcesRequest
    ) -> None:
        plan = json.loads(container.plan)
        before = Asked(**plan["asked"])
        after = before.updated(asked_change(request, self._host_cpus))
        limits = enforce(after, self._host_cpus)
        if container.phase in (Phase.RUNNING, Phase.CREATED):
            await self._backend.update(container.id, limits)
        config = container.known
        write_resources(config.windows.resources, after)
        plan |= {"asked": asdict(after), "limits": asdict(limits)}
        self._state.save(container, plan=json.dumps(plan), config=config.SerializeToString())

    async def reopen_container_log(
        self, request: api.ReopenContainerLogRequest
    ) -> api.ReopenContainerLogResponse:
        container = running_container(self._state, request.container_id)
        await self._backend.reopen_log(container.id)
        return api.ReopenContainerLogResponse()

    async def exec_sync(self, request: api.ExecSyncRequest) -> api.ExecSyncResponse:
        if not request.cmd:
            raise InvalidInput("there is no command to run in the container.")
        container = running_container(self._state, request.container_id)
        output = await self._backend.run(container.id, list(request.cmd), request.timeout)
        stdout = output.stdout[:_OUTPUT_LIMIT]
        return api.ExecSyncResponse(
            stdout=stdout,
            stderr=output.stderr[: _OUTPUT_LIMIT - len(stdout)],
            exit_code=signed(output.code),
        )

    def close(self) -> None:
        """Nobody waits for an end any longer; containers go on."""
        for watch in self._watches.values():
            watch.cancel()

    async def recover(self) -> None:
        """After a restart: what was half made is undone, what runs is watched again."""
        for container in list(self._state.containers.values()):
            try:
                await self._settle(container)
            except (WinpodError, OSError) as error:
                _log.warning("container %s is left as it was: %s", container.id, error)

    async def _settle(self, container: Container) -> None:
        match container.phase:
            case Phase.MAKING:
                await self._unmake(container)
            case Phase.REMOVING:
                await self.remove(container)
            case Phase.STARTING | Phase.RUNNING:
                await self._find_again(container)

    async def _find_again(self, container: Container) -> None:
        if container.phase is Phase.STARTING:
            if not await self._backend.was_started(container.id):
                self._state.note(container, phase=Phase.CREATED)
                return
            self._state.note(container, phase=Phase.RUNNING, started_at=time.time_ns())
        if await self._backend.is_running(container.id):
            self._watch(container)
        else:
            await self._until_the_end(container)

    def _maybe(self, id_: str) -> Container | None:
        try:
            return self._state.container(id_)
        except NotFound:
            return None


def ready_sandbox(state: State, id_: str) -> Sandbox:
    sandbox = state.sandbox(id_)
    if sandbox.phase is not Phase.RUNNING or sandbox.ending:
        raise NotRunning(f'sandbox container "{sandbox.id}" is not running')
    return sandbox


def running_container(state: State, id_: str) -> Container:
    container = state.container(id_)
    if container.phase is not Phase.RUNNING:
        found = api.ContainerState.Name(container_state(container))
        raise NotRunning(f"container is in {found} state")
    return container


def _details(container: Container) -> str:
    """The plan, for people."""
    plan = json.loads(container.plan)
    if plan.get("credential_spec"):
        plan["credential_spec"] = json.loads(plan["credential_spec"])
        plan["credential_spec_note"] = NO_DOMAIN_LOGON
    return json.dumps({"sandbox": container.sandbox, "plan": plan})


def container_asked(
    config: api.ContainerConfig,
    pod_annotations: Mapping[str, str],
    volumes: Mapping[str, Sequence[Path]],
) -> ContainerAsked:
    """What a request asks of one container, as plain data.

    An annotation of the pod is one of each of its containers: in Kubernetes only pods have any.
    """
    security = config.windows.security_context
    return ContainerAsked(
        command=tuple(config.command),
        args=tuple(config.args),
        cwd=config.working_dir,
        env=tuple((pair.key, _text(pair)) for pair in config.envs),
        mounts=tuple(_mount(mount, volumes) for mount in config.mounts),
        user=security.run_as_username,
        tty=config.tty,
        stdin=config.stdin,
        stdin_once=config.stdin_once,
        host_process=security.host_process,
        resources=asked_resources(config.windows.resources),
        annotations={**pod_annotations, **config.annotations},
        credential_spec=security.credential_spec,
    )


def _text(pair: api.KeyValue) -> str:
    try:
        return pair.value.decode()
    except UnicodeDecodeError:
        raise InvalidInput(f"the environment variable {pair.key} is not UTF-8 text.") from None


def _mount(mount: api.Mount, volumes: Mapping[str, Sequence[Path]]) -> Mount:
    if name := mount.image.image:
        layers = tuple(str(layer) for layer in volumes[name])
        kind, sub_path = SourceKind.IMAGE, mount.image_sub_path
        return Mount(name, mount.container_path, kind, True, layers, sub_path)
    if disk := disk_source(mount.host_path):
        return Mount(disk[1], mount.container_path, disk[0], mount.readonly)
    source = machine_path(mount.host_path)
    return Mount(source, mount.container_path, _kind(source), mount.readonly)


def _kind(source: str) -> SourceKind:
    if is_pipe(source):
        return SourceKind.PIPE
    try:
        mode = Path(source).stat().st_mode
    except FileNotFoundError:
        return SourceKind.MISSING
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise InvalidInput(f'failed to stat "{source}": {reason}.') from None
    if stat.S_ISDIR(mode):
        return SourceKind.DIRECTORY
    return SourceKind.SOCKET if stat.S_ISSOCK(mode) else SourceKind.FILE


def _log_path(sandbox: Sandbox, config: api.ContainerConfig) -> str:
    """Also one that begins with a slash is below the pod's directory."""
    if not sandbox.known.log_directory or not config.log_path:
        return ""
    path = machine_path(f"{sandbox.known.log_directory}/{config.log_path}")
    if "\0" in path:
        raise InvalidInput(f"{path!r} is no path for a log: it has a null character.")
    return os.path.normpath(path)
