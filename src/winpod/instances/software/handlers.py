"""The handlers that containerd can really serve on an instance.

containerd has one pause image for all handlers, and chooses it as it does every image: by the
host. Under a hypervisor the pause image's build is the guest's, whatever the handler's name says.
So there is a handler for the build of the pause image, and for no other.
"""

from __future__ import annotations

from winpod.instances.errors import BadConfiguration
from winpod.windows.builds import Build
from winpod.windows.handlers import HYPERVISOR, PROCESS, Handler, hypervisor_for
from winpod.windows.isolation import fits_host, guest_fits_host, process_rule


def served_handlers(host: Build, pause: Build | None, *, hypervisor: bool) -> tuple[Handler, ...]:
    """The default one first. A pause image without a build of its own has the host's."""
    guest = (pause or host).base
    handlers = [PROCESS] if fits_host(guest, host) else []
    if hypervisor and guest_fits_host(guest, host):
        handlers += [HYPERVISOR] if guest == host.base else []
        handlers.append(hypervisor_for(guest))
    if not handlers:
        raise BadConfiguration(
            f"no pod could start on {host.describe()}: the pause image is of {guest.describe()}, "
            f"and the host's own containers are of {process_rule(host)}.",
            "Leave pauseBuild out and name a pause image that has every build, or set hypervisor "
            "to true where the image is older than the host.",
        )
    return tuple(handlers)
