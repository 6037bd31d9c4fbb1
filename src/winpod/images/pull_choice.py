"""For whom an image is pulled, and which of its manifests that is. Pure.

The handler is the request's, else that of its alpha form in the annotations, else the sandbox's,
else the default. Annotations narrow the choice of a manifest and never widen it.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass, field

from winpod.images.errors import NoMatch
from winpod.windows.builds import Build, parse_version
from winpod.windows.handlers import KNOWN, Handler, Handlers, hypervisor_for
from winpod.windows.isolation import guest_fits_host
from winpod.windows.objects import Narrowing, read_narrowing
from winpod.windows.platforms import Image, Manifest, Platform, Wanted, choose_manifest
from winpod.windows.reading import At
from winpod.windows.starting import MISMATCH, misfit

HANDLER_ANNOTATION = "kubernetes.io/runtimehandler"


def resolve_handler(
    handlers: Handlers,
    runtime_handler: str = "",
    annotations: Mapping[str, str] | None = None,
    sandbox_handler: str = "",
) -> Handler:
    """The handler that a request is for; a name that is not known is an error."""
    asked = (annotations or {}).get(HANDLER_ANNOTATION, "")
    return handlers.get(runtime_handler or asked or sandbox_handler)


def narrowing_of(annotations: Mapping[str, str]) -> Narrowing:
    return read_narrowing(At(dict(annotations), ("annotations",)))


def own_architecture() -> str:
    return Platform.normalised("windows", platform.machine()).architecture


@dataclass(frozen=True, slots=True)
class Asked:
    """What is asked of an image: the handler, its host, and what the pod insists on."""

    handler: Handler
    host: Build
    narrowing: Narrowing = field(default_factory=Narrowing)
    architecture: str = "amd64"

    @property
    def wanted(self) -> Wanted:
        return Wanted(
            os="windows",
            architecture=self.architecture,
            kernel=self.handler.kernel(self.host),
            narrowed_to=self.narrowing.os_version,
        )

    def accepts(self, architecture: str, os_version: str) -> bool:
        """Whether a manifest of this platform is one that could be chosen."""
        found = Platform.normalised("windows", architecture, os_version=os_version)
        fits = choose_manifest([Manifest("", found, 0)], self.wanted)
        return fits is not None and not _narrowed_away(self)


def choose(image: Image, name: str, asked: Asked) -> Manifest:
    """The manifest for the handler, or an error that names what there is and what was needed."""
    if not guest_fits_host(asked.handler.kernel(asked.host), asked.host):
        raise NoMatch(
            f"The handler {asked.handler.name} has a guest of build {asked.handler.guest}, which "
            f"cannot run on the older {asked.host.describe()}.",
            "Choose a handler with an older guest, or another --host-build.",
        )
    start = f'failed to pull image "{name}" for the handler {asked.handler.name}: '
    if reason := _narrowed_away(asked):
        raise NoMatch(f"{start}{reason}.", "Annotations can only narrow what the handler runs.")
    chosen = choose_manifest(image.manifests, asked.wanted)
    if chosen is None:
        found = misfit(image, name, asked.wanted)
        said = f"{start}{_said(found.symptom)}{found.sentence}."
        raise NoMatch(said, _elsewhere(image, asked))
    return chosen


def _narrowed_away(asked: Asked) -> str:
    narrowing = asked.narrowing
    if narrowing.os not in ("", "windows"):
        return f"the annotations ask for {narrowing.os}, and it runs windows"
    if narrowing.architecture not in ("", asked.architecture):
        return f"the annotations ask for {narrowing.architecture}, and it runs {asked.architecture}"
    return ""


def _said(symptom: str) -> str:
    """As containerd, or Windows itself, begins what it has to say about it."""
    if symptom == MISMATCH:
        return f"hcs::CreateComputeSystem: {MISMATCH} "
    return f"{symptom.removesuffix(': not found')}: "


def _elsewhere(image: Image, asked: Asked) -> str:
    """Where what the image has would run: on other hosts, and on this one with other handlers."""
    builds = [parse_version(version) for version in image.builds(asked.architecture)]
    bases = list(dict.fromkeys(build.base for build in builds if build))
    if not bases:
        return ""
    guests = [hypervisor_for(build).name for build in bases if guest_fits_host(build, asked.host)]
    known = [name for name in dict.fromkeys(guests) if KNOWN.find(name)]
    here = f", or here with the handler {' or '.join(known)}" if known else ""
    how = ": a RuntimeClass's, or --handler" if known else ""
    return f"It runs on a host of build {' or '.join(map(str, bases))}{here}{how}."
