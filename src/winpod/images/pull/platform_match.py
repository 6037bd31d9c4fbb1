"""Selection of the handler and the manifest of a pull. Pure functions.

The handler is that of the request, or of its alpha form in the annotations, or of the sandbox, or
the default, in this order. Annotations narrow the choice of a manifest and never widen it.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass, field

from winpod.field_reader import Field
from winpod.images.errors import NoMatchingManifest
from winpod.labels import RUNTIME_HANDLER_ANNOTATION
from winpod.placement.model import PlatformConstraint, read_platform_constraint
from winpod.placement.start_checks import OS_MISMATCH_MESSAGE, mismatch_message
from winpod.windows.builds import Build, parse_version
from winpod.windows.handlers import BUILTIN_HANDLERS, Handler, Handlers, hypervisor_handler
from winpod.windows.isolation import guest_fits_host
from winpod.windows.platforms import Image, Manifest, Platform, PlatformRequirement, choose_manifest


def resolve_handler(
    handlers: Handlers,
    runtime_handler: str = "",
    annotations: Mapping[str, str] | None = None,
    sandbox_handler: str = "",
) -> Handler:
    """Return the handler of a pull request; an unknown name is an error."""
    annotated = (annotations or {}).get(RUNTIME_HANDLER_ANNOTATION, "")
    return handlers.get(runtime_handler or annotated or sandbox_handler)


def platform_constraint_of(annotations: Mapping[str, str]) -> PlatformConstraint:
    return read_platform_constraint(Field(dict(annotations), ("annotations",)))


def host_architecture() -> str:
    return Platform.normalised("windows", platform.machine()).architecture


@dataclass(frozen=True, slots=True)
class PullTarget:
    """What a pulled image must fit: the handler, the host and the constraints of the pod."""

    handler: Handler
    host: Build
    constraint: PlatformConstraint = field(default_factory=PlatformConstraint)
    architecture: str = "amd64"

    @property
    def requirement(self) -> PlatformRequirement:
        return PlatformRequirement(
            os="windows",
            architecture=self.architecture,
            kernel=self.handler.kernel_build(self.host),
            constraint=self.constraint.os_version,
        )

    def accepts(self, architecture: str, os_version: str) -> bool:
        """Return whether a manifest of this platform could be chosen."""
        candidate = Platform.normalised("windows", architecture, os_version=os_version)
        fits = choose_manifest([Manifest("", candidate, 0)], self.requirement)
        return fits is not None and not _constraint_conflict(self)


def choose_for_target(image: Image, name: str, target: PullTarget) -> Manifest:
    """Return the manifest for the handler, or raise with the available and required platforms."""
    if not guest_fits_host(target.handler.kernel_build(target.host), target.host):
        raise NoMatchingManifest(
            f"The handler {target.handler.name} has a guest of build {target.handler.guest}, which "
            f"cannot run on the older {target.host.describe()}.",
            "Choose a handler with an older guest, or another --host-build.",
        )
    start = f'failed to pull image "{name}" for the handler {target.handler.name}: '
    if reason := _constraint_conflict(target):
        raise NoMatchingManifest(
            f"{start}{reason}.", "Annotations can only narrow the platforms of the handler."
        )
    chosen = choose_manifest(image.manifests, target.requirement)
    if chosen is None:
        mismatch = mismatch_message(image, name, target.requirement)
        message = f"{start}{_symptom_prefix(mismatch.symptom)}{mismatch.message}."
        raise NoMatchingManifest(message, _alternatives(image, target))
    return chosen


def _constraint_conflict(target: PullTarget) -> str:
    constraint = target.constraint
    if constraint.os not in ("", "windows"):
        return f"the annotations require {constraint.os}, and the handler runs windows"
    if constraint.architecture not in ("", target.architecture):
        return (
            f"the annotations require {constraint.architecture}, and the handler runs "
            f"{target.architecture}"
        )
    return ""


def _symptom_prefix(symptom: str) -> str:
    """Return the message that containerd or Windows shows for a mismatch, as a prefix."""
    if symptom == OS_MISMATCH_MESSAGE:
        return f"hcs::CreateComputeSystem: {OS_MISMATCH_MESSAGE} "
    return f"{symptom.removesuffix(': not found')}: "


def _alternatives(image: Image, target: PullTarget) -> str:
    """Return advice on which hosts, or handlers of this host, run the image."""
    builds = [parse_version(version) for version in image.builds(target.architecture)]
    bases = list(dict.fromkeys(build.base for build in builds if build))
    if not bases:
        return ""
    guests = [
        hypervisor_handler(build).name for build in bases if guest_fits_host(build, target.host)
    ]
    handlers = [name for name in dict.fromkeys(guests) if BUILTIN_HANDLERS.find(name)]
    advice = f"It runs on a host of build {' or '.join(map(str, bases))}"
    if handlers:
        advice += (
            f", or on this host with the handler {' or '.join(handlers)} "
            "(set it in a RuntimeClass or with --handler)"
        )
    return f"{advice}."
