r"""What is asked of an instance, part by part: lines of a script, and a pure reading of answers.

Nothing is read off words that a Windows in another language has otherwise, and what cannot be
understood is a sentence, never a guess.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from winpod.instances.paths import BIN, RUNTIME_PIPE, VERSION
from winpod.instances.remote import powershell
from winpod.instances.remote.registry_values import read_failure_actions, read_values
from winpod.instances.remote.scripts import OddAnswer, Section, call, last_line, place
from winpod.instances.rules.desired import Question
from winpod.instances.rules.state import UNREADABLE, FeatureState, Running, Service, Start, State
from winpod.windows.builds import Build

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
    "STOPPED": Running.STOPPED,
    "START_PENDING": Running.STARTING,
    "STOP_PENDING": Running.STOPPING,
    "RUNNING": Running.RUNNING,
    "CONTINUE_PENDING": Running.RUNNING,
    "PAUSE_PENDING": Running.RUNNING,
    "PAUSED": Running.RUNNING,
}
_STARTS = {3: Start.MANUAL, 4: Start.DISABLED}


@dataclass(frozen=True, slots=True)
class Part:
    """Lines of the script, and what their answer says about the state."""

    lines: tuple[str, ...]
    read: Callable[[State, Section], State]


def every_part(question: Question) -> list[Part]:
    return [
        windows_part(),
        name_part(),
        *map(feature_part, question.features),
        machine_part(),
        version_part(),
        *map(directory_part, question.directories),
        *map(file_part, question.files),
        *map(service_part, question.services),
        pods_part(),
        *([images_part()] if question.images else []),
    ]


def windows_part() -> Part:
    def read(state: State, answer: Section) -> State:
        values = read_values(answer.text)
        major, minor = (values.number(f"Current{n}VersionNumber") for n in ("Major", "Minor"))
        number = values.text("CurrentBuild")
        if major is None or minor is None or not number.isdecimal():
            raise OddAnswer(
                f"its registry does not say which Windows it is: {last_line(answer.text)}.",
                "See that it is a Windows Server 2019 or later.",
            )
        build = Build(major, minor, int(number), values.number("UBR"))
        return replace(state, build=build, product=values.text("ProductName"))

    return Part((call("reg.exe", "query", WINDOWS_KEY),), read)


def name_part() -> Part:
    def read(state: State, answer: Section) -> State:
        values = read_values(answer.text)
        now = values.text("Hostname")
        if not now:
            raise OddAnswer(
                f"its registry has no host name: {last_line(answer.text)}.",
                "Give the host a name (Rename-Computer), and restart it.",
            )
        return replace(state, hostname=now)

    return Part((call("reg.exe", "query", NAMES_KEY),), read)


def machine_part() -> Part:
    """When it booted, the room on drive C:, and the networks, where it can have networks.

    Without the Containers feature there is no Get-HnsNetwork, and nothing it could list.
    """

    def read(state: State, answer: Section) -> State:
        numbers, rest = _leading_numbers(answer.text, 2)
        has_networks = state.features.get("Containers") is FeatureState.ENABLED
        if answer.code and has_networks:
            raise OddAnswer(
                f"PowerShell could not list its networks (exit code {answer.code}).",
                "See that the service hns runs: Get-Service hns",
            )
        networks = powershell.read_networks(rest) if has_networks else ()
        return replace(state, booted=str(numbers[0]), free_bytes=numbers[1], networks=networks)

    statements = (powershell.BOOTED, powershell.FREE_BYTES, powershell.NETWORKS)
    return Part((powershell.powershell(*statements),), read)


def version_part() -> Part:
    return Part(
        (f"if exist {place(VERSION)} type {place(VERSION)}",),
        lambda state, answer: replace(state, version=answer.text.strip()),
    )


def feature_part(name: str) -> Part:
    def read(state: State, answer: Section) -> State:
        found = _FEATURE.search(answer.text)
        advice = f"See `dism.exe {' '.join(arguments)}` there; a restart may end what is pending."
        if found and found[1] not in _FEATURES:
            raise OddAnswer(f"dism says that the feature {name} is {found[1]!r}.", advice)
        if not found and not answer.code:
            said = last_line(answer.text)
            raise OddAnswer(f"dism says nothing of the feature {name}: {said}.", advice)
        known = _FEATURES[found[1]] if found else FeatureState.ABSENT
        return replace(state, features={**state.features, name: known})

    arguments = ("/online", "/english", "/get-featureinfo", f"/featurename:{name}")
    return Part((call("dism.exe", *arguments),), read)


def directory_part(path: str) -> Part:
    """There or not, and empty or not."""

    def read(state: State, answer: Section) -> State:
        first, *names = answer.text.split("\n", 1) if answer.text.strip() else [""]
        there = {path} if first.strip() else set()
        empty = there if not any(name.strip() for name in names) else set()
        return replace(
            state,
            directories=state.directories - {path} | there,
            empty=state.empty - {path} | empty,
        )

    inside = place(path + "\\")
    return Part(
        (f"if exist {inside} echo there", f"if exist {inside} dir /b /a {inside} 2>nul"), read
    )


def file_part(path: str) -> Part:
    def read(state: State, answer: Section) -> State:
        files = {other: known for other, known in state.files.items() if other != path}
        if answer.text.strip():
            files[path] = _read_hash(answer.text) or UNREADABLE
        return replace(state, files=files)

    return Part(
        (f"if exist {place(path)} {call('certutil.exe', '-hashfile', path, 'SHA256')}",), read
    )


def service_part(name: str) -> Part:
    def read(state: State, answer: Section) -> State:
        services = {key: known for key, known in state.services.items() if key != name.lower()}
        if found := _read_service(name, answer.text):
            services[name.lower()] = found
        return replace(state, services=services)

    key = rf"{SERVICES_KEY}\{name}"
    return Part((call("reg.exe", "query", key), call("sc.exe", "query", name)), read)


def images_part() -> Part:
    """What containerd has pulled; nothing while it does not answer."""

    def read(state: State, answer: Section) -> State:
        names = (
            name
            for image in _listed(answer.text, "images")
            for key in ("repoTags", "repoDigests")
            for name in image.get(key) or ()
        )
        return replace(state, images=frozenset(map(str, names)))

    return Part((_crictl("images"),), read)


def pods_part() -> Part:
    """Whom containerd keeps; nobody while it does not answer."""

    def read(state: State, answer: Section) -> State:
        found = (pod.get("id") for pod in _listed(answer.text, "items"))
        return replace(state, pods=frozenset(str(one) for one in found if one))

    return Part((_crictl("pods"),), read)


def read_running(text: str) -> Running | None:
    """The state in what `sc query` prints; its words are English everywhere, its labels are not."""
    known = (_STATES.get(word) for word in _RUNNING.findall(text))
    return next((state for state in known if state), None)


def _read_service(name: str, text: str) -> Service | None:
    values = read_values(text)
    if not values.text("ImagePath"):
        return None
    state = read_running(text)
    if state is None:
        raise OddAnswer(
            f"the service {name} is in its registry, and sc says no state of it: "
            f"{last_line(text)}.",
            "A service that is marked for deletion goes with the next restart.",
        )
    reset, restarts = read_failure_actions(values.data("FailureActions"))
    return Service(
        name,
        values.text("ImagePath"),
        values.texts("DependOnService"),
        _STARTS.get(values.number("Start") or 0, Start.AUTO),
        state,
        values.text("Description"),
        restarts,
        reset,
    )


def _read_hash(text: str) -> str:
    """Windows Server 2016 and older put blanks between the bytes."""
    lines = (line.replace(" ", "").strip() for line in text.splitlines())
    return next((line.lower() for line in lines if _HASH.fullmatch(line)), "")


def _leading_numbers(text: str, count: int) -> tuple[list[int], str]:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    numbers = [line for line in lines[:count] if line.isdecimal()]
    if len(numbers) != count:
        raise OddAnswer(
            f"PowerShell did not say when it booted and what room it has: {last_line(text)}.",
            "See that PowerShell starts there: powershell.exe -NoProfile -Command Get-Date",
        )
    return [int(number) for number in numbers], "\n".join(lines[count:])


def _crictl(what: str) -> str:
    program = rf"{BIN}\crictl.exe"
    asking = call(program, "--runtime-endpoint", RUNTIME_PIPE, what, "--output", "json")
    return f"if exist {place(program)} {asking}"


def _listed(text: str, key: str) -> list[Mapping[str, Any]]:
    """The objects of a list that crictl printed."""
    try:
        found: Any = json.loads(text or "{}")
    except ValueError:
        return []
    listed = found.get(key) if isinstance(found, Mapping) else None
    return [one for one in listed or () if isinstance(one, Mapping)]
