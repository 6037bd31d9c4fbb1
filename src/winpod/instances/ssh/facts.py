r"""Facts of an instance: script lines per fact, and pure parsing of their output.

Only output that is the same in every language of Windows is parsed; unexpected output is an error,
never a guess. All facts are read in one script. After a step only facts that it may have changed
are read, because hashing every file takes longer than a step.

`reg query KEY` prints four spaces, name, type and value in every language; lists are joined with
`\0`, numbers and bytes are hexadecimal.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from winpod.instances.paths import BIN, RUNTIME_PIPE, VERSION
from winpod.instances.planner.desired import FactQuery
from winpod.instances.planner.state import (
    UNREADABLE,
    FeatureState,
    InstanceState,
    ObservedService,
    ServiceState,
    StartType,
)
from winpod.instances.ssh import scripts
from winpod.instances.ssh.scripts import (
    ScriptSection,
    UnexpectedOutput,
    call_program,
    last_line,
    quote_path,
)
from winpod.windows.builds import Build

_VALUE = re.compile(r" {4}(?P<name>.+?) {4}(?P<kind>REG_[A-Z_0-9]+)(?: {4}(?P<value>.*))?")
_HEADER = struct.Struct("<5I")
_ACTION = struct.Struct("<2I")
_RESTART = 1


@dataclass(frozen=True, slots=True)
class RegistryValues:
    """Values of one registry key.

    Names are case-insensitive; missing or malformed values are empty.
    """

    values: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.values)

    def text(self, name: str) -> str:
        return self.values.get(name.lower(), ("", ""))[1]

    def number(self, name: str) -> int | None:
        kind, text = self.values.get(name.lower(), ("", ""))
        try:
            return int(text, 16) if kind == "REG_DWORD" else None
        except ValueError:
            return None

    def texts(self, name: str) -> tuple[str, ...]:
        return tuple(item for item in self.text(name).split(r"\0") if item)

    def data(self, name: str) -> bytes:
        try:
            return bytes.fromhex(self.text(name))
        except ValueError:
            return b""


def read_values(text: str) -> RegistryValues:
    matches = (_VALUE.fullmatch(line) for line in text.splitlines())
    return RegistryValues(
        {m["name"].lower(): (m["kind"], (m["value"] or "").strip()) for m in matches if m}
    )


def read_failure_actions(data: bytes) -> tuple[int, tuple[int, ...]]:
    """Parse SERVICE_FAILURE_ACTIONS: the reset period in seconds, and the restart delays in
    milliseconds.
    """
    if len(data) < _HEADER.size:
        return 0, ()
    reset, _message, _command, count, _offset = _HEADER.unpack_from(data)
    available = (len(data) - _HEADER.size) // _ACTION.size
    actions = [
        _ACTION.unpack_from(data, _HEADER.size + index * _ACTION.size)
        for index in range(min(count, available))
    ]
    return reset, tuple(delay for kind, delay in actions if kind == _RESTART)


WINDOWS_KEY = r"HKLM\SOFTWARE\Microsoft\Windows NT\CurrentVersion"
NAMES_KEY = r"HKLM\SYSTEM\CurrentControlSet\Services\Tcpip\Parameters"
SERVICES_KEY = r"HKLM\SYSTEM\CurrentControlSet\Services"

_HASH = re.compile(r"[0-9a-fA-F]{64}")
_FEATURE = re.compile(r"^State : (.+?)\s*$", re.MULTILINE)
_RUNNING = re.compile(r":\s+\d\s+(\w+)")
_FEATURES = {
    "Enabled": FeatureState.ENABLED,
    "Enable Pending": FeatureState.PENDING,
    "Disable Pending": FeatureState.DISABLED,
    "Disabled": FeatureState.DISABLED,
    "Disabled with Payload Removed": FeatureState.DISABLED,
    "Removed": FeatureState.DISABLED,
    "Staged": FeatureState.DISABLED,
    "Partially Installed": FeatureState.DISABLED,
}
_STATES = {
    "STOPPED": ServiceState.STOPPED,
    "START_PENDING": ServiceState.STARTING,
    "STOP_PENDING": ServiceState.STOPPING,
    "RUNNING": ServiceState.RUNNING,
    "CONTINUE_PENDING": ServiceState.RUNNING,
    "PAUSE_PENDING": ServiceState.RUNNING,
    "PAUSED": ServiceState.RUNNING,
}
_STARTS = {3: StartType.MANUAL, 4: StartType.DISABLED}


@dataclass(frozen=True, slots=True)
class FactPart:
    """Script lines of one fact, and the parser that adds their output to the state."""

    lines: tuple[str, ...]
    read: Callable[[InstanceState, ScriptSection], InstanceState]


def every_part(query: FactQuery) -> list[FactPart]:
    return [
        windows_part(),
        name_part(),
        *map(feature_part, query.features),
        machine_part(),
        version_part(),
        *map(directory_part, query.directories),
        *map(file_part, query.files),
        *map(service_part, query.services),
        pods_part(),
        *([images_part()] if query.images else []),
    ]


def windows_part() -> FactPart:
    def read(state: InstanceState, answer: ScriptSection) -> InstanceState:
        values = read_values(answer.text)
        major, minor = (values.number(f"Current{n}VersionNumber") for n in ("Major", "Minor"))
        number = values.text("CurrentBuild")
        if major is None or minor is None or not number.isdecimal():
            raise UnexpectedOutput(
                f"its registry has no Windows version: {last_line(answer.text)}.",
                "Check that it is a Windows Server 2019 or later.",
            )
        build = Build(major, minor, int(number), values.number("UBR"))
        return replace(state, build=build, product=values.text("ProductName"))

    return FactPart((call_program("reg.exe", "query", WINDOWS_KEY),), read)


def name_part() -> FactPart:
    def read(state: InstanceState, answer: ScriptSection) -> InstanceState:
        values = read_values(answer.text)
        hostname = values.text("Hostname")
        if not hostname:
            raise UnexpectedOutput(
                f"its registry has no host name: {last_line(answer.text)}.",
                "Name the host (Rename-Computer), and restart it.",
            )
        return replace(state, hostname=hostname)

    return FactPart((call_program("reg.exe", "query", NAMES_KEY),), read)


def machine_part() -> FactPart:
    """Read boot time, free space on drive C: and, with the Containers feature, the networks.

    Without that feature Get-HnsNetwork does not exist.
    """

    def read(state: InstanceState, answer: ScriptSection) -> InstanceState:
        numbers, rest = _leading_numbers(answer.text, 2)
        has_networks = state.features.get("Containers") is FeatureState.ENABLED
        if answer.code and has_networks:
            raise UnexpectedOutput(
                f"PowerShell could not list its networks (exit code {answer.code}).",
                "Check that the service hns is running: Get-Service hns",
            )
        networks = scripts.read_networks(rest) if has_networks else ()
        return replace(state, booted=str(numbers[0]), free_bytes=numbers[1], networks=networks)

    statements = (scripts.BOOTED, scripts.FREE_BYTES, scripts.NETWORKS)
    return FactPart((scripts.powershell(*statements),), read)


def version_part() -> FactPart:
    return FactPart(
        (f"if exist {quote_path(VERSION)} type {quote_path(VERSION)}",),
        lambda state, answer: replace(state, version=answer.text.strip()),
    )


def feature_part(name: str) -> FactPart:
    def read(state: InstanceState, answer: ScriptSection) -> InstanceState:
        match = _FEATURE.search(answer.text)
        advice = (
            f"Run `dism.exe {' '.join(arguments)}` there; a reboot may complete pending changes."
        )
        if match and match[1] not in _FEATURES:
            raise UnexpectedOutput(
                f"dism reports an unknown state of the feature {name}: {match[1]!r}.", advice
            )
        if not match and not answer.code:
            output = last_line(answer.text)
            raise UnexpectedOutput(
                f"dism reports no state of the feature {name}: {output}.", advice
            )
        feature_state = _FEATURES[match[1]] if match else FeatureState.ABSENT
        return replace(state, features={**state.features, name: feature_state})

    arguments = ("/online", "/english", "/get-featureinfo", f"/featurename:{name}")
    return FactPart((call_program("dism.exe", *arguments),), read)


def directory_part(path: str) -> FactPart:
    """Read whether the directory exists and whether it is empty."""

    def read(state: InstanceState, answer: ScriptSection) -> InstanceState:
        first, *names = answer.text.split("\n", 1) if answer.text.strip() else [""]
        existing = {path} if first.strip() else set()
        empty = existing if not any(name.strip() for name in names) else set()
        return replace(
            state,
            directories=state.directories - {path} | existing,
            empty=state.empty - {path} | empty,
        )

    inside = quote_path(path + "\\")
    return FactPart(
        (f"if exist {inside} echo there", f"if exist {inside} dir /b /a {inside} 2>nul"), read
    )


def file_part(path: str) -> FactPart:
    def read(state: InstanceState, answer: ScriptSection) -> InstanceState:
        files = {other: sha256 for other, sha256 in state.files.items() if other != path}
        if answer.text.strip():
            files[path] = _read_hash(answer.text) or UNREADABLE
        return replace(state, files=files)

    hash_file = call_program("certutil.exe", "-hashfile", path, "SHA256")
    return FactPart(
        (f"if exist {quote_path(path)} {hash_file}",),
        read,
    )


def service_part(name: str) -> FactPart:
    def read(state: InstanceState, answer: ScriptSection) -> InstanceState:
        services = {key: service for key, service in state.services.items() if key != name.lower()}
        if observed := _read_service(name, answer.text):
            services[name.lower()] = observed
        return replace(state, services=services)

    key = rf"{SERVICES_KEY}\{name}"
    return FactPart(
        (call_program("reg.exe", "query", key), call_program("sc.exe", "query", name)), read
    )


def images_part() -> FactPart:
    """Read the images of containerd; none while it does not answer."""

    def read(state: InstanceState, answer: ScriptSection) -> InstanceState:
        names = (
            name
            for image in _list_items(answer.text, "images")
            for key in ("repoTags", "repoDigests")
            for name in image.get(key) or ()
        )
        return replace(state, images=frozenset(map(str, names)))

    return FactPart((_crictl("images"),), read)


def pods_part() -> FactPart:
    """Read the pod sandboxes of containerd; none while it does not answer."""

    def read(state: InstanceState, answer: ScriptSection) -> InstanceState:
        ids = (pod.get("id") for pod in _list_items(answer.text, "items"))
        return replace(state, pods=frozenset(str(pod_id) for pod_id in ids if pod_id))

    return FactPart((_crictl("pods"),), read)


def read_running(text: str) -> ServiceState | None:
    """Return the state in the output of `sc query`; its states are English in every language."""
    states = (_STATES.get(state_name) for state_name in _RUNNING.findall(text))
    return next((state for state in states if state), None)


def _read_service(name: str, text: str) -> ObservedService | None:
    values = read_values(text)
    if not values.text("ImagePath"):
        return None
    state = read_running(text)
    if state is None:
        raise UnexpectedOutput(
            f"the service {name} is registered, and sc reports no state: {last_line(text)}.",
            "A service marked for deletion disappears with the next reboot.",
        )
    reset, restarts = read_failure_actions(values.data("FailureActions"))
    return ObservedService(
        name,
        values.text("ImagePath"),
        values.texts("DependOnService"),
        _STARTS.get(values.number("Start") or 0, StartType.AUTO),
        state,
        values.text("Description"),
        restarts,
        reset,
    )


def _read_hash(text: str) -> str:
    """Return the hash; Windows Server 2016 and older print spaces between the bytes."""
    lines = (line.replace(" ", "").strip() for line in text.splitlines())
    return next((line.lower() for line in lines if _HASH.fullmatch(line)), "")


def _leading_numbers(text: str, count: int) -> tuple[list[int], str]:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    numbers = [line for line in lines[:count] if line.isdecimal()]
    if len(numbers) != count:
        raise UnexpectedOutput(
            f"PowerShell did not report boot time and free space: {last_line(text)}.",
            "Check that PowerShell starts there: powershell.exe -NoProfile -Command Get-Date",
        )
    return [int(number) for number in numbers], "\n".join(lines[count:])


def _crictl(subcommand: str) -> str:
    program = rf"{BIN}\crictl.exe"
    command = call_program(
        program, "--runtime-endpoint", RUNTIME_PIPE, subcommand, "--output", "json"
    )
    return f"if exist {quote_path(program)} {command}"


def _list_items(text: str, key: str) -> list[Mapping[str, Any]]:
    """Return the objects of a list printed by crictl."""
    try:
        document: Any = json.loads(text or "{}")
    except ValueError:
        return []
    items = document.get(key) if isinstance(document, Mapping) else None
    return [item for item in items or () if isinstance(item, Mapping)]


SURVEY_SECONDS = 600.0
_EMPTY_STATE = InstanceState(Build(10, 0, 0), "", "", "")


class FactTarget(Protocol):
    """An instance that runs scripts, such as `SshHost`."""

    name: str

    async def run_sections(
        self, parts: Iterable[Sequence[str]], seconds: float = ...
    ) -> list[ScriptSection]: ...


async def collect_facts(
    host: FactTarget, query: FactQuery, seconds: float = SURVEY_SECONDS
) -> InstanceState:
    """Read all facts of the query."""
    return await collect_parts(host, _EMPTY_STATE, every_part(query), seconds)


async def identify(host: FactTarget) -> InstanceState:
    """Read only Windows version and host name, which the desired state depends on."""
    return await collect_parts(host, _EMPTY_STATE, [windows_part(), name_part()])


async def collect_parts(
    host: FactTarget,
    before: InstanceState,
    parts: Sequence[FactPart],
    seconds: float = SURVEY_SECONDS,
) -> InstanceState:
    """Return the state updated with these facts."""
    return (await run_and_collect(host, (), before, parts, seconds))[1]


async def run_and_collect(
    host: FactTarget,
    commands: Sequence[Sequence[str]],
    before: InstanceState,
    parts: Sequence[FactPart],
    seconds: float,
) -> tuple[list[str], InstanceState]:
    """Run commands and read the facts they may have changed, in one script.

    Return the last line of output of each command, and the updated state.
    """
    answers = await host.run_sections([*commands, *(part.lines for part in parts)], seconds)
    output = [last_line(answer.text) for answer in answers[: len(commands)]]
    try:
        return output, read_answers(before, parts, answers[len(commands) :])
    except UnexpectedOutput as error:
        raise UnexpectedOutput(f"{host.name}: {error.message}", error.hint) from error


def read_answers(
    before: InstanceState, parts: Iterable[FactPart], answers: Iterable[ScriptSection]
) -> InstanceState:
    state = before
    for part, answer in zip(parts, answers, strict=True):
        state = part.read(state, answer)
    return state
