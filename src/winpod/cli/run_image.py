"""The image for `winpod run`: in the store for the handler it runs with, pulled if need be.

It is pulled here, beside the runtime, because the store is for every process of the machine and a
pull through the CRI shows no progress.
"""

from __future__ import annotations

from enum import StrEnum

from winpod.cli.pull import pull_image
from winpod.cri.config import Config
from winpod.images.errors import NoMatch, NotPulled
from winpod.images.pull import variant_for
from winpod.images.pull_choice import own_architecture
from winpod.images.source import ImageSources, parse_layout_name
from winpod.images.store import Store
from winpod.images.stored import StoredImage
from winpod.windows.builds import parse_version
from winpod.windows.handlers import HYPERVISOR, PROCESS, Handler, hypervisor_for
from winpod.windows.isolation import guest_fits_host

_OTHER_BUILD = (
    "Give --host-build the build of the image: winpod can be each of them. An older one also runs "
    "with --isolation hypervisor."
)


class Isolation(StrEnum):
    PROCESS = "process"
    HYPERVISOR = "hypervisor"


class PullPolicy(StrEnum):
    ALWAYS = "always"
    MISSING = "missing"
    NEVER = "never"


async def handler_for(reference: str, isolation: Isolation, config: Config) -> Handler:
    """Under a hypervisor the guest is of the image's own build: the newest that the host takes.

    An image with none for this machine's processor is refused when it is pulled.
    """
    if isolation is Isolation.PROCESS:
        return PROCESS
    async with ImageSources(sizes=False) as sources:
        image = await sources.describe(reference)
    versions = image.builds(own_architecture())
    builds = [build for version in versions if (build := parse_version(version))]
    fitting = [build for build in builds if guest_fits_host(build, config.host_build)]
    if not builds:
        return HYPERVISOR
    if not fitting:
        raise NoMatch(
            f"{reference} has no Windows that {config.host_build.describe()} can be the host of.",
            "Use an older image, or a newer --host-build.",
        )
    return hypervisor_for(max(fitting))


async def obtain_image(
    reference: str, handler: Handler, policy: PullPolicy, config: Config
) -> StoredImage:
    """One that fits the host, or Windows' sentence for one that does not, and what helps here."""
    try:
        return await _obtain(reference, handler, policy, config)
    except NoMatch as error:
        advice = _OTHER_BUILD if error.advice else ""
        raise NoMatch(error.sentence, advice) from None


async def _obtain(
    reference: str, handler: Handler, policy: PullPolicy, config: Config
) -> StoredImage:
    """What lies in a layout on this machine is looked at again each time: it costs nothing."""
    is_local = parse_layout_name(reference) is not None
    if policy is PullPolicy.ALWAYS or (is_local and policy is PullPolicy.MISSING):
        return await pull_image(reference, handler, config, quiet=is_local)
    try:
        with Store(config.root, host=config.host_build, handlers=config.handlers) as store:
            return await variant_for(store, reference, handler, config.host_build)
    except NotPulled:
        if policy is PullPolicy.NEVER:
            raise
    return await pull_image(reference, handler, config)
