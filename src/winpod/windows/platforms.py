"""Image platforms, and the selection of a manifest from an index.

Manifests are filtered by os, architecture, variant and os.features, then by build with the
isolation rule; the highest build and revision wins, compared as numbers. Names are normalised as in
containerd.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from winpod.windows.builds import Build, parse_version
from winpod.windows.isolation import image_fits_host

_ARCHITECTURES = {"x86_64": "amd64", "x86-64": "amd64", "aarch64": "arm64", "i386": "386"}


@dataclass(frozen=True, slots=True)
class Platform:
    """The platform of one manifest, from an index or an image config, normalised."""

    os: str
    architecture: str
    variant: str = ""
    os_version: str = ""
    os_features: tuple[str, ...] = ()

    @staticmethod
    def normalised(
        os: str,
        architecture: str,
        variant: str = "",
        os_version: str = "",
        os_features: Iterable[str] = (),
    ) -> Platform:
        architecture = architecture.lower()
        architecture = _ARCHITECTURES.get(architecture, architecture)
        variant = variant.lower()
        if architecture == "arm64" and variant in ("8", "v8"):
            variant = ""
        if architecture == "amd64" and variant == "v1":
            variant = ""
        if architecture == "arm":
            variant = f"v{variant}" if variant.isdigit() else variant or "v7"
        return Platform(os.lower(), architecture, variant, os_version, tuple(sorted(os_features)))

    @property
    def build(self) -> Build | None:
        return parse_version(self.os_version)

    def __str__(self) -> str:
        text = "/".join(part for part in (self.os, self.architecture, self.variant) if part)
        return f"{text} {self.os_version}" if self.os_version else text


@dataclass(frozen=True, slots=True)
class Manifest:
    """One image manifest of a reference, with its platform and download size."""

    digest: str
    platform: Platform
    size: int


@dataclass(frozen=True, slots=True)
class Image:
    """All manifests of a reference, from an index or a single manifest.

    `is_guess` marks platforms derived from the tag because no registry could be reached.
    """

    reference: str
    digest: str
    manifests: tuple[Manifest, ...]
    is_index: bool = True
    is_guess: bool = False

    def builds(self, architecture: str | None = None) -> tuple[str, ...]:
        """Return the Windows versions of the image as published, oldest first."""
        versions = {
            m.platform.os_version
            for m in self.manifests
            if m.platform.os == "windows"
            and m.platform.os_version
            and architecture in (None, m.platform.architecture)
        }
        return tuple(sorted(versions, key=lambda v: (parse_version(v) or Build(0, 0, 0), v)))

    def operating_systems(self) -> frozenset[str]:
        return frozenset(m.platform.os for m in self.manifests)


@dataclass(frozen=True, slots=True)
class PlatformRequirement:
    """What a handler can run. The kernel is the host's, or the guest's with hypervisor isolation.

    `constraint` is a version or version prefix required by the pod; it only narrows the choice.
    """

    os: str
    architecture: str
    kernel: Build | None = None
    variant: str = ""
    os_features: tuple[str, ...] = ()
    constraint: str = ""


def matches_platform(platform: Platform, required: PlatformRequirement) -> bool:
    """Whether os, architecture, variant and features match; the build is not considered."""
    features = {f for f in platform.os_features if f != "win32k"}
    return (
        platform.os == required.os
        and platform.architecture == required.architecture
        and platform.variant == required.variant
        and features <= set(required.os_features)
    )


def runs_on_kernel(platform: Platform, required: PlatformRequirement) -> bool:
    """Whether the build fits. As in containerd, a platform without os.version fits every kernel."""
    if platform.os != "windows" or not platform.os_version or required.kernel is None:
        return True
    build = platform.build
    return build is not None and image_fits_host(build, required.kernel)


def choose_manifest(
    manifests: Iterable[Manifest], required: PlatformRequirement
) -> Manifest | None:
    """Return the manifest that the host or guest runs, or None if the image has none."""
    fitting = [
        m
        for m in manifests
        if matches_platform(m.platform, required)
        and runs_on_kernel(m.platform, required)
        and _matches_constraint(m.platform, required.constraint)
    ]
    return max(fitting, key=lambda m: m.platform.build or Build(0, 0, 0), default=None)


def _matches_constraint(platform: Platform, version: str) -> bool:
    return not version or f"{platform.os_version}.".startswith(f"{version}.")
