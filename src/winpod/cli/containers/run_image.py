"""Image and isolation of `winpod run`: choose the handler, and pull the image if needed.

The image is pulled by this process and not by the runtime: the store is shared by all processes of
the machine, and a pull through the CRI shows no progress.
"""

from __future__ import annotations

import os
import sys
from enum import StrEnum

from winpod.cli.images.pull import pull_image
from winpod.compute.hypervisor.accelerator import is_emulation_allowed
from winpod.compute.hypervisor.template import Templates
from winpod.config import Config
from winpod.images.base.builder import latest_base
from winpod.images.errors import ImageNotPulled, NoMatchingManifest, not_pulled_error
from winpod.images.pull.platform_match import host_architecture
from winpod.images.pull.puller import describe_stored, find_variant
from winpod.images.resolver import ImageResolver, parse_layout_name
from winpod.images.store.records import StoredImage
from winpod.images.store.store import Store
from winpod.windows.builds import parse_version
from winpod.windows.handlers import HYPERVISOR_HANDLER, PROCESS_HANDLER, Handler, hypervisor_handler
from winpod.windows.isolation import guest_fits_host
from winpod.windows.platforms import Image

_OTHER_BUILD = (
    "Set --host-build to the build of the image. An image of an older build also runs with "
    "--isolation hypervisor."
)


class IsolationOption(StrEnum):
    PROCESS = "process"
    HYPERVISOR = "hypervisor"


class PullPolicy(StrEnum):
    ALWAYS = "always"
    MISSING = "missing"
    NEVER = "never"


async def handler_for(
    reference: str, isolation: IsolationOption, policy: PullPolicy, config: Config
) -> Handler:
    """Choose the handler. With hypervisor isolation the guest has the image's newest fitting build.

    An image without a manifest for this architecture is rejected by the pull.
    """
    if isolation is IsolationOption.PROCESS:
        return PROCESS_HANDLER
    image = await _describe(reference, policy, config)
    versions = image.builds(host_architecture())
    builds = [build for version in versions if (build := parse_version(version))]
    fitting = [build for build in builds if guest_fits_host(build, config.host_build)]
    if not builds:
        return HYPERVISOR_HANDLER
    if not fitting:
        raise NoMatchingManifest(
            f"{reference} has no Windows build that can be a guest of "
            f"{config.host_build.describe()}.",
            "Use an older image, or a newer --host-build.",
        )
    return hypervisor_handler(max(fitting))


async def _describe(reference: str, policy: PullPolicy, config: Config) -> Image:
    """Describe the image from the store if possible, else from its registry or layout."""
    if not _must_resolve_again(reference, policy):
        with _store(config) as store:
            if found := await describe_stored(store, reference):
                return found[2]
        if policy is PullPolicy.NEVER:
            raise not_pulled_error(reference, HYPERVISOR_HANDLER.name)
    async with ImageResolver(sizes=False) as sources:
        return await sources.describe(reference)


async def ensure_image(
    reference: str, handler: Handler, policy: PullPolicy, config: Config
) -> StoredImage:
    """Return the stored image, pulling it if needed. If none fits the host, advise on options."""
    try:
        return await _find_or_pull(reference, handler, policy, config)
    except NoMatchingManifest as error:
        advice = _OTHER_BUILD if error.hint else ""
        raise NoMatchingManifest(error.message, advice) from None


async def _find_or_pull(
    reference: str, handler: Handler, policy: PullPolicy, config: Config
) -> StoredImage:
    if _must_resolve_again(reference, policy):
        return await pull_image(reference, handler, config, quiet=_is_local(reference))
    try:
        with _store(config) as store:
            return await find_variant(store, reference, handler, config.host_build)
    except ImageNotPulled:
        if policy is PullPolicy.NEVER:
            raise
    return await pull_image(reference, handler, config)


def _must_resolve_again(reference: str, policy: PullPolicy) -> bool:
    """Whether to resolve the image again. Local layouts always are: it is cheap."""
    return policy is PullPolicy.ALWAYS or (policy is PullPolicy.MISSING and _is_local(reference))


def _is_local(reference: str) -> bool:
    return parse_layout_name(reference) is not None


def _store(config: Config) -> Store:
    return Store(config.root, host=config.host_build, handlers=config.handlers)


_BOOTING = "booting the template microVM (up to a minute); later ones are cloned from it"


def needs_emulation(isolation: IsolationOption, config: Config) -> bool:
    """Whether the runtime daemon must allow CPU emulation."""
    return isolation is IsolationOption.HYPERVISOR and _is_emulation_allowed(config)


def announce_first_boot(isolation: IsolationOption, config: Config) -> None:
    """Print a notice before the slow first boot of a microVM template."""
    base = latest_base(config.root)
    if isolation is IsolationOption.HYPERVISOR and base:
        templates = Templates(config.root, base, _is_emulation_allowed(config))
        if not templates.unavailable_reason() and not templates.exists():
            print(f"winpod: {_BOOTING} ...", file=sys.stderr, flush=True)


def _is_emulation_allowed(config: Config) -> bool:
    return is_emulation_allowed(config.hypervisor.allow_emulation, os.environ)
