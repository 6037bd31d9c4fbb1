"""Windows builds and their release names.

A build is `major.minor.number`; the fourth part, the update revision, never decides whether a
container fits a host. The table has every release that container images were published for.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache, total_ordering

from winpod.errors import InvalidInput


class ServicingChannel(StrEnum):
    LTSC = "LTSC"
    SEMI_ANNUAL = "SAC"
    ANNUAL = "AC"
    CLIENT = "client"


@total_ordering
@dataclass(frozen=True, slots=True)
class Build:
    """A Windows version, with its update revision if known."""

    major: int
    minor: int
    number: int
    revision: int | None = None

    def __str__(self) -> str:
        text = f"{self.major}.{self.minor}.{self.number}"
        return text if self.revision is None else f"{text}.{self.revision}"

    def __lt__(self, other: Build) -> bool:
        return self._key() < other._key()

    def _key(self) -> tuple[int, int, int, int]:
        revision = -1 if self.revision is None else self.revision
        return (self.major, self.minor, self.number, revision)

    @property
    def base(self) -> Build:
        """The build without the revision, which is what compatibility depends on."""
        return self if self.revision is None else Build(self.major, self.minor, self.number)

    @property
    def release(self) -> Release | None:
        return _RELEASE_OF.get((self.major, self.minor, self.number))

    @property
    def product_name(self) -> str:
        """The product name as Windows reports it; only LTSC releases include a year."""
        if self.release and self.release.channel is ServicingChannel.LTSC:
            return f"{self.release.name} Datacenter"
        return "Windows Server Datacenter"

    def describe(self) -> str:
        """`10.0.17763 (Windows Server 2019)`, or only the number for an unknown release."""
        return f"{self} ({self.release.name})" if self.release else str(self)


@dataclass(frozen=True, slots=True)
class Release:
    """A row of the table: one build and its names."""

    build: Build
    name: str
    channel: ServicingChannel
    aliases: tuple[str, ...]
    other_names: tuple[str, ...] = ()

    @property
    def short_name(self) -> str:
        """The name used in handlers, RuntimeClasses and `--build`: `2019`, `1903`, `23h2`."""
        return self.aliases[0]

    @property
    def runs_pods(self) -> bool:
        """Whether pods are supported: they need version 2 of the HCS API, added in build 17763."""
        return self.channel is not ServicingChannel.CLIENT and self.build.number >= 17763


def _release(
    number: int, name: str, channel: ServicingChannel, aliases: str, also: tuple[str, ...] = ()
) -> Release:
    return Release(Build(10, 0, number), name, channel, tuple(aliases.split()), also)


RELEASES: tuple[Release, ...] = (
    _release(
        14393,
        "Windows Server 2016",
        ServicingChannel.LTSC,
        "2016 1607 ltsc2016 rs1",
        ("Windows 10 Anniversary Update",),
    ),
    _release(15063, "Windows 10 Creators Update", ServicingChannel.CLIENT, "1703 rs2"),
    _release(
        16299,
        "Windows Server 1709",
        ServicingChannel.SEMI_ANNUAL,
        "1709 rs3",
        ("Windows 10 Fall Creators Update",),
    ),
    _release(
        17134,
        "Windows Server 1803",
        ServicingChannel.SEMI_ANNUAL,
        "1803 rs4",
        ("Windows 10 April 2018 Update",),
    ),
    _release(
        17763,
        "Windows Server 2019",
        ServicingChannel.LTSC,
        "2019 1809 ltsc2019 rs5",
        ("Windows Server 1809", "Windows 10 October 2018 Update"),
    ),
    _release(18362, "Windows Server 1903", ServicingChannel.SEMI_ANNUAL, "1903 19h1"),
    _release(18363, "Windows Server 1909", ServicingChannel.SEMI_ANNUAL, "1909 19h2"),
    _release(19041, "Windows Server 2004", ServicingChannel.SEMI_ANNUAL, "2004 20h1"),
    _release(19042, "Windows Server 20H2", ServicingChannel.SEMI_ANNUAL, "20h2"),
    _release(19043, "Windows Server 21H1", ServicingChannel.SEMI_ANNUAL, "21h1"),
    _release(19044, "Windows 10 November 2021 Update", ServicingChannel.CLIENT, "21h2win10"),
    _release(19045, "Windows 10 2022 Update", ServicingChannel.CLIENT, "22h2win10"),
    _release(20348, "Windows Server 2022", ServicingChannel.LTSC, "2022 ltsc2022 21h2server"),
    _release(22000, "Windows 11", ServicingChannel.CLIENT, "21h2win11"),
    _release(22621, "Windows 11 2022 Update", ServicingChannel.CLIENT, "22h2win11"),
    _release(
        25398,
        "Windows Server 23H2",
        ServicingChannel.ANNUAL,
        "23h2",
        ("Windows Server annual channel 23H2",),
    ),
    _release(26100, "Windows Server 2025", ServicingChannel.LTSC, "2025 ltsc2025 25h1server"),
)

DEFAULT_HOST = Build(10, 0, 20348)


def _normalise_name(name: str) -> str:
    """Strip the words and separators that are optional in a release name."""
    name = re.sub(r"\b(microsoft|version|datacenter|standard|azure edition)\b", "", name.lower())
    return re.sub(r"(?<=windows)server|^v(?=\d)", "", re.sub(r"[\s_-]+", "", name))


_RELEASE_OF = {(r.build.major, r.build.minor, r.build.number): r for r in RELEASES}
_BY_NAME: dict[str, Release] = {}
for _row in RELEASES:
    for _name in (*_row.aliases, _row.name, *_row.other_names, str(_row.build.number)):
        _BY_NAME[_normalise_name(_name)] = _row
    if _row.channel is not ServicingChannel.CLIENT:
        for _name in _row.aliases:
            _BY_NAME["windows" + _name] = _row

_VERSION = re.compile(r"(\d{1,5})\.(\d{1,5})\.(\d{1,9})(?:\.(\d{1,9}))?", re.ASCII)


@lru_cache(maxsize=4096)
def parse_version(text: str) -> Build | None:
    """Parse a dotted version as images and kernels report it; None if it is not one."""
    match = _VERSION.fullmatch(text.strip())
    if match is None:
        return None
    major, minor, number, revision = match.groups()
    return Build(int(major), int(minor), int(number), int(revision) if revision else None)


@lru_cache(maxsize=4096)
def parse_build(text: str) -> Build:
    """Parse a version or release name: `10.0.17763.805`, `2019`, `Windows Server 1809`."""
    if version := parse_version(text):
        return version
    if release := _BY_NAME.get(_normalise_name(text)):
        return release.build
    raise InvalidInput(
        f'"{text}" is not a Windows build.',
        "Write a version such as 10.0.17763 or 10.0.17763.805, or a release: "
        + ", ".join(r.short_name for r in RELEASES if r.runs_pods)
        + ".",
    )


def supported_ltsc() -> tuple[Release, ...]:
    """Return the LTSC releases that Kubernetes runs pods on, oldest first."""
    return tuple(r for r in RELEASES if r.channel is ServicingChannel.LTSC and r.runs_pods)
