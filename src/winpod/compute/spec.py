"""The container spec: everything needed to start a container, as plain data.

Merges a container's request over its image's config by the rules of containerd and the Host Compute
Service. Pure: callers determine what the source of a mount is on the host.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from winpod.compute.agent.client import Program, TerminalSize
from winpod.compute.resources import (
    ResourceLimits,
    ResourceRequest,
    apply_resource_annotations,
    compute_limits,
)
from winpod.errors import InvalidInput, WinpodError
from winpod.windows.command_line import command_line, join
from winpod.windows.environment import Environment, merge, parse_variables
from winpod.windows.paths import (
    casefold_name,
    container_path,
    is_named_pipe,
    mount_destination,
    named_pipe_name,
)
from winpod.windows.users import User, find_user


class MountSourceKind(StrEnum):
    """The type of a mount's source on the host."""

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
    """A source on the host mounted in the container.

    An image volume has the files of `layers`, the lowest first, restricted to `sub_path`.
    """

    source: str
    destination: str
    kind: MountSourceKind
    readonly: bool = False
    layers: tuple[str, ...] = ()
    sub_path: str = ""


@dataclass(frozen=True, slots=True)
class ImageConfig:
    """The part of an image's config that applies to containers."""

    entrypoint: tuple[str, ...] = ()
    cmd: tuple[str, ...] = ()
    args_escaped: bool = False
    env: Environment = ()
    cwd: str = ""
    user: str = ""
    volumes: tuple[str, ...] = ()
    stop_signal: str = ""


def read_image_config(data: bytes) -> ImageConfig:
    """Parse an image's config document. Missing fields are empty."""
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
class ContainerRequest:
    """The container settings of a pod."""

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
    resources: ResourceRequest = field(default_factory=ResourceRequest)
    annotations: Mapping[str, str] = field(default_factory=dict)
    credential_spec: str = ""


@dataclass(frozen=True, slots=True)
class ContainerSpec:
    command_line: str
    cwd: str
    env: Environment
    user: User
    mounts: tuple[Mount, ...]
    volumes: tuple[str, ...]
    limits: ResourceLimits
    asked: ResourceRequest
    """The requested resources, to which updates are applied; stored under this name."""
    tty: bool
    stdin: bool
    stdin_once: bool
    stop_signal: str
    credential_spec: str


class HostProcessUnsupported(WinpodError):
    code = "FAILED_PRECONDITION"

    def __init__(self) -> None:
        super().__init__(
            "HostProcess containers are not supported: there is no Windows host to run on.",
            "Run them on a Windows Server node.",
        )


def build_spec(
    request: ContainerRequest,
    image: ImageConfig,
    *,
    hostname: str,
    host_cpus: int,
    sandbox_cpus: int = 0,
) -> ContainerSpec:
    """Merge a request and an image's config to a spec. Raises a WinpodError if invalid.

    `sandbox_cpus` is the number of processors that the pod sees, if not all of the host's.
    """
    if request.host_process:
        raise HostProcessUnsupported
    user = find_user(request.user or image.user)
    if request.run_as_non_root and user.is_administrator:
        raise InvalidInput(
            f"container's runAsUserName ({user.name}) which will be regarded as root identity and "
            "will break non-root policy",
            "Set windowsOptions.runAsUserName to ContainerUser.",
        )
    resources = apply_resource_annotations(request.resources, request.annotations)
    limits = compute_limits(resources, host_cpus)
    processors = limits.processors if resources.cpu_count else sandbox_cpus or host_cpus
    mounts = _mounts(request.mounts)
    mounted = {casefold_name(mount.destination) for mount in mounts}
    return ContainerSpec(
        command_line=command_line(
            entrypoint=image.entrypoint,
            cmd=image.cmd,
            args_escaped=image.args_escaped,
            command=request.command,
            args=request.args,
        ),
        cwd=container_path(request.cwd or image.cwd or "C:\\"),
        env=merge(_system_variables(user, hostname, processors), image.env, request.env),
        user=user,
        mounts=mounts,
        volumes=tuple(v for v in _volumes(image.volumes) if casefold_name(v) not in mounted),
        limits=limits,
        asked=resources,
        tty=request.tty,
        stdin=request.stdin,
        stdin_once=request.stdin_once,
        stop_signal=image.stop_signal,
        credential_spec=_credential_spec(request.credential_spec),
    )


def _system_variables(user: User, hostname: str, processors: int) -> Environment:
    return (
        ("COMPUTERNAME", hostname.upper()[:15]),
        ("NUMBER_OF_PROCESSORS", str(processors)),
        ("USERNAME", user.name),
        ("USERPROFILE", f"C:\\Users\\{user.name}"),
    )


def _mounts(mounts: Sequence[Mount]) -> tuple[Mount, ...]:
    """Normalize destinations, outer before inner. The last mount on a destination wins."""
    by_destination: dict[str, Mount] = {}
    for mount in mounts:
        _check_named_pipe(mount)
        destination = mount_destination(mount.destination)
        by_destination[casefold_name(destination)] = replace(mount, destination=destination)
    return tuple(by_destination[key] for key in sorted(by_destination))


def _check_named_pipe(mount: Mount) -> None:
    """Require a pipe or socket for a pipe; Windows programs open neither elsewhere."""
    if is_named_pipe(mount.destination) == (
        mount.kind in (MountSourceKind.PIPE, MountSourceKind.SOCKET)
    ):
        for path in filter(is_named_pipe, (mount.source, mount.destination)):
            named_pipe_name(path)
        return
    if mount.kind is MountSourceKind.SOCKET:
        raise InvalidInput(
            f"{mount.source} is a Unix socket, which Windows programs cannot open at "
            f"{mount.destination}.",
            r"Mount it on \\.\pipe\NAME and open that.",
        )
    raise InvalidInput(
        f"{mount.source} is mounted on {mount.destination}, but only one of the two is a named "
        "pipe.",
        r"Use \\.\pipe\NAME on both sides, or an existing Unix socket as the source.",
    )


def _volumes(volumes: Sequence[str]) -> tuple[str, ...]:
    return tuple(mount_destination(volume) for volume in volumes)


NO_DOMAIN_LOGON = (
    "The credential spec is validated and stored but has no effect: Wine does not support domain "
    "logon."
)


def _credential_spec(text: str) -> str:
    """Validate a gMSA credential spec. It has no effect, as Wine has no domain logon."""
    if not text:
        return ""
    try:
        accounts = json.loads(text)["ActiveDirectoryConfig"]["GroupManagedServiceAccounts"]
    except (ValueError, KeyError, TypeError):
        accounts = None
    if not isinstance(accounts, list):
        raise InvalidInput(
            "the gMSA credential spec is invalid: it has no GroupManagedServiceAccounts.",
            "Create it with New-CredentialSpec.",
        )
    return text


def container_program(spec: ContainerSpec) -> Program:
    return Program(
        spec.command_line,
        spec.cwd,
        dict(spec.env),
        terminal=TerminalSize() if spec.tty else None,
        stdin=spec.stdin,
        kill_descendants=True,
    )


def exec_program(folder: Path, command: Sequence[str]) -> Program:
    """Return a program with the directory and environment of the container's own."""
    main = Program.decode((folder / "start").read_bytes())
    return Program(join(command), main.directory, main.environment)
