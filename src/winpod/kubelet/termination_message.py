"""The termination message of a container: its message file, or the tail of its log."""

from __future__ import annotations

from pathlib import Path

from winpod.cri.proto import api_pb2 as api
from winpod.kubelet.cri_convert import (
    TERMINATION_MESSAGE_PATH_LABEL,
    TERMINATION_MESSAGE_POLICY_LABEL,
)

MAX_MESSAGE_BYTES = 4096
_LOG_BYTES, _LOG_LINES = 2048, 80


def termination_message(status: api.ContainerStatus) -> str:
    """Return the message of a terminated container, after the runtime's own message."""
    message = _message_from_file(status)
    if not message and _falls_back_to_log(status):
        message = _log_tail(Path(status.log_path))
    return ": ".join(part for part in (status.message, message) if part)


def _falls_back_to_log(status: api.ContainerStatus) -> bool:
    policy = status.annotations.get(TERMINATION_MESSAGE_POLICY_LABEL, "")
    return policy == "FallbackToLogsOnError" and status.exit_code != 0 and bool(status.log_path)


def _message_from_file(status: api.ContainerStatus) -> str:
    path = status.annotations.get(TERMINATION_MESSAGE_PATH_LABEL, "")
    mounted = (mount.host_path for mount in status.mounts if mount.container_path == path)
    file = next(mounted, "")
    if not path or not file:
        return ""
    try:
        return _tail(Path(file), MAX_MESSAGE_BYTES).decode(errors="replace")
    except FileNotFoundError:
        return ""
    except OSError as error:
        return f"Error on reading termination log {file}: {error.strerror}"


def _tail(file: Path, size: int) -> bytes:
    with file.open("rb") as opened:
        opened.seek(max(file.stat().st_size - size, 0))
        return opened.read(size)


def _log_tail(file: Path) -> str:
    try:
        lines = _tail(file, 4 * _LOG_BYTES).decode(errors="replace").splitlines(keepends=True)
    except OSError:
        return ""
    content = "".join(_content(line) for line in lines[-_LOG_LINES:])
    return content.encode()[-_LOG_BYTES:].decode(errors="ignore")


def _content(line: str) -> str:
    """Strip timestamp, stream and tag from a CRI log line."""
    parts = line.split(" ", 3)
    return parts[3] if len(parts) == 4 else ""
