"""Which image build runs on which host build.

Process isolation shares the host's kernel, so the builds must fit; hypervisor isolation brings a
guest kernel, which may be older than the host and never newer, and the guest takes the host's place
for every container of the pod.
"""

from enum import StrEnum

from winpod.windows.builds import Build


class Isolation(StrEnum):
    PROCESS = "process"
    HYPERVISOR = "hypervisor"


STABLE_ABI = 20348
_STABLE_LTSC = (20348, 26100)


def oldest_fitting(host: Build) -> Build:
    """The oldest image build that process isolation accepts on this host.

    Before the stable ABI of 20348 only the host's own build fits. From it on, an image may be as
    old as the long-term release before the host's latest one. hcsshim's copy of this rule takes
    the last long-term release strictly below the host, which refuses 20348 on 26200; containerd's,
    followed here, is the one that chooses images.
    """
    if host.number < STABLE_ABI:
        return host.base
    reached = [number for number in _STABLE_LTSC if number <= host.number]
    return Build(host.major, host.minor, reached[-2] if len(reached) > 1 else reached[-1])


def fits_host(image: Build, host: Build) -> bool:
    """Process isolation: whether this image's build runs on this host's kernel."""
    if (image.major, image.minor) != (host.major, host.minor):
        return False
    return oldest_fitting(host).number <= image.number <= host.number


def guest_fits_host(guest: Build, host: Build) -> bool:
    """Hypervisor isolation: whether this host can boot a guest of that build."""
    return guest.base <= host.base


def process_rule(host: Build) -> str:
    """The builds a host accepts, in words: `10.0.17763` or `10.0.20348 to 10.0.26100`."""
    oldest = oldest_fitting(host)
    return str(host.base) if oldest == host.base else f"{oldest} to {host.base}"
