"""Image platforms, and the choice of one manifest from an index.

The order of the choice: os, architecture and variant, os.features, then the build by the isolation
rule, then the highest revision, compared as numbers. Names are normalised as containerd does.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from winpod.windows.builds import Build, parse_version
from winpod.windows.isolation import fits_host

_ARCHITECTURES = {"x86_64": "amd64", "x86-64": "amd64", "aarch64": "arm64", "i386": "386"}


@dataclass(frozen=True, slots=True)
class Platform:
    """What an index or an image config says about one manifest, normalised on the way in."""

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
    """One runnable image of a reference: what it is for and how large it is to pull."""

    digest: str
    platform: Platform
    size: int


@dataclass(frozen=True, slots=True)
class Image:
    """Everything a reference can be, as an index or a single manifest says it.

    `guessed` marks platforms read off the tag because nobody could be asked.
    """

    reference: str
    digest: str
    manifests: tuple[Manifest, ...]
    is_index: bool = True
    guessed: bool = False

    def builds(self, architecture: str | None = None) -> tuple[str, ...]:
        """The Windows versions it has, oldest first, as its publisher wrote them."""
        found = {
            m.platform.os_version
            for m in self.manifests
            if m.platform.os == "windows"
            and m.platform.os_version
            and architecture in (None, m.platform.architecture)
        }
        return tuple(sorted(found, key=lambda v: (parse_version(v) or Build(0, 0, 0), v)))

    def operating_systems(self) -> frozenset[str]:
        return frozenset(m.platform.os for m in self.manifests)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a handler can run: the kernel is the host's, or the guest's under a hypervisor.

    `narrowed_to` is a version, or its beginning, that the pod insists on; it never widens.
    """

    os: str
    architecture: str
    kernel: Build | None = None
    variant: str = ""
    os_features: tuple[str, ...] = ()
    narrowed_to: str = ""


def matches(platform: Platform, wanted: Wanted) -> bool:
    """Everything but the build: os, architecture, variant and features."""
    features = {f for f in platform.os_features if f != "win32k"}
    return (
        platform.os == wanted.os
        and platform.architecture == wanted.architecture
        and platform.variant == wanted.variant
        and features <= set(wanted.os_features)
    )


def runs_on_kernel(platform: Platform, wanted: Wanted) -> bool:
    """The build rule. A platform that states no version is taken to fit, as containerd takes it."""
    if platform.os != "windows" or not platform.os_version or wanted.kernel is None:
        return True
    build = platform.build
    return build is not None and fits_host(build, wanted.kernel)


def choose_manifest(manifests: Iterable[Manifest], wanted: Wanted) -> Manifest | None:
    """The manifest this host or guest runs, or None where the image has none for it."""
    fitting = [
        m
        for m in manifests
        if matches(m.platform, wanted)
        and runs_on_kernel(m.platform, wanted)
        and _is_narrowed(m.platform, wanted.narrowed_to)
    ]
    return max(fitting, key=lambda m: m.platform.build or Build(0, 0, 0), default=None)


def _is_narrowed(platform: Platform, version: str) -> bool:
    return not version or f"{platform.os_version}.".startswith(f"{version}.")
