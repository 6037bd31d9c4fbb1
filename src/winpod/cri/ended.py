"""What becomes of a pod that `winpod run` made when its container has ended.

Its network and ports are given back, and with the label for it all of it is removed, wherever the
client is by then. A log goes with its container. A pod whose client was killed before it started
anything is removed by the next start of the runtime.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from pathlib import Path

from winpod.cri.labels import REMOVE_LABEL, RUN_LABEL
from winpod.cri.proto import api_pb2 as api
from winpod.cri.sandboxes import Sandboxes
from winpod.cri.state import Phase, Sandbox, State
from winpod.windows.errors import WinpodError

_log = logging.getLogger(__name__)


class Ended:
    def __init__(self, state: State, sandboxes: Sandboxes) -> None:
        self._state = state
        self._sandboxes = sandboxes
        self._settling: set[asyncio.Task[None]] = set()

    def look(self, sandbox: Sandbox) -> None:
        """Its container has ended, or may have."""
        if RUN_LABEL in sandbox.known.labels and self._has_ended(sandbox):
            task = asyncio.create_task(self._settle(sandbox, REMOVE_LABEL in sandbox.known.labels))
            self._settling.add(task)
            task.add_done_callback(self._settling.discard)

    def _has_ended(self, sandbox: Sandbox) -> bool:
        containers = self._state.containers_of(sandbox)
        return bool(containers) and all(c.phase is Phase.EXITED for c in containers)

    async def recover(self) -> None:
        for sandbox in list(self._state.sandboxes.values()):
            if RUN_LABEL not in sandbox.known.labels:
                continue
            phases = {container.phase for container in self._state.containers_of(sandbox)}
            if phases <= {Phase.CREATED}:
                await self._settle(sandbox, remove=True)
            elif phases == {Phase.EXITED}:
                await self._settle(sandbox, REMOVE_LABEL in sandbox.known.labels)

    async def _settle(self, sandbox: Sandbox, remove: bool) -> None:
        try:
            if remove:
                request = api.RemovePodSandboxRequest(pod_sandbox_id=sandbox.id)
                await self._sandboxes.remove_pod_sandbox(request)
            elif sandbox.phase is Phase.RUNNING:
                stop = api.StopPodSandboxRequest(pod_sandbox_id=sandbox.id)
                await self._sandboxes.stop_pod_sandbox(stop)
        except (WinpodError, OSError) as error:
            _log.warning("pod %s of `winpod run` is left as it is: %s", sandbox.id, error)

    def delete_log(self, id_: str, sandbox: Sandbox) -> None:
        """Nobody else knows of the log of a container that `run` made."""
        container = self._state.containers.get(id_)
        if container and container.log_path and RUN_LABEL in sandbox.known.labels:
            log = Path(container.log_path)
            with contextlib.suppress(OSError):
                for file in log.parent.glob(f"{log.name}*"):
                    file.unlink()
                log.parent.rmdir()

    async def finish(self) -> None:
        if self._settling:
            await asyncio.wait(self._settling)

    @property
    def awaits(self) -> bool:
        """Whether something is still to be removed when it ends."""
        return bool(self._settling) or any(
            REMOVE_LABEL in sandbox.known.labels for sandbox in self._state.sandboxes.values()
        )
