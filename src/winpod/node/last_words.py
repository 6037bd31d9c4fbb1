"""What a container said about its end: its termination message, or the end of its log."""

from __future__ import annotations

from pathlib import Path

from winpod.cri.proto import api_pb2 as api
from winpod.node.requests import MESSAGE_PATH, MESSAGE_POLICY

LONGEST = 4096
_LOG_BYTES, _LOG_LINES = 2048, 80


def last_words(status: api.ContainerStatus) -> str:
    """Of a container that has ended; what the runtime says about its end comes first."""
    said = _message(status)
    if not said and _may_quote_the_log(status):
        said = _end_of_log(Path(status.log_path))
    return ": ".join(part for part in (status.message, said) if part)


def _may_quote_the_log(status: api.ContainerStatus) -> bool:
    policy = status.annotations.get(MESSAGE_POLICY, "")
    return policy == "FallbackToLogsOnError" and status.exit_code != 0 and bool(status.log_path)


def _message(status: api.ContainerStatus) -> str:
    path = status.annotations.get(MESSAGE_PATH, "")
    mounted = (mount.host_path for mount in status.mounts if mount.container_path == path)
    file = next(mounted, "")
    if not path or not file:
        return ""
    try:
        return _tail(Path(file), LONGEST).decode(errors="replace")
    except FileNotFoundError:
        return ""
    except OSError as error:
        return f"Error on reading termination log {file}: {error.strerror}"


def _tail(file: Path, size: int) -> bytes:
    with file.open("rb") as opened:
        opened.seek(max(file.stat().st_size - size, 0))
        return opened.read(size)


def _end_of_log(file: Path) -> str:
    try:
        lines = _tail(file, 4 * _LOG_BYTES).decode(errors="replace").splitlines(keepends=True)
    except OSError:
        return ""
    content = "".join(_content(line) for line in lines[-_LOG_LINES:])
    return content.encode()[-_LOG_BYTES:].decode(errors="ignore")


def _content(line: str) -> str:
    """A log line has a time, a stream and a tag before what was written."""
    parts = line.split(" ", 3)
    return parts[3] if len(parts) == 4 else ""
