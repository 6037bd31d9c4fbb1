"""Runtime handlers that are known without configuration.

A handler is an isolation and, under a hypervisor, a guest build; one that names no build has the
host's. Names are lowercase DNS labels, as the API demands of a RuntimeClass.
"""

from dataclasses import dataclass

from winpod.windows.builds import RELEASES, Build, Channel
from winpod.windows.errors import NotFound
from winpod.windows.isolation import Isolation


@dataclass(frozen=True, slots=True)
class Handler:
    name: str
    isolation: Isolation
    guest: Build | None = None

    def kernel(self, host: Build) -> Build:
        """The build that containers meet: the guest's, or the host's where there is none."""
        return self.guest or host


PROCESS = Handler("runhcs-wcow-process", Isolation.PROCESS)
HYPERVISOR = Handler("runhcs-wcow-hypervisor", Isolation.HYPERVISOR)


def hypervisor_for(guest: Build) -> Handler:
    return Handler(f"{HYPERVISOR.name}-{guest.number}", Isolation.HYPERVISOR, guest.base)


def _known() -> dict[str, Handler]:
    known = {PROCESS.name: PROCESS, HYPERVISOR.name: HYPERVISOR}
    for release in RELEASES:
        if release.channel is Channel.CLIENT:
            continue
        handler = hypervisor_for(release.build)
        for suffix in (str(release.build.number), *release.aliases):
            known[f"{HYPERVISOR.name}-{suffix}"] = handler
    return known


KNOWN = _known()

ALIASES: dict[str, Handler] = {
    "": PROCESS,
    "docker": PROCESS,
    "default": PROCESS,
    **{
        f"containerd-hyperv-{name.removeprefix(HYPERVISOR.name + '-')}": handler
        for name, handler in KNOWN.items()
        if handler.guest
    },
}
"""The documents' older names; only winpod's own runtime answers to them."""


class UnknownHandler(NotFound):
    def __init__(self, name: str) -> None:
        super().__init__(
            f'no runtime for "{name}" is configured.',
            f"Known handlers are {PROCESS.name}, {HYPERVISOR.name} and one for each guest build, "
            f"such as {HYPERVISOR.name}-17763.",
        )


def find_handler(name: str) -> Handler | None:
    return KNOWN.get(name) or ALIASES.get(name)


def get_handler(name: str) -> Handler:
    handler = find_handler(name)
    if handler is None:
        raise UnknownHandler(name)
    return handler
