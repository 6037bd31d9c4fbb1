"""Handlers that are known without configuration, older names for them, and configured ones."""

import re
from typing import Any

import pytest

from winpod.windows.builds import RELEASES, Build, Channel
from winpod.windows.guest_sizes import BACKED, MEMORY_MB
from winpod.windows.handlers import (
    HYPERVISOR,
    KNOWN,
    PROCESS,
    Handler,
    Handlers,
    UnknownHandler,
)
from winpod.windows.isolation import Isolation
from winpod.windows.reading import At, InvalidField

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
def test_the_documents_handlers_are_known(
    name: str, isolation: Isolation, guest: Build | None
) -> None:
    handler = KNOWN.get(name)
    assert (handler.isolation, handler.guest) == (isolation, guest)


def test_every_server_release_has_a_guest_handler() -> None:
    for release in RELEASES:
        name = f"runhcs-wcow-hypervisor-{release.build.number}"
        assert (name in KNOWN.named) == (release.channel is not Channel.CLIENT)


def test_names_are_what_the_api_takes() -> None:
    for name in (*KNOWN.named, *filter(None, KNOWN.aliases)):
        assert re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", name)


def test_an_unknown_handler_is_an_error_that_names_the_known() -> None:
    with pytest.raises(UnknownHandler) as caught:
        KNOWN.get("runsc")
    assert 'no runtime for "runsc" is configured' in str(caught.value)
    assert caught.value.code == "NOT_FOUND"


def test_a_handler_without_a_guest_has_the_hosts_kernel() -> None:
    host = Build(10, 0, 20348)
    assert PROCESS.kernel(host) == HYPERVISOR.kernel(host) == host
    assert KNOWN.get("runhcs-wcow-hypervisor-17763").kernel(host) == B17763


def configured(**tables: dict[str, Any]) -> Handlers:
    return KNOWN.configured(At(tables, ("handlers",)))


def test_a_configuration_adds_handlers_and_names_for_them() -> None:
    handlers = configured(
        fast={"isolation": "process", "aliases": ["quick", "docker"]},
        legacy={"isolation": "hypervisor", "guest_build": "1809"},
    )
    fast, legacy = handlers.get("fast"), handlers.get("legacy")
    assert fast == Handler("fast", Isolation.PROCESS)
    assert handlers.get("quick") == handlers.get("docker") == fast
    assert legacy == Handler("legacy", Isolation.HYPERVISOR, B17763)
    assert handlers.get("") == PROCESS
    assert {fast, legacy, PROCESS, HYPERVISOR} <= set(handlers)
    assert KNOWN.find("fast") is None


def test_a_handler_may_carry_a_size() -> None:
    name, size = "runhcs-wcow-hypervisor-reserve", {BACKED: "true"}
    handlers = configured(**{name: {"isolation": "hypervisor", "annotations": size}})
    assert handlers.get(name).annotations == tuple(size.items())
    assert HYPERVISOR.annotations == ()


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
def test_a_name_that_only_its_node_knows_is_of_the_kind_it_begins_with(
    name: str, isolation: Isolation, guest: Build | None, size: str
) -> None:
    told = KNOWN.told(name)
    assert (told.isolation, told.guest, KNOWN.size(name)) == (isolation, guest, size)


def test_a_configured_handler_takes_the_place_of_the_known_one_under_all_its_names() -> None:
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
        ("fast", {"isolation": "process", "aliases": ["fast"]}, "which is a handler of its own"),
        ("Fast", {"isolation": "process"}, 'has "Fast"'),
        ("fast", {"isolation": "hypervisor", "annotations": {"a": "1"}}, "a is not a setting"),
        ("fast", {"isolation": "hypervisor", "annotations": {BACKED: True}}, "must be text"),
        ("fast", {"isolation": "hypervisor", "annotations": {BACKED: "yes"}}, "true or false"),
        ("fast", {"isolation": "hypervisor", "annotations": {MEMORY_MB: "1Gi"}}, "be a number"),
        ("fast", {"isolation": "process", "annotations": {BACKED: "true"}}, "have no size"),
    ],
)
def test_what_is_no_handler_is_refused(name: str, table: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidField) as caught:
        configured(**{name: table})
    assert says in str(caught.value)
