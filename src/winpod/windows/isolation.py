"""Which image build runs on which host build.

Process isolation shares the host's kernel, so the builds must be compatible. Hypervisor isolation
runs a guest kernel, which may be older than the host but not newer; the guest's build then replaces
the host's for every container of the pod.
"""

from enum import StrEnum

from winpod.windows.builds import Build


class Isolation(StrEnum):
    PROCESS = "process"
    HYPERVISOR = "hypervisor"


FIRST_STABLE_ABI_BUILD = 20348
_STABLE_LTSC = (20348, 26100)


def oldest_accepted_build(host: Build) -> Build:
    """Return the oldest image build that process isolation accepts on this host.

    Before the stable ABI of 20348 only the host's exact build is accepted. Since then, an image may
    be as old as the LTSC release before the latest one the host includes. hcsshim takes the last
    LTSC release strictly below the host instead, which rejects 20348 on 26200; the rule here is
    containerd's, which is the one that selects images.
    """
    if host.number < FIRST_STABLE_ABI_BUILD:
        return host.base
    reached = [number for number in _STABLE_LTSC if number <= host.number]
    return Build(host.major, host.minor, reached[-2] if len(reached) > 1 else reached[-1])


def image_fits_host(image: Build, host: Build) -> bool:
    """Whether the image's build runs on the host's kernel with process isolation."""
    if (image.major, image.minor) != (host.major, host.minor):
        return False
    return oldest_accepted_build(host).number <= image.number <= host.number


def guest_fits_host(guest: Build, host: Build) -> bool:
    """Whether the host can boot a guest of this build with hypervisor isolation."""
    return guest.base <= host.base


def describe_accepted_builds(host: Build) -> str:
    """Format the builds a host accepts: `10.0.17763` or `10.0.20348 to 10.0.26100`."""
    oldest = oldest_accepted_build(host)
    return str(host.base) if oldest == host.base else f"{oldest} to {host.base}"
