"""Log of CRI calls: a line for each call with its pod, container, image, duration and result.

Only names, IDs and results are logged: never commands, environments, annotations or credentials.
"""

from __future__ import annotations

import logging
import time
from asyncio import CancelledError
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from google.protobuf.message import Message

from winpod.errors import WinpodError

_log = logging.getLogger(__name__)

MUTATING = frozenset(
    (
        *("RunPodSandbox", "StopPodSandbox", "RemovePodSandbox", "UpdatePodSandboxResources"),
        *("CreateContainer", "StartContainer", "StopContainer", "RemoveContainer"),
        *("UpdateContainerResources", "ReopenContainerLog"),
        *("Exec", "Attach", "PortForward", "PullImage", "RemoveImage", "UpdateRuntimeConfig"),
        *("CheckpointContainer", "CheckpointPod", "RestorePod"),
    )
)
"""Calls logged at info; others at debug. ExecSync is a probe's call, every few seconds."""
_MAX_ERROR = 500

FindSubject = Callable[[str, str], Mapping[str, str]]
"""Returns the fields of a sandbox and a container by their IDs, of which one may be empty."""


class LoggedCall:
    """A call in progress. Set `response` or `error` before it ends."""

    def __init__(self) -> None:
        self.response: Message | None = None
        self.error: WinpodError | None = None


@contextmanager
def log_call(name: str, request: Any, find_subject: FindSubject) -> Iterator[LoggedCall]:
    """Log a call when it ends."""
    level = logging.INFO if name in MUTATING else logging.DEBUG
    call = LoggedCall()
    if not _log.isEnabledFor(level):
        yield call
        return
    fields = _request_fields(request, find_subject)  # before a removal
    started, result = time.monotonic(), "ok"
    try:
        yield call
    except CancelledError:
        result = "cancelled"
        raise
    finally:
        fields |= _response_fields(call.response)
        fields["duration"] = round(time.monotonic() - started, 3)
        fields["result"] = "error" if call.error else result
        if call.error:
            fields["reason"] = call.error.reason
            fields["error"] = str(call.error)[:_MAX_ERROR]
        text = " ".join(f"{key}={value}" for key, value in fields.items())
        _log.log(level, "%s %s", name, text, extra={"method": name, **fields})


def _request_fields(request: Any, find_subject: FindSubject) -> dict[str, Any]:
    config: Any = getattr(request, "config", None)
    sandbox_config: Any = getattr(request, "sandbox_config", config)
    pod = sandbox_config.metadata if hasattr(sandbox_config, "log_directory") else None
    container = config.metadata if hasattr(config, "command") else None
    image = getattr(request, "image", None) or getattr(config, "image", None)
    sandbox_id = getattr(request, "pod_sandbox_id", "")
    fields = {
        "pod": f"{pod.namespace}/{pod.name}" if pod and pod.name else "",
        "sandbox": sandbox_id,
        "container": getattr(request, "container_id", ""),
        "container_name": container.name if container else "",
        "handler": getattr(request, "runtime_handler", "") or getattr(image, "runtime_handler", ""),
        "image": getattr(image, "image", ""),
    }
    fields |= find_subject(sandbox_id, fields["container"])
    return {key: value for key, value in fields.items() if value}


def _response_fields(response: Any) -> dict[str, str]:
    """Return the IDs of what was created."""
    names = {"pod_sandbox_id": "sandbox", "container_id": "container", "image_ref": "image_id"}
    found = {field: getattr(response, name, "") for name, field in names.items()}
    return {field: value for field, value in found.items() if value}
