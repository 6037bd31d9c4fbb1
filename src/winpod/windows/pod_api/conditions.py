"""Conditions under which a row of the Pod API table applies.

Predicates are pure, accept any user input, and return False for values of an unexpected type.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from winpod.windows.pod_api.rule import (
    Container,
    RuleCondition,
    Spec,
    any_host_process,
    containers_of,
    get_path,
    is_host_process,
    runs_as_non_root,
    windows_option,
)

PIPE = "\\\\.\\pipe\\"


def _value(description: str, test: Callable[[Any], bool]) -> RuleCondition:
    return RuleCondition(description, lambda _spec, _container, value: test(value))


def one_of(*names: str) -> RuleCondition:
    description = " or ".join(f"`{name}`" for name in names)
    return _value(description, lambda value: isinstance(value, str) and value in names)


def _is_name(value: object, *names: str) -> bool:
    """Compare account names as Windows does, ignoring case."""
    return isinstance(value, str) and value.casefold() in names


SET = _value("set", lambda value: value is not None)
TRUE = _value("`true`", lambda value: value is True)
FALSE = _value("`false`", lambda value: value is False)
NOT_EMPTY = _value("not empty", lambda value: isinstance(value, (list, Mapping)) and bool(value))


def _unmasked_in_host_users(spec: Spec, _container: Container, value: object) -> bool:
    return value == "Unmasked" and get_path(spec, "hostUsers") is not False


UNMASKED_PROC = RuleCondition("`Unmasked` without `hostUsers: false`", _unmasked_in_host_users)
OTHER_PROC = RuleCondition(
    "`Default`, or `Unmasked` with `hostUsers: false`",
    lambda spec, container, value: (
        isinstance(value, str) and not _unmasked_in_host_users(spec, container, value)
    ),
)


def _administrator_as_non_root(spec: Spec, container: Container, value: object) -> bool:
    if not _is_name(value, "containeradministrator"):
        return False
    own = ("securityContext", "windowsOptions", "runAsUserName")
    affected = (
        [container] if container else [c for c in containers_of(spec) if get_path(c, *own) is None]
    )
    return any(runs_as_non_root(spec, c) for c in affected)


ADMINISTRATOR_AS_NON_ROOT = RuleCondition(
    "`ContainerAdministrator`, in any case, with `runAsNonRoot: true`", _administrator_as_non_root
)

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_NETBIOS = re.compile(r'[^\\/:*?"<>|.][^\\/:*?"<>|]{0,14}')
_DNS_LABEL = "[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?"
_DNS_DOMAIN = re.compile(rf"{_DNS_LABEL}(?:\.{_DNS_LABEL})*")
_USER = re.compile(r'(?![. ]+$)[^"/\\:;|=,+*?<>@\[\]]{1,104}')
_SUBDOMAIN = re.compile(r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?(?:\.[a-z0-9](?:[-a-z0-9]*[a-z0-9])?)*")


def _is_invalid_user_name(value: object) -> bool:
    if not isinstance(value, str):
        return False
    domain, backslash, user = value.rpartition("\\")
    well_formed = (
        not _CONTROL.search(value)
        and _USER.fullmatch(user)
        and len(user.encode(errors="replace")) <= 104
        and (not backslash or _is_domain(domain))
    )
    return not well_formed


def _is_domain(name: str) -> bool:
    return bool(_NETBIOS.fullmatch(name)) or (len(name) < 256 and bool(_DNS_DOMAIN.fullmatch(name)))


INVALID_USER_NAME = _value("not `USER` or `DOMAIN\\USER`", _is_invalid_user_name)
INVALID_SPEC_NAME = _value(
    "not a lowercase DNS subdomain",
    lambda value: isinstance(value, str) and not (len(value) < 254 and _SUBDOMAIN.fullmatch(value)),
)
GMSA_SPEC_LIMIT = 64 * 1024
INVALID_GMSA_SPEC = _value(
    "empty or over 64 KiB",
    lambda value: (
        isinstance(value, str) and not 0 < len(value.encode(errors="replace")) <= GMSA_SPEC_LIMIT
    ),
)

HOST_PROCESS_WITHOUT_NETWORK = RuleCondition(
    "`true` without `hostNetwork: true`",
    lambda spec, _container, value: value is True and get_path(spec, "hostNetwork") is not True,
)
HOST_PROCESS_CONFLICT = RuleCondition(
    "another value than the pod's",
    lambda spec, _container, value: (
        isinstance(value, bool)
        and get_path(spec, "securityContext", "windowsOptions", "hostProcess") is (not value)
    ),
)


def _is_mixed(spec: Spec, _container: Container, _value: object) -> bool:
    return len({is_host_process(spec, c) for c in containers_of(spec)}) == 2


HOST_PROCESS_MIXED = RuleCondition("some are HostProcess and some are not", _is_mixed)
HOST_PROCESS_ACCOUNT = RuleCondition(
    "`ContainerAdministrator` or `ContainerUser` in a HostProcess pod",
    lambda spec, _container, value: (
        _is_name(value, "containeradministrator", "containeruser") and any_host_process(spec)
    ),
)
HOST_PROCESS_NOBODY = RuleCondition(
    "HostProcess, and no `runAsUserName` for it",
    lambda spec, _container, value: (
        isinstance(value, Mapping)
        and is_host_process(spec, value)
        and windows_option(spec, value, "runAsUserName") is None
    ),
)
HOST_PROCESS_HYPERVISOR = RuleCondition(
    "a hypervisor class, by its name, in a HostProcess pod",
    lambda spec, _container, value: (
        isinstance(value, str) and "hyperv" in value.lower() and any_host_process(spec)
    ),
)
IN_HOST_PROCESS = RuleCondition(
    "in a HostProcess pod",
    lambda spec, _container, value: bool(value) and any_host_process(spec),
)
NETWORK_WITHOUT_HOST_PROCESS = RuleCondition(
    "`true` without HostProcess",
    lambda spec, _container, value: (
        value is True and not any_host_process(spec) and not is_host_process(spec, {})
    ),
)

OTHER_MODE = _value(
    "other than 0644",
    lambda value: isinstance(value, int) and not isinstance(value, bool) and value != 0o644,
)
HUGE_PAGES_MEDIUM = _value(
    "`HugePages` or `HugePages-<size>`",
    lambda value: isinstance(value, str) and value.startswith("HugePages"),
)


def _is_unprivileged_bidirectional(_spec: Spec, container: Container, value: object) -> bool:
    return (
        value == "Bidirectional"
        and get_path(container, "securityContext", "privileged") is not True
    )


BIDIRECTIONAL = RuleCondition(
    "`Bidirectional` without `privileged: true`", _is_unprivileged_bidirectional
)
PROPAGATED = RuleCondition(
    "`HostToContainer`, or `Bidirectional` with `privileged: true`",
    lambda spec, container, value: (
        isinstance(value, str)
        and value in ("HostToContainer", "Bidirectional")
        and not _is_unprivileged_bidirectional(spec, container, value)
    ),
)


def _is_pipe(path: object) -> bool:
    return isinstance(path, str) and path.replace("/", "\\").startswith(PIPE)


NAMED_PIPE = RuleCondition(
    "a named pipe, without a type, outside HostProcess pods",
    lambda spec, _container, value: (
        _is_pipe(get_path(value, "path"))
        and not get_path(value, "type")
        and not any_host_process(spec)
    ),
)
TYPED_PIPE = _value(
    "a named pipe with a `type`",
    lambda value: _is_pipe(get_path(value, "path")) and bool(get_path(value, "type")),
)
HOST_PROCESS_PIPE = RuleCondition(
    "a named pipe in a HostProcess pod",
    lambda spec, _container, value: (
        _is_pipe(get_path(value, "path")) and not get_path(value, "type") and any_host_process(spec)
    ),
)

_LINUX_ROOTS = ("/proc", "/sys", "/dev", "/boot", "/lib/modules", "/usr")


def _is_linux_path(path: object) -> bool:
    if not isinstance(path, str):
        return False
    return f"{path}/".startswith(tuple(f"{root}/" for root in _LINUX_ROOTS)) or (
        path.startswith(("/run/", "/var/run/")) and path.endswith(".sock")
    )


LINUX_HOST_PATH = _value(
    "part of Linux: under `/proc`, `/sys`, `/dev`, `/boot`, `/lib/modules`, `/usr`, "
    "or a socket under `/run`",
    _is_linux_path,
)
SYSTEM_DRIVE = _value("`C:`", lambda value: isinstance(value, str) and value in ("C:", "c:"))
OTHER_DRIVE = _value(
    "another drive, such as `D:`",
    lambda value: isinstance(value, str) and bool(re.fullmatch(r"[abd-zABD-Z]:.*", value)),
)
UNIX_MOUNT_PATH = _value(
    "a path that starts with `/`", lambda value: isinstance(value, str) and value.startswith("/")
)

_LINUX_PROGRAM = re.compile(
    r"/s?bin/.*|/usr/s?bin/.*|(?:.*/)?(?:sh|bash|ash|dash|ksh|zsh)|.*\.sh", re.DOTALL
)


def _is_linux_command(value: object) -> bool:
    program = value[0] if isinstance(value, list) and value else None
    return isinstance(program, str) and bool(_LINUX_PROGRAM.fullmatch(program))


LINUX_COMMAND = _value(
    "starts with a Unix shell, a `.sh` script or a path under `/bin` or `/usr/bin`",
    _is_linux_command,
)


def _has_case_twins(value: object) -> bool:
    if not isinstance(value, list):
        return False
    names = {name for entry in value if isinstance(name := get_path(entry, "name"), str)}
    return len({name.casefold() for name in names}) < len(names)


CASE_TWINS = _value("two names that differ in case only", _has_case_twins)
HAS_NDOTS = _value(
    "has `ndots`",
    lambda value: (
        isinstance(value, list) and any(get_path(entry, "name") == "ndots" for entry in value)
    ),
)
EXTENDED_RESOURCE = _value(
    "a device plugin's resource, such as `microsoft.com/directx`",
    lambda value: isinstance(value, Mapping) and any("/" in str(name) for name in value),
)
UNKNOWN_OS = _value(
    "neither `windows` nor `linux`, in lowercase",
    lambda value: isinstance(value, str) and value not in ("windows", "linux"),
)
