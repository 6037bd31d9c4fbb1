"""The image for `winpod run`: in the store for the handler it runs with, pulled if need be.

It is pulled here, beside the runtime, because the store is for every process of the machine and a
pull through the CRI shows no progress.
"""

from __future__ import annotations

from enum import StrEnum

from winpod.cli.pull import pull_image
from winpod.cri.config import Config
from winpod.images.errors import NoMatch, NotPulled
from winpod.images.pull import describe_stored, variant_for
from winpod.images.pull_choice import own_architecture
from winpod.images.source import ImageSources, parse_layout_name
from winpod.images.store import Store
from winpod.images.store_trouble import not_pulled
from winpod.images.stored import StoredImage
from winpod.windows.builds import parse_version
from winpod.windows.handlers import HYPERVISOR, PROCESS, Handler, hypervisor_for
from winpod.windows.isolation import guest_fits_host
from winpod.windows.platforms import Image

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


async def handler_for(
    reference: str, isolation: Isolation, policy: PullPolicy, config: Config
) -> Handler:
    """Under a hypervisor the guest is of the image's own build: the newest that the host takes.

    An image with none for this machine's processor is refused when it is pulled.
    """
    if isolation is Isolation.PROCESS:
        return PROCESS
    image = await _describe(reference, policy, config)
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


async def _describe(reference: str, policy: PullPolicy, config: Config) -> Image:
    """Nobody is asked about an image that is stored and need not be pulled again."""
    if not _is_asked_for_anew(reference, policy):
        with _store(config) as store:
            if found := await describe_stored(store, reference):
                return found[2]
        if policy is PullPolicy.NEVER:
            raise not_pulled(reference, HYPERVISOR.name)
    async with ImageSources(sizes=False) as sources:
        return await sources.describe(reference)


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
    if _is_asked_for_anew(reference, policy):
        return await pull_image(reference, handler, config, quiet=_is_local(reference))
    try:
        with _store(config) as store:
            return await variant_for(store, reference, handler, config.host_build)
    except NotPulled:
        if policy is PullPolicy.NEVER:
            raise
    return await pull_image(reference, handler, config)


def _is_asked_for_anew(reference: str, policy: PullPolicy) -> bool:
    """What lies in a layout on this machine is looked at again each time: it costs nothing."""
    return policy is PullPolicy.ALWAYS or (policy is PullPolicy.MISSING and _is_local(reference))


def _is_local(reference: str) -> bool:
    return parse_layout_name(reference) is not None


def _store(config: Config) -> Store:
    return Store(config.root, host=config.host_build, handlers=config.handlers)
