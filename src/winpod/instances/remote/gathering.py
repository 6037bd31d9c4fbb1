r"""Collecting what tells why an instance is as it is: logs, events, services, networks, state.

Each piece is collected on its own and has its own time; one that cannot be had is told, and is a
line in `missing.txt`. Keys and kubeconfigs are never read, and what looks like a secret in the rest
is left out.
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

from winpod.instances import paths
from winpod.instances.remote.rebooting import Tell
from winpod.instances.remote.scripts import call, decode, place
from winpod.instances.remote.ssh import Host
from winpod.instances.remote.surveying import survey
from winpod.instances.rules.desired import Question
from winpod.instances.rules.stopping import CONTAINERD, DOCKER, KUBELET
from winpod.instances.software.programs import CSI_PROXY, EXPORTER, HYBRID_OVERLAY, KUBE_PROXY
from winpod.windows.errors import WinpodError

LOG_BYTES = 8 << 20
STATE_SECONDS = 120.0
SERVICES = (CONTAINERD, KUBELET, KUBE_PROXY, HYBRID_OVERLAY, CSI_PROXY, EXPORTER, *DOCKER)
QUESTION = Question((), (), SERVICES, ("Containers", "Microsoft-Hyper-V"))
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
LEFT_OUT = "(left out)"


Read = Callable[[], Awaitable[str]]


async def gather(host: Host, file: Path, tell: Tell) -> Path:
    """Write an archive of all that can be had now, and say where it is."""
    folder = f"{host.name}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}"
    await host.connect()
    missing: list[str] = []
    new = file.with_name(f".{file.name}.new")
    try:
        with tarfile.open(new, "w:gz") as archive:
            async for name, text in _collected(host, missing, tell):
                _add(archive, f"{folder}/{name}", without_secrets(text))
            _add(archive, f"{folder}/missing.txt", "".join(f"{line}\n" for line in missing))
        new.replace(file)
    finally:
        new.unlink(missing_ok=True)
    return file


def without_secrets(text: str) -> str:
    return _TOKEN.sub(LEFT_OUT, _SECRET.sub(rf'\1"{LEFT_OUT}"', text))


async def _collected(host: Host, missing: list[str], tell: Tell) -> AsyncIterator[tuple[str, str]]:
    """What could be had, with its name. Of an instance that was lost, nothing more is asked."""
    async for name, read in _pieces(host):
        tell(f"reading {name}")
        try:
            text = await read()
        except WinpodError as error:
            tell(f"gave up on {name}: {error}")
            missing.append(f"{name}: {error}")
            if not await _is_there(host):
                missing.append("All that comes after it: the instance was lost.")
                return
            continue
        if text:
            yield PureWindowsPath(name).as_posix().replace(":", ""), text
        else:
            missing.append(f"{name}: there is no such thing, or nothing in it.")


async def _pieces(host: Host) -> AsyncIterator[tuple[str, Read]]:
    yield "state.json", partial(_state, host)
    for name, line in _answers().items():
        yield name, partial(_answer, host, line)
    for path in CONFIGURATION:
        yield path, partial(_file, host, path)
    for directory in LOGS:
        names: list[str] = []
        yield f"{directory}\\names.txt", partial(_names, host, directory, names)
        for name in names:
            path = rf"{directory}\{name}"
            yield path, partial(_file, host, path)


async def _is_there(host: Host) -> bool:
    try:
        await host.connect()
    except WinpodError:
        return False
    return True


async def _state(host: Host) -> str:
    state = await survey(host, QUESTION, STATE_SECONDS)
    return json.dumps(dataclasses.asdict(state), indent=2, default=_plain) + "\n"


async def _answer(host: Host, line: str) -> str:
    answer = await host.run([line], host.patience.answer)
    return f"{answer.output}{answer.errors}"


async def _file(host: Host, path: str) -> str:
    return decode(await host.get(path, LOG_BYTES) or b"")


async def _names(host: Host, directory: str, names: list[str]) -> str:
    names += await host.names_in(directory)
    return "".join(f"{name}\n" for name in names)


def _answers() -> Mapping[str, str]:
    events = call("wevtutil.exe", "qe", "System", f"/q:{_EVENTS}", "/c:200", "/rd:true", "/f:text")
    return {
        "events.txt": events,
        "ipconfig.txt": call("ipconfig.exe", "/all"),
        "crictl-info.txt": _crictl("info"),
        "crictl-pods.txt": _crictl("pods"),
        "crictl-ps.txt": _crictl("ps", "--all"),
        "crictl-images.txt": _crictl("images"),
    }


def _crictl(*words: str) -> str:
    asking = call(_CRICTL, "--runtime-endpoint", paths.RUNTIME_PIPE, *words)
    return f"if exist {place(_CRICTL)} {asking}"


def _plain(value: Any) -> Any:
    return sorted(value) if isinstance(value, frozenset) else str(value)


def _add(archive: tarfile.TarFile, name: str, text: str) -> None:
    data = text.encode(errors="replace")
    entry = tarfile.TarInfo(name)
    entry.size, entry.mtime, entry.mode = len(data), int(time.time()), 0o600
    archive.addfile(entry, io.BytesIO(data))
