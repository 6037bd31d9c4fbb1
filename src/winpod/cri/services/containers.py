"""Container calls of the CRI RuntimeService: create, start, stop, remove, status, update, exec."""

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
from typing import Protocol

import msgspec

from winpod.compute import backend as compute
from winpod.compute.backend import Backend, ExitStatus
from winpod.compute.disk_mounts import parse_disk_source
from winpod.compute.resources import ResourceRequest, compute_limits
from winpod.compute.spec import (
    NO_DOMAIN_LOGON,
    ContainerRequest,
    ContainerSpec,
    ImageConfig,
    Mount,
    MountSourceKind,
    build_spec,
)
from winpod.concurrency import KeyedLock, run_to_completion
from winpod.cri.convert import (
    read_resource_request,
    read_resource_update,
    signed_exit_code,
    to_container_item,
    to_container_state,
    to_container_status,
    write_resources,
)
from winpod.cri.proto import api_pb2 as api
from winpod.cri.rpc import MESSAGE_LIMIT
from winpod.cri.services.sandboxes import matches_selector
from winpod.cri.state import ContainerRecord, Phase, RuntimeState, SandboxRecord
from winpod.errors import InvalidInput, NotFound, WinpodError
from winpod.images.store.records import StoredImage
from winpod.labels import RUN_LABEL
from winpod.windows.builds import Build, parse_version
from winpod.windows.paths import host_path, is_named_pipe

_log = logging.getLogger(__name__)
_PAGE = 100
_OUTPUT_LIMIT = MESSAGE_LIMIT - 1024
_START_FAILED = 128
_EXIT_CODE_UNKNOWN = 255
_RUN_LOG_LIMIT = 50 << 20
"""Log size limit of `winpod run`, whose logs no kubelet rotates; one old file is kept."""


class NotRunning(WinpodError):
    code = "FAILED_PRECONDITION"


class ImageVolumeFailed(NotFound):
    """The image of an image volume is missing. The kubelet matches the message prefix."""

    def __init__(self, error: WinpodError) -> None:
        super().__init__(f"ImageVolumeMountFailed: {error}")


class ContainerImages(Protocol):
    """The images that containers are created from."""

    async def find(self, image: api.ImageSpec, sandbox: SandboxRecord) -> StoredImage:
        """Return the stored image variant for the sandbox's handler."""

    def config(self, image: StoredImage) -> ImageConfig: ...

    def layers(self, image: StoredImage) -> Sequence[Path]:
        """Return the layers' directories, lowest first."""

    async def retain(self, container_id: str, image: StoredImage) -> None:
        """Keep the image while the container exists."""

    async def release(self, container_id: str) -> None: ...


class ContainerService:
    def __init__(
        self,
        state: RuntimeState,
        backend: Backend,
        images: ContainerImages,
        host: Build,
        host_cpus: int,
        on_change: Callable[[str, api.ContainerEventType, SandboxRecord], None],
    ) -> None:
        self._state = state
        self._backend = backend
        self._images = images
        self._host = host
        self._host_cpus = host_cpus
        self._on_change = on_change
        self._watches: dict[str, asyncio.Task[None]] = {}
        self._locks = KeyedLock(asyncio.Lock)

    async def create_container(
        self, request: api.CreateContainerRequest
    ) -> api.CreateContainerResponse:
        sandbox = require_ready_sandbox(self._state, request.pod_sandbox_id)
        config = request.config
        if not config.metadata.name:
            raise InvalidInput("the container has no name.", "metadata.name is required.")
        image = await self._images.find(config.image, sandbox)
        volumes = await self._image_volumes(config, sandbox)
        cpus = await self._backend.cpu_count(sandbox.id)
        plan = self._plan(config, sandbox, image, volumes, cpus)
        container = ContainerRecord(
            id=secrets.token_hex(32),
            sandbox=sandbox.id,
            name=f"{config.metadata.name}_{sandbox.name}_{config.metadata.attempt}",
            config=config.SerializeToString(),
            phase=Phase.CREATING,
            created_at=time.time_ns(),
            image_id=image.id,
            image_ref=next(iter(image.digests), image.id),
            plan=msgspec.json.encode(plan).decode(),
            log_path=_log_path(sandbox, config),
        )
        require_ready_sandbox(
            self._state, sandbox.id
        )  # may have stopped while the image was looked up
        self._state.add(container)
        try:
            await run_to_completion(self._create(container, plan, image, volumes.values()))
        except asyncio.CancelledError:
            await self.remove(container)  # the client never got its ID
            raise
        return api.CreateContainerResponse(container_id=container.id)

    async def _create(
        self,
        container: ContainerRecord,
        plan: ContainerSpec,
        image: StoredImage,
        volumes: Iterable[StoredImage],
    ) -> None:
        async with self._locks.lock(container.id):
            try:
                for retained in (image, *volumes):
                    await self._images.retain(container.id, retained)
                await self._backend.create_container(self._backend_config(container, image, plan))
                self._state.save(container, phase=Phase.CREATED)
            except BaseException:
                await self._roll_back(container)
                raise
        if sandbox := self._state.sandboxes.get(container.sandbox):
            self._on_change(container.id, api.CONTAINER_CREATED_EVENT, sandbox)

    async def _image_volumes(
        self, config: api.ContainerConfig, sandbox: SandboxRecord
    ) -> dict[str, StoredImage]:
        """Return the images mounted as volumes, by reference."""
        filter_ = {m.image.image: m.image for m in config.mounts if m.image.image}
        try:
            return {
                name: await self._images.find(image, sandbox) for name, image in filter_.items()
            }
        except WinpodError as error:
            raise ImageVolumeFailed(error) from error

    def _plan(
        self,
        config: api.ContainerConfig,
        sandbox: SandboxRecord,
        image: StoredImage,
        volumes: Mapping[str, StoredImage],
        cpus: int,
    ) -> ContainerSpec:
        layers = {name: self._images.layers(volume) for name, volume in volumes.items()}
        return build_spec(
            to_container_request(config, sandbox.parsed_config.annotations, layers),
            self._images.config(image),
            hostname=sandbox.hostname,
            host_cpus=self._host_cpus,
            sandbox_cpus=cpus,
        )

    def _backend_config(
        self, container: ContainerRecord, image: StoredImage, plan: ContainerSpec
    ) -> compute.ContainerConfig:
        return compute.ContainerConfig(
            id=container.id,
            sandbox=container.sandbox,
            spec=plan,
            build=parse_version(image.os_version) or self._host,
            layers=tuple(self._images.layers(image)),
            log_path=container.log_path,
            log_limit=_RUN_LOG_LIMIT if RUN_LABEL in container.parsed_config.labels else 0,
        )

    async def _roll_back(self, container: ContainerRecord) -> None:
        try:
            await self._backend.remove(container.id)
        except (WinpodError, OSError) as error:
            _log.warning("Failed to roll back creation of container %s: %s", container.id, error)
            self._state.save_best_effort(container, phase=Phase.EXITED, reason="Unknown")
            return
        await self._images.release(container.id)
        self._state.delete(container)

    async def start_container(
        self, request: api.StartContainerRequest
    ) -> api.StartContainerResponse:
        container = self._state.container(request.container_id)
        await run_to_completion(self._start_locked(container))
        return api.StartContainerResponse()

    async def _start_locked(self, container: ContainerRecord) -> None:
        async with self._locks.lock(container.id):
            if container.phase is not Phase.CREATED:
                state = api.ContainerState.Name(to_container_state(container))
                raise NotRunning(
                    f"container is in {state} state, and only a created one is started"
                )
            await self._start(container, require_ready_sandbox(self._state, container.sandbox))

    async def _start(self, container: ContainerRecord, sandbox: SandboxRecord) -> None:
        """Start the container. The RUNNING phase is kept in memory even if the disk is full."""
        self._state.save(container, phase=Phase.STARTING)
        try:
            await self._backend.start(container.id)
        except Exception as error:
            self._record_exit(
                container, ExitStatus(_START_FAILED, time.time_ns(), "StartError", str(error))
            )
            raise
        started = max(time.time_ns(), container.created_at)
        self._state.save_best_effort(container, phase=Phase.RUNNING, started_at=started)
        self._on_change(container.id, api.CONTAINER_STARTED_EVENT, sandbox)
        self._watch(container)

    def _watch(self, container: ContainerRecord) -> None:
        task = asyncio.create_task(self._wait_exit(container))
        self._watches[container.id] = task
        task.add_done_callback(lambda _: self._watches.pop(container.id, None))

    async def _wait_exit(self, container: ContainerRecord) -> None:
        try:
            status = await self._backend.wait(container.id)
        except (WinpodError, OSError, ValueError) as error:
            _log.exception("Failed to get exit status of container %s", container.id)
            status = ExitStatus(_EXIT_CODE_UNKNOWN, time.time_ns(), "Unknown", str(error))
        self._record_exit(container, status)

    def _record_exit(self, container: ContainerRecord, exit_status: ExitStatus) -> None:
        """Record the exit. If the disk is full, the next start determines it again."""
        if container.phase in (Phase.EXITED, Phase.REMOVING):
            return
        self._state.save_best_effort(
            container,
            phase=Phase.EXITED,
            finished_at=max(exit_status.finished_at, container.started_at),
            exit_code=exit_status.code,
            reason=exit_status.reason or ("Completed" if exit_status.code == 0 else "Error"),
            message=exit_status.message,
        )
        sandbox = self._state.sandboxes.get(container.sandbox)
        if sandbox:
            self._on_change(container.id, api.CONTAINER_STOPPED_EVENT, sandbox)

    async def stop_container(self, request: api.StopContainerRequest) -> api.StopContainerResponse:
        if container := self._find(request.container_id):
            await self._stop(container, request.timeout)
        return api.StopContainerResponse()

    async def _stop(self, container: ContainerRecord, grace: float) -> None:
        async with self._locks.lock(container.id):
            watch = self._watches.get(container.id)
        if watch is None:
            return
        if grace > 0:
            await self._backend.signal(container.id, kill=False)
            await asyncio.wait((watch,), timeout=grace)
        await self._kill(container)

    async def _kill(self, container: ContainerRecord) -> None:
        watch = self._watches.get(container.id)
        if watch and not watch.done():
            await self._backend.signal(container.id, kill=True)
            await asyncio.wait((watch,))

    async def kill_container(self, container: ContainerRecord) -> None:
        """Kill the container without grace period; used when its sandbox is stopped."""
        await self._stop(container, 0)

    async def remove_container(
        self, request: api.RemoveContainerRequest
    ) -> api.RemoveContainerResponse:
        if container := self._find(request.container_id):
            await self.remove(container)
        return api.RemoveContainerResponse()

    async def remove(self, container: ContainerRecord) -> None:
        await run_to_completion(self._remove(container))

    async def _remove(self, container: ContainerRecord) -> None:
        async with self._locks.lock(container.id):
            if container.id in self._state.containers:
                await self._kill(container)
                await self._delete(container)

    async def _delete(self, container: ContainerRecord) -> None:
        self._state.save_best_effort(container, phase=Phase.REMOVING)
        await self._backend.remove(container.id)
        await self._images.release(container.id)
        if sandbox := self._state.sandboxes.get(container.sandbox):
            self._on_change(container.id, api.CONTAINER_DELETED_EVENT, sandbox)
        self._state.delete(container)

    async def container_status(
        self, request: api.ContainerStatusRequest
    ) -> api.ContainerStatusResponse:
        container = self._state.container(request.container_id)
        info = {"info": _details(container)} if request.verbose else {}
        handler = self._handler(container)
        return api.ContainerStatusResponse(
            status=to_container_status(container, handler), info=info
        )

    async def list_containers(
        self, request: api.ListContainersRequest
    ) -> api.ListContainersResponse:
        return api.ListContainersResponse(containers=self._list(request.filter))

    async def stream_containers(
        self, request: api.StreamContainersRequest
    ) -> AsyncIterator[api.StreamContainersResponse]:
        items = self._list(request.filter)
        for start in range(0, len(items), _PAGE):
            yield api.StreamContainersResponse(containers=items[start : start + _PAGE])

    def _list(self, filter_: api.ContainerFilter) -> list[api.Container]:
        return [
            to_container_item(container, self._handler(container))
            for container in self._state.containers.values()
            if container.phase is not Phase.CREATING
            and container.id.startswith(filter_.id)
            and container.sandbox.startswith(filter_.pod_sandbox_id)
            and (
                not filter_.HasField("state")
                or filter_.state.state == to_container_state(container)
            )
            and matches_selector(filter_.label_selector, container.parsed_config.labels)
        ]

    def _handler(self, container: ContainerRecord) -> str:
        sandbox = self._state.sandboxes.get(container.sandbox)
        return sandbox.handler if sandbox else ""

    async def update_container_resources(
        self, request: api.UpdateContainerResourcesRequest
    ) -> api.UpdateContainerResourcesResponse:
        """Update the limits atomically. Zero values are left unchanged."""
        container = self._state.container(request.container_id)
        async with self._locks.lock(container.id):
            await self._update(container, request)
        return api.UpdateContainerResourcesResponse()

    async def _update(
        self, container: ContainerRecord, request: api.UpdateContainerResourcesRequest
    ) -> None:
        plan = json.loads(container.plan)
        before = ResourceRequest(**plan["asked"])
        after = before.updated(read_resource_update(request, self._host_cpus))
        limits = compute_limits(after, self._host_cpus)
        if container.phase in (Phase.RUNNING, Phase.CREATED):
            await self._backend.update(container.id, limits)
        config = container.parsed_config
        write_resources(config.windows.resources, after)
        plan |= {"asked": asdict(after), "limits": asdict(limits)}
        self._state.save(container, plan=json.dumps(plan), config=config.SerializeToString())

    async def reopen_container_log(
        self, request: api.ReopenContainerLogRequest
    ) -> api.ReopenContainerLogResponse:
        container = require_running_container(self._state, request.container_id)
        await self._backend.reopen_log(container.id)
        return api.ReopenContainerLogResponse()

    async def exec_sync(self, request: api.ExecSyncRequest) -> api.ExecSyncResponse:
        if not request.cmd:
            raise InvalidInput("the command is empty.")
        container = require_running_container(self._state, request.container_id)
        output = await self._backend.exec_sync(container.id, list(request.cmd), request.timeout)
        stdout = output.stdout[:_OUTPUT_LIMIT]
        return api.ExecSyncResponse(
            stdout=stdout,
            stderr=output.stderr[: _OUTPUT_LIMIT - len(stdout)],
            exit_code=signed_exit_code(output.code),
        )

    def close(self) -> None:
        """Stop watching for exits. Containers keep running."""
        for watch in self._watches.values():
            watch.cancel()

    async def recover(self) -> None:
        """Recover after a restart: roll back partial creations and watch running containers."""
        for container in list(self._state.containers.values()):
            try:
                await self._recover(container)
            except (WinpodError, OSError) as error:
                _log.warning("Failed to recover container %s: %s", container.id, error)

    async def _recover(self, container: ContainerRecord) -> None:
        match container.phase:
            case Phase.CREATING:
                await self._roll_back(container)
            case Phase.REMOVING:
                await self.remove(container)
            case Phase.STARTING | Phase.RUNNING:
                await self._resume(container)

    async def _resume(self, container: ContainerRecord) -> None:
        if container.phase is Phase.STARTING:
            if not await self._backend.was_started(container.id):
                self._state.save_best_effort(container, phase=Phase.CREATED)
                return
            self._state.save_best_effort(container, phase=Phase.RUNNING, started_at=time.time_ns())
        if await self._backend.is_running(container.id):
            self._watch(container)
        else:
            await self._wait_exit(container)

    def _find(self, id_: str) -> ContainerRecord | None:
        try:
            return self._state.container(id_)
        except NotFound:
            return None


def require_ready_sandbox(state: RuntimeState, id_: str) -> SandboxRecord:
    sandbox = state.sandbox(id_)
    if sandbox.phase is not Phase.RUNNING or sandbox.ending:
        raise NotRunning(f'sandbox container "{sandbox.id}" is not running')
    return sandbox


def require_running_container(state: RuntimeState, id_: str) -> ContainerRecord:
    container = state.container(id_)
    if container.phase is not Phase.RUNNING:
        state_name = api.ContainerState.Name(to_container_state(container))
        raise NotRunning(f"container is in {state_name} state")
    return container


def _details(container: ContainerRecord) -> str:
    """Return the container spec as verbose info."""
    plan = json.loads(container.plan)
    if plan.get("credential_spec"):
        plan["credential_spec"] = json.loads(plan["credential_spec"])
        plan["credential_spec_note"] = NO_DOMAIN_LOGON
    return json.dumps({"sandbox": container.sandbox, "plan": plan})


def to_container_request(
    config: api.ContainerConfig,
    pod_annotations: Mapping[str, str],
    volumes: Mapping[str, Sequence[Path]],
) -> ContainerRequest:
    """Convert a CRI container config to a ContainerRequest.

    Pod annotations apply to each container, because Kubernetes has annotations on pods only.
    """
    security = config.windows.security_context
    return ContainerRequest(
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
        resources=read_resource_request(config.windows.resources),
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
        kind, sub_path = MountSourceKind.IMAGE, mount.image_sub_path
        return Mount(name, mount.container_path, kind, True, layers, sub_path)
    if disk := parse_disk_source(mount.host_path):
        return Mount(disk[1], mount.container_path, disk[0], mount.readonly)
    source = host_path(mount.host_path)
    return Mount(source, mount.container_path, _kind(source), mount.readonly)


def _kind(source: str) -> MountSourceKind:
    if is_named_pipe(source):
        return MountSourceKind.PIPE
    try:
        mode = Path(source).stat().st_mode
    except FileNotFoundError:
        return MountSourceKind.MISSING
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise InvalidInput(f'failed to stat "{source}": {reason}.') from None
    if stat.S_ISDIR(mode):
        return MountSourceKind.DIRECTORY
    return MountSourceKind.SOCKET if stat.S_ISSOCK(mode) else MountSourceKind.FILE


def _log_path(sandbox: SandboxRecord, config: api.ContainerConfig) -> str:
    """Return the log path. An absolute log_path is still relative to the log directory."""
    if not sandbox.parsed_config.log_directory or not config.log_path:
        return ""
    path = host_path(f"{sandbox.parsed_config.log_directory}/{config.log_path}")
    if "\0" in path:
        raise InvalidInput(f"the log path {path!r} contains a null character.")
    return os.path.normpath(path)
