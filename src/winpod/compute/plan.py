"""A container's plan: everything needed to start it, as plain data, or why it cannot be.

What is asked (by a pod) is laid over what the image says, by the rules that containerd and the Host
Compute Service have. Nothing here looks at the machine: whoever asks says what a mount's source is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from winpod.compute.resources import Asked, Enforced, enforce, with_annotations
from winpod.windows.command_line import command_line
from winpod.windows.environment import Environment, merge, parse_variables
from winpod.windows.errors import InvalidInput, WinpodError
from winpod.windows.paths import (
    collision_key,
    container_path,
    is_pipe,
    mount_destination,
    pipe_name,
)
from winpod.windows.users import User, find_user


class SourceKind(StrEnum):
    """What a mount's source is on this machine."""

    DIRECTORY = "directory"
    FILE = "file"
    SOCKET = "socket"
    MISSING = "missing"
    PIPE = "pipe"
    IMAGE = "image"
    VIRTUAL_DISK = "virtual-disk"
    PHYSICAL_DISK = "physical-disk"


@dataclass(frozen=True, slots=True)
class Mount:
    """A source of this machine at a place in the container.

    An image as a volume is the files of its `layers`, the lowest first, or what of them is at a
    `sub_path`.
    """

    source: str
    destination: str
    kind: SourceKind
    readonly: bool = False
    layers: tuple[str, ...] = ()
    sub_path: str = ""


@dataclass(frozen=True, slots=True)
class ImageConfig:
    """What an image says about the containers made of it."""

    entrypoint: tuple[str, ...] = ()
    cmd: tuple[str, ...] = ()
    args_escaped: bool = False
    env: Environment = ()
    cwd: str = ""
    user: str = ""
    volumes: tuple[str, ...] = ()
    stop_signal: str = ""


def read_image_config(data: bytes) -> ImageConfig:
    """From an image's config document; what it leaves out is empty."""
    config: Mapping[str, Any] = json.loads(data).get("config") or {}
    return ImageConfig(
        entrypoint=tuple(config.get("Entrypoint") or ()),
        cmd=tuple(config.get("Cmd") or ()),
        args_escaped=bool(config.get("ArgsEscaped")),
        env=parse_variables(config.get("Env") or ()),
        cwd=config.get("WorkingDir") or "",
        user=config.get("User") or "",
        volumes=tuple(sorted(config.get("Volumes") or ())),
        stop_signal=config.get("StopSignal") or "",
    )


@dataclass(frozen=True, slots=True)
class ContainerAsked:
    """What a pod asks of one container."""

    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    cwd: str = ""
    env: Environment = ()
    mounts: tuple[Mount, ...] = ()
    user: str = ""
    tty: bool = False
    stdin: bool = False
    stdin_once: bool = False
    host_process: bool = False
    run_as_non_root: bool = False
    resources: Asked = field(default_factory=Asked)
    annotations: Mapping[str, str] = field(default_factory=dict)
    credential_spec: str = ""


@dataclass(frozen=True, slots=True)
class Plan:
    command_line: str
    cwd: str
    env: Environment
    user: User
    mounts: tuple[Mount, ...]
    volumes: tuple[str, ...]
    limits: Enforced
    asked: Asked
    tty: bool
    stdin: bool
    stdin_once: bool
    stop_signal: str
    credential_spec: str


class HostProcessRefused(WinpodError):
    code = "FAILED_PRECONDITION"

    def __init__(self) -> None:
        super().__init__(
            "HostProcess containers are refused: there is no Windows host to be part of.",
            "Run them on a Windows Server node.",
        )


def make_plan(
    asked: ContainerAsked,
    image: ImageConfig,
    *,
    hostname: str,
    host_cpus: int,
    sandbox_cpus: int = 0,
) -> Plan:
    """The plan, or the sentence that says why there is none.

    `sandbox_cpus` is how many the programs of the pod see, where that is not all of the host's.
    """
    if asked.host_process:
        raise HostProcessRefused
    user = find_user(asked.user or image.user)
    if asked.run_as_non_root and user.is_administrator:
        raise InvalidInput(
            f"container's runAsUserName ({user.name}) which will be regarded as root identity and "
            "will break non-root policy",
            "Set windowsOptions.runAsUserName to ContainerUser.",
        )
    resources = with_annotations(asked.resources, asked.annotations)
    limits = enforce(resources, host_cpus)
    processors = limits.processors if resources.cpu_count else sandbox_cpus or host_cpus
    mounts = _mounts(asked.mounts)
    taken = {collision_key(mount.destination) for mount in mounts}
    return Plan(
        command_line=command_line(
            entrypoint=image.entrypoint,
            cmd=image.cmd,
            args_escaped=image.args_escaped,
            command=asked.command,
            args=asked.args,
        ),
        cwd=container_path(asked.cwd or image.cwd or "C:\\"),
        env=merge(_own_variables(user, hostname, processors), image.env, asked.env),
        user=user,
        mounts=mounts,
        volumes=tuple(v for v in _volumes(image.volumes) if collision_key(v) not in taken),
        limits=limits,
        asked=resources,
        tty=asked.tty,
        stdin=asked.stdin,
        stdin_once=asked.stdin_once,
        stop_signal=image.stop_signal,
        credential_spec=_credential_spec(asked.credential_spec),
    )


def _own_variables(user: User, hostname: str, processors: int) -> Environment:
    return (
        ("COMPUTERNAME", hostname.upper()[:15]),
        ("NUMBER_OF_PROCESSORS", str(processors)),
        ("USERNAME", user.name),
        ("USERPROFILE", f"C:\\Users\\{user.name}"),
    )


def _mounts(asked: Sequence[Mount]) -> tuple[Mount, ...]:
    """Destinations as Windows writes them, the outer before the inner; a place is taken once."""
    placed: dict[str, Mount] = {}
    for mount in asked:
        _refuse_what_no_pipe_leads_to(mount)
        destination = mount_destination(mount.destination)
        placed[collision_key(destination)] = replace(mount, destination=destination)
    return tuple(placed[key] for key in sorted(placed))


def _refuse_what_no_pipe_leads_to(mount: Mount) -> None:
    """Programs of Windows open no Unix socket, and find named pipes only where they all are."""
    if is_pipe(mount.destination) == (mount.kind in (SourceKind.PIPE, SourceKind.SOCKET)):
        for path in filter(is_pipe, (mount.source, mount.destination)):
            pipe_name(path)
        return
    if mount.kind is SourceKind.SOCKET:
        raise InvalidInput(
            f"{mount.source} is a Unix socket, which no Windows program can open on "
            f"{mount.destination}.",
            r"Mount it on \\.\pipe\NAME, and open that.",
        )
    raise InvalidInput(
        f"{mount.source} is mounted on {mount.destination}, and only one of the two is a named "
        "pipe.",
        r"Write \\.\pipe\NAME on both sides, or name a Unix socket that is there.",
    )


def _volumes(volumes: Sequence[str]) -> tuple[str, ...]:
    return tuple(mount_destination(volume) for volume in volumes)


NO_DOMAIN_LOGON = (
    "The credential spec is checked and kept, and nothing logs on with it: under Wine there is no "
    "domain logon."
)


def _credential_spec(text: str) -> str:
    """A gMSA credential spec is checked and kept; there is no domain logon under Wine."""
    if not text:
        return ""
    try:
        accounts = json.loads(text)["ActiveDirectoryConfig"]["GroupManagedServiceAccounts"]
    except (ValueError, KeyError, TypeError):
        accounts = None
    if not isinstance(accounts, list):
        raise InvalidInput(
            "the gMSA credential spec is not one: it names no group managed service accounts.",
            "Make it with New-CredentialSpec.",
        )
    return text
