"""Collects diagnostics of an instance: logs, events, services, networks and state.

Each item is collected separately with its own timeout; one that fails is reported and listed in
`missing.txt`. Keys and kubeconfigs are never read, and text that looks like a secret is redacted.
"""

from __future__ import annotations

import dataclasses
import io
import json
import re
import tarfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path, PureWindowsPath
from typing import Any

from winpod.errors import WinpodError
from winpod.instances import paths
from winpod.instances.planner.desired import FactQuery
from winpod.instances.planner.state import CONTAINERD, DOCKER, KUBELET
from winpod.instances.software.programs import CSI_PROXY, EXPORTER, HYBRID_OVERLAY, KUBE_PROXY
from winpod.instances.ssh.facts import collect_facts
from winpod.instances.ssh.host import SshHost
from winpod.instances.ssh.reboot import ProgressCallback
from winpod.instances.ssh.scripts import call_program, decode_output, quote_path

LOG_BYTES = 8 << 20
STATE_SECONDS = 120.0
SERVICES = (CONTAINERD, KUBELET, KUBE_PROXY, HYBRID_OVERLAY, CSI_PROXY, EXPORTER, *DOCKER)
QUERY = FactQuery((), (), SERVICES, ("Containers", "Microsoft-Hyper-V"))
LOGS = (
    paths.CONTAINERD_LOGS,
    paths.KUBELET_LOGS,
    paths.KUBE_PROXY_LOGS,
    paths.HYBRID_OVERLAY_LOGS,
    paths.CSI_PROXY_LOGS,
)
CONFIGURATION = (
    paths.CONTAINERD_CONFIG,
    paths.NETWORK_CONFIG,
    paths.KUBELET_CONFIG,
    paths.KUBE_PROXY_CONFIG,
    paths.VERSION,
)
_CRICTL = rf"{paths.BIN}\crictl.exe"
_EVENTS = "*[System[Provider[@Name='Service Control Manager']]]"
_SECRET = re.compile(
    r"""(?i)("?[\w-]*(?:password|passwd|secret|token|authorization|auth|key-data)"?\s*[:=]\s*)"""
    r"""("[^"\n]*"|'[^'\n]*'|(?!true\b|false\b|null\b)[^\s{\["'][^\n,}]*)"""
)
_TOKEN = re.compile(r"\b[a-z0-9]{6}\.[a-z0-9]{16}\b|(?<=Bearer )\S+|eyJ[\w-]+\.[\w-]+\.[\w-]+")
REDACTED = "(redacted)"


Read = Callable[[], Awaitable[str]]


async def collect_logs(host: SshHost, path: Path, progress: ProgressCallback) -> Path:
    """Write an archive of everything that can be collected, and return its path."""
    directory = f"{host.name}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}"
    await host.connect()
    missing: list[str] = []
    temporary = path.with_name(f".{path.name}.new")
    try:
        with tarfile.open(temporary, "w:gz") as archive:
            async for name, text in _collect(host, missing, progress):
                _add(archive, f"{directory}/{name}", redact_secrets(text))
            _add(archive, f"{directory}/missing.txt", "".join(f"{line}\n" for line in missing))
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return path


def redact_secrets(text: str) -> str:
    return _TOKEN.sub(REDACTED, _SECRET.sub(rf'\1"{REDACTED}"', text))


async def _collect(
    host: SshHost, missing: list[str], progress: ProgressCallback
) -> AsyncIterator[tuple[str, str]]:
    """Yield names and contents. After the connection is lost, nothing more is tried."""
    async for name, read in _items(host):
        progress(f"reading {name}")
        try:
            text = await read()
        except WinpodError as error:
            progress(f"skipped {name}: {error}")
            missing.append(f"{name}: {error}")
            if not await _is_reachable(host):
                missing.append("All following items: the connection to the instance was lost.")
                return
            continue
        if text:
            yield PureWindowsPath(name).as_posix().replace(":", ""), text
        else:
            missing.append(f"{name}: does not exist, or is empty.")


async def _items(host: SshHost) -> AsyncIterator[tuple[str, Read]]:
    yield "state.json", partial(_state, host)
    for name, line in _commands().items():
        yield name, partial(_command_output, host, line)
    for path in CONFIGURATION:
        yield path, partial(_file, host, path)
    for directory in LOGS:
        names: list[str] = []
        yield f"{directory}\\names.txt", partial(_names, host, directory, names)
        for name in names:
            path = rf"{directory}\{name}"
            yield path, partial(_file, host, path)


async def _is_reachable(host: SshHost) -> bool:
    try:
        await host.connect()
    except WinpodError:
        return False
    return True


async def _state(host: SshHost) -> str:
    state = await collect_facts(host, QUERY, STATE_SECONDS)
    return json.dumps(dataclasses.asdict(state), indent=2, default=_plain) + "\n"


async def _command_output(host: SshHost, line: str) -> str:
    result = await host.run([line], host.timeouts.answer)
    return f"{result.output}{result.errors}"


async def _file(host: SshHost, path: str) -> str:
    return decode_output(await host.get(path, LOG_BYTES) or b"")


async def _names(host: SshHost, directory: str, names: list[str]) -> str:
    names += await host.list_directory(directory)
    return "".join(f"{name}\n" for name in names)


def _commands() -> Mapping[str, str]:
    events = call_program(
        "wevtutil.exe", "qe", "System", f"/q:{_EVENTS}", "/c:200", "/rd:true", "/f:text"
    )
    return {
        "events.txt": events,
        "ipconfig.txt": call_program("ipconfig.exe", "/all"),
        "crictl-info.txt": _crictl("info"),
        "crictl-pods.txt": _crictl("pods"),
        "crictl-ps.txt": _crictl("ps", "--all"),
        "crictl-images.txt": _crictl("images"),
    }


def _crictl(*arguments: str) -> str:
    command = call_program(_CRICTL, "--runtime-endpoint", paths.RUNTIME_PIPE, *arguments)
    return f"if exist {quote_path(_CRICTL)} {command}"


def _plain(value: Any) -> Any:
    return sorted(value) if isinstance(value, frozenset) else str(value)


def _add(archive: tarfile.TarFile, name: str, text: str) -> None:
    data = text.encode(errors="replace")
    entry = tarfile.TarInfo(name)
    entry.size, entry.mtime, entry.mode = len(data), int(time.time()), 0o600
    archive.addfile(entry, io.BytesIO(data))
