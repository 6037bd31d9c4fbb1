"""Tests of built-in handlers, their aliases, and configured handlers."""

import re
from typing import Any

import pytest

from winpod.field_reader import Field, InvalidField
from winpod.windows.builds import RELEASES, Build, ServicingChannel
from winpod.windows.handlers import (
    BUILTIN_HANDLERS,
    HYPERVISOR_HANDLER,
    PROCESS_HANDLER,
    VM_MEMORY_MB,
    VM_PHYSICALLY_BACKED,
    Handler,
    Handlers,
    UnknownHandler,
)
from winpod.windows.isolation import Isolation

B17763 = Build(10, 0, 17763)


@pytest.mark.parametrize(
    ("name", "isolation", "guest"),
    [
        ("", Isolation.PROCESS, None),
        ("runhcs-wcow-process", Isolation.PROCESS, None),
        ("docker", Isolation.PROCESS, None),
        ("default", Isolation.PROCESS, None),
        ("runhcs-wcow-hypervisor", Isolation.HYPERVISOR, None),
        ("runhcs-wcow-hypervisor-17763", Isolation.HYPERVISOR, B17763),
        ("runhcs-wcow-hypervisor-1809", Isolation.HYPERVISOR, B17763),
        ("runhcs-wcow-hypervisor-1903", Isolation.HYPERVISOR, Build(10, 0, 18362)),
        ("containerd-hyperv-17763", Isolation.HYPERVISOR, B17763),
    ],
)
def test_documented_handlers_are_built_in(
    name: str, isolation: Isolation, guest: Build | None
) -> None:
    handler = BUILTIN_HANDLERS.get(name)
    assert (handler.isolation, handler.guest) == (isolation, guest)


def test_every_server_release_has_a_guest_handler() -> None:
    for release in RELEASES:
        name = f"runhcs-wcow-hypervisor-{release.build.number}"
        assert (name in BUILTIN_HANDLERS.named) == (release.channel is not ServicingChannel.CLIENT)


def test_names_are_valid_dns_labels() -> None:
    for name in (*BUILTIN_HANDLERS.named, *filter(None, BUILTIN_HANDLERS.aliases)):
        assert re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", name)


def test_unknown_handler_error_lists_built_in_handlers() -> None:
    with pytest.raises(UnknownHandler) as caught:
        BUILTIN_HANDLERS.get("runsc")
    assert 'no runtime for "runsc" is configured' in str(caught.value)
    assert caught.value.code == "NOT_FOUND"


def test_a_handler_without_a_guest_has_the_hosts_kernel() -> None:
    host = Build(10, 0, 20348)
    assert PROCESS_HANDLER.kernel_build(host) == HYPERVISOR_HANDLER.kernel_build(host) == host
    assert BUILTIN_HANDLERS.get("runhcs-wcow-hypervisor-17763").kernel_build(host) == B17763


def configured(**tables: dict[str, Any]) -> Handlers:
    return BUILTIN_HANDLERS.with_configuration(Field(tables, ("handlers",)))


def test_a_configuration_adds_handlers_and_names_for_them() -> None:
    handlers = configured(
        fast={"isolation": "process", "aliases": ["quick", "docker"]},
        legacy={"isolation": "hypervisor", "guest_build": "1809"},
    )
    fast, legacy = handlers.get("fast"), handlers.get("legacy")
    assert fast == Handler("fast", Isolation.PROCESS)
    assert handlers.get("quick") == handlers.get("docker") == fast
    assert legacy == Handler("legacy", Isolation.HYPERVISOR, B17763)
    assert handlers.get("") == PROCESS_HANDLER
    assert {fast, legacy, PROCESS_HANDLER, HYPERVISOR_HANDLER} <= set(handlers)
    assert BUILTIN_HANDLERS.find("fast") is None


def test_handler_may_have_vm_annotations() -> None:
    name, size = "runhcs-wcow-hypervisor-reserve", {VM_PHYSICALLY_BACKED: "true"}
    handlers = configured(**{name: {"isolation": "hypervisor", "annotations": size}})
    assert handlers.get(name).annotations == tuple(size.items())
    assert HYPERVISOR_HANDLER.annotations == ()


@pytest.mark.parametrize(
    ("name", "isolation", "guest", "size"),
    [
        ("runhcs-wcow-hypervisor-reserve", Isolation.HYPERVISOR, None, "reserve"),
        ("runhcs-wcow-hypervisor-reserve-2core", Isolation.HYPERVISOR, None, "reserve-2core"),
        ("runhcs-wcow-hypervisor-1809-reserve", Isolation.HYPERVISOR, B17763, "reserve"),
        ("runhcs-wcow-hypervisor-17763", Isolation.HYPERVISOR, B17763, ""),
        ("runhcs-wcow-hypervisors", Isolation.PROCESS, None, "runhcs-wcow-hypervisors"),
    ],
)
def test_advertised_handler_resolves_by_its_prefix(
    name: str, isolation: Isolation, guest: Build | None, size: str
) -> None:
    told = BUILTIN_HANDLERS.resolve_advertised(name)
    assert (told.isolation, told.guest, BUILTIN_HANDLERS.size_suffix(name)) == (
        isolation,
        guest,
        size,
    )


def test_configured_handler_overrides_built_in_and_its_aliases() -> None:
    name = "runhcs-wcow-hypervisor-17763"
    handlers = configured(**{name: {"isolation": "hypervisor", "guest_build": "10.0.18362"}})
    for other in (name, "runhcs-wcow-hypervisor-1809", "containerd-hyperv-17763"):
        assert handlers.get(other) == Handler(name, Isolation.HYPERVISOR, Build(10, 0, 18362))


@pytest.mark.parametrize(
    ("name", "table", "says"),
    [
        ("fast", {}, "handlers.fast.isolation is required"),
        ("fast", {"isolation": "vm"}, 'is "vm", and must be one of process, hypervisor'),
        ("fast", {"isolation": "process", "guest_build": "1809"}, "is for hypervisor isolation"),
        ("fast", {"isolation": "hypervisor", "guest_build": "xp"}, '"xp" is not a Windows build'),
        ("fast", {"isolation": "process", "build": "1809"}, "handlers.fast.build is not a setting"),
        ("fast", {"isolation": "process", "aliases": ["a b"]}, 'has "a b"'),
        ("fast", {"isolation": "process", "aliases": ["fast"]}, "which is already a handler"),
        ("Fast", {"isolation": "process"}, 'has "Fast"'),
        ("fast", {"isolation": "hypervisor", "annotations": {"a": "1"}}, "a is not a setting"),
        (
            "fast",
            {"isolation": "hypervisor", "annotations": {VM_PHYSICALLY_BACKED: True}},
            "must be text",
        ),
        (
            "fast",
            {"isolation": "hypervisor", "annotations": {VM_PHYSICALLY_BACKED: "yes"}},
            "true or false",
        ),
        ("fast", {"isolation": "hypervisor", "annotations": {VM_MEMORY_MB: "1Gi"}}, "be a number"),
        (
            "fast",
            {"isolation": "process", "annotations": {VM_PHYSICALLY_BACKED: "true"}},
            "has no VM to size",
        ),
    ],
)
def test_invalid_handler_is_rejected(name: str, table: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidField) as caught:
        configured(**{name: table})
    assert says in str(caught.value)
