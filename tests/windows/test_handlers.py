"""Handlers that are known without configuration, and the documents' older names for them."""

import re

import pytest

from winpod.windows.builds import RELEASES, Build, Channel
from winpod.windows.handlers import (
    ALIASES,
    HYPERVISOR,
    KNOWN,
    PROCESS,
    UnknownHandler,
    get_handler,
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
def test_the_documents_handlers_are_known(
    name: str, isolation: Isolation, guest: Build | None
) -> None:
    handler = get_handler(name)
    assert (handler.isolation, handler.guest) == (isolation, guest)


def test_every_server_release_has_a_guest_handler() -> None:
    for release in RELEASES:
        name = f"runhcs-wcow-hypervisor-{release.build.number}"
        assert (name in KNOWN) == (release.channel is not Channel.CLIENT)


def test_names_are_what_the_api_takes() -> None:
    for name in (*KNOWN, *filter(None, ALIASES)):
        assert re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", name)


def test_an_unknown_handler_is_an_error_that_names_the_known() -> None:
    with pytest.raises(UnknownHandler) as caught:
        get_handler("runsc")
    assert 'no runtime for "runsc" is configured' in str(caught.value)
    assert caught.value.code == "NOT_FOUND"


def test_a_handler_without_a_guest_has_the_hosts_kernel() -> None:
    host = Build(10, 0, 20348)
    assert PROCESS.kernel(host) == HYPERVISOR.kernel(host) == host
    assert get_handler("runhcs-wcow-hypervisor-17763").kernel(host) == B17763
