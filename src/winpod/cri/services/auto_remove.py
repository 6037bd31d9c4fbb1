"""Cleanup of pods created by `winpod run` after their container has exited.

The sandbox is stopped to release its network and ports, or removed if it has the remove label; this
does not depend on the client. Logs are removed with their container. A pod whose client was killed
before it started the container is removed at the next start of the runtime.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from pathlib import Path

from winpod.cri.proto import api_pb2 as api
from winpod.cri.services.sandboxes import SandboxService
from winpod.cri.state import Phase, RuntimeState, SandboxRecord
from winpod.errors import WinpodError
from winpod.labels import AUTO_REMOVE_LABEL, RUN_LABEL

_log = logging.getLogger(__name__)


class AutoRemove:
    def __init__(self, state: RuntimeState, sandboxes: SandboxService) -> None:
        self._state = state
        self._sandboxes = sandboxes
        self._cleanups: set[asyncio.Task[None]] = set()

    def check(self, sandbox: SandboxRecord) -> None:
        """Clean up the sandbox if it was created by `run` and its container has exited."""
        if RUN_LABEL in sandbox.parsed_config.labels and self._has_exited(sandbox):
            task = asyncio.create_task(
                self._clean_up(sandbox, AUTO_REMOVE_LABEL in sandbox.parsed_config.labels)
            )
            self._cleanups.add(task)
            task.add_done_callback(self._cleanups.discard)

    def _has_exited(self, sandbox: SandboxRecord) -> bool:
        containers = self._state.containers_of(sandbox)
        return bool(containers) and all(c.phase is Phase.EXITED for c in containers)

    async def recover(self) -> None:
        for sandbox in list(self._state.sandboxes.values()):
            if RUN_LABEL not in sandbox.parsed_config.labels:
                continue
            phases = {container.phase for container in self._state.containers_of(sandbox)}
            if phases <= {Phase.CREATED}:
                await self._clean_up(sandbox, remove=True)
            elif phases == {Phase.EXITED}:
                await self._clean_up(sandbox, AUTO_REMOVE_LABEL in sandbox.parsed_config.labels)

    async def _clean_up(self, sandbox: SandboxRecord, remove: bool) -> None:
        try:
            if remove:
                request = api.RemovePodSandboxRequest(pod_sandbox_id=sandbox.id)
                await self._sandboxes.remove_pod_sandbox(request)
            elif sandbox.phase is Phase.RUNNING:
                stop = api.StopPodSandboxRequest(pod_sandbox_id=sandbox.id)
                await self._sandboxes.stop_pod_sandbox(stop)
        except (WinpodError, OSError) as error:
            _log.warning("Failed to clean up sandbox %s of `winpod run`: %s", sandbox.id, error)

    def delete_log(self, id_: str, sandbox: SandboxRecord) -> None:
        """Delete the log of a container created by `run`; no kubelet rotates or removes it."""
        container = self._state.containers.get(id_)
        if container and container.log_path and RUN_LABEL in sandbox.parsed_config.labels:
            log = Path(container.log_path)
            with contextlib.suppress(OSError):
                for file in log.parent.glob(f"{log.name}*"):
                    file.unlink()
                log.parent.rmdir()

    async def wait_done(self) -> None:
        if self._cleanups:
            await asyncio.wait(self._cleanups)

    @property
    def has_pending(self) -> bool:
        """Whether a cleanup is running or a sandbox is to be removed on exit."""
        return bool(self._cleanups) or any(
            AUTO_REMOVE_LABEL in sandbox.parsed_config.labels
            for sandbox in self._state.sandboxes.values()
        )
