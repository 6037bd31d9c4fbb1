"""Debian's packages as a tree of files, from the mirror that this machine uses already.

`mmdebstrap` asks apt for the packages and what they depend on, checks Debian's signatures, and
unpacks them; nothing of them is run. The mirror is the one in this machine's apt sources, else
Debian's own.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from winpod.images.base_container import dying_with_us
from winpod.images.base_errors import BaseFailed, MirrorUnavailable, ToolMissing
from winpod.images.base_recipe import PACKAGES, SUITE, WINE
from winpod.images.errors import NoSpace
from winpod.windows.errors import InvalidInput

KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
APT = Path("/etc/apt")
_DEFAULT = "http://deb.debian.org/debian"
_DEFAULT_SECURITY = "http://deb.debian.org/debian-security"
_SCHEMES = ("http", "https", "file", "copy")
_OPTIONS = re.compile(r"^(deb)\s+(?:\[[^]]*\]\s+)?(\S+)\s+(\S+)")
_ARCHIVES = "var/cache/apt/archives"
_FETCH_32BIT = f"""
set -eu
cd "$1/{_ARCHIVES}"
same=$(dpkg-deb --field libwine_*_amd64.deb Version)
APT_CONFIG="$MMDEBSTRAP_APT_CONFIG" apt-get download "libwine:i386=$same"
"""
_SHOWN_LINES = 4


@dataclass(frozen=True, slots=True)
class Mirrors:
    """Where Debian's packages come from; security may be missing where a mirror has none."""

    main: str
    security: str = ""

    def sources(self, *, with_32bit: bool = False) -> list[str]:
        """Lines of apt, each bound to Debian's own keys.

        32-bit packages are only asked for where Debian publishes its release: Wine is the one of
        them that is wanted, and it must be of the same version as the 64-bit one.
        """
        both = "amd64,i386" if with_32bit else "amd64"
        found = [(self.main, SUITE, both), (self.main, f"{SUITE}-updates", "amd64")]
        if self.security:
            found.append((self.security, f"{SUITE}-security", "amd64"))
        return [
            f"deb [arch={machine} signed-by={KEYRING}] {uri} {suite} main"
            for uri, suite, machine in found
        ]


def choose_mirrors(chosen: str = "", apt: Path = APT) -> Mirrors:
    """The chosen mirror, else that of this machine's apt, else Debian's own."""
    if chosen:
        if urlsplit(chosen).scheme not in _SCHEMES or re.search(r"\s", chosen):
            raise InvalidInput(
                f'"{chosen}" is not the address of a Debian mirror.',
                f"Write one such as {_DEFAULT}.",
            )
        main = chosen.rstrip("/")
        security = _DEFAULT_SECURITY if main == _DEFAULT else ""
        return Mirrors(main, security)
    addresses = list(_addresses(apt))
    for main in addresses:
        if _last_part(main) == "debian":
            return Mirrors(main, _security(main, addresses))
    return Mirrors(_DEFAULT, _DEFAULT_SECURITY)


def unpack_packages(
    target: Path, mirrors: Mirrors, *, with_32bit: bool, packages: Sequence[str] = PACKAGES
) -> dict[str, str]:
    """Fills a directory, and tells the versions of all that it was made of, by package."""
    if not KEYRING.is_file():
        raise ToolMissing(
            f"The keys that Debian signs packages with are not on this machine: {KEYRING} is"
            " missing.",
            "Install them: apt-get install debian-archive-keyring",
        )
    command = [
        "mmdebstrap",
        "--variant=extract",
        "--format=directory",
        "--architectures=amd64,i386" if with_32bit else "--architectures=amd64",
        f"--include={','.join(packages)}",
        "--skip=cleanup/apt",
    ]
    if with_32bit:
        command.append(f"--extract-hook={_FETCH_32BIT}")
    command += [SUITE, str(target), *mirrors.sources(with_32bit=with_32bit)]
    done = subprocess.run(  # noqa: S603
        dying_with_us(command), stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    if done.returncode != 0:
        raise explain(done.stderr, mirrors)
    archives = target / _ARCHIVES
    if with_32bit:
        _unpack_windows_files(archives, target)
    return dict(sorted(map(_name_and_version, archives.glob("*.deb"))))


def explain(output: str, mirrors: Mirrors) -> Exception:
    """What mmdebstrap ended with, as a sentence and what to do."""
    mirror = mirrors.main
    if "No space left on device" in output:
        return NoSpace(
            "The disk became full while Debian's packages were unpacked.", "Free 2 GB and retry."
        )
    if re.search(
        r"NO_PUBKEY|not signed|EXPKEYSIG|BADSIG|signatures? (couldn't|were invalid)", output
    ):
        return MirrorUnavailable(
            f"The packages at {mirror} are not signed with the keys of Debian on this machine.",
            "Update them (apt-get install debian-archive-keyring), or name another mirror with"
            " --mirror.",
        )
    if re.search(
        r"Could not (connect|resolve)|Temporary failure|Connection (failed|timed)", output
    ):
        return MirrorUnavailable(
            f"The Debian mirror {mirror} cannot be reached.",
            "Check this machine's network and proxy (http_proxy), or name another mirror with"
            " --mirror.",
        )
    if re.search(r"Mirror sync in progress|Hash Sum mismatch|unexpected size", output):
        return MirrorUnavailable(
            f"The Debian mirror {mirror} is being changed, or gives out what is out of date.",
            "Try again in some minutes, or name another mirror with --mirror.",
        )
    if re.search(r"404 +Not Found|does not have a Release file|Unable to locate package", output):
        return MirrorUnavailable(
            f"The Debian mirror {mirror} does not have all of Debian {SUITE}.",
            "Name another one with --mirror, such as http://deb.debian.org/debian.",
        )
    errors = [line for line in output.splitlines() if line.startswith(("E:", "Err"))]
    shown = "; ".join((errors or output.splitlines())[:_SHOWN_LINES])
    return BaseFailed(f"mmdebstrap could not unpack Debian's packages: {shown}")


def _addresses(apt: Path) -> Iterator[str]:
    """Every address of a package source, in the order in which apt reads the files."""
    files = [apt / "sources.list", *sorted((apt / "sources.list.d").glob("*"))]
    for file in files:
        try:
            text = file.read_text()
        except (OSError, ValueError):
            continue
        found = _in_sources(text) if file.suffix == ".sources" else _in_list(text)
        if file.suffix in (".list", ".sources"):
            yield from (uri.rstrip("/") for uri in found if urlsplit(uri).scheme in _SCHEMES)


def _in_list(text: str) -> Iterator[str]:
    for line in text.splitlines():
        if match := _OPTIONS.match(line.strip()):
            yield match[2]


def _in_sources(text: str) -> Iterator[str]:
    """The newer format: paragraphs of fields, whose values may go over several lines."""
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    for paragraph in re.split(r"\n\s*\n", "\n".join(lines)):
        fields = {
            match[1].lower(): match[2]
            for match in re.finditer(r"^([\w-]+):(.*(?:\n[ \t]+.*)*)", paragraph, re.MULTILINE)
        }
        enabled = fields.get("enabled", "yes").strip().lower() not in ("no", "false", "0")
        if enabled and "deb" in fields.get("types", "").split():
            yield from fields.get("uris", "").split()


def _security(main: str, addresses: Sequence[str]) -> str:
    found = (one for one in addresses if _last_part(one) == "debian-security")
    return next(found, _DEFAULT_SECURITY if main == _DEFAULT else "")


def _last_part(uri: str) -> str:
    return urlsplit(uri).path.rpartition("/")[2]


def _unpack_windows_files(archives: Path, target: Path) -> None:
    """Takes what 32-bit Wine has for Windows, and leaves what it has for Linux."""
    found = next(archives.glob("libwine_*_i386.deb"), None)
    if found is None:
        raise BaseFailed("Debian's 32-bit Wine was not downloaded.")
    whole = archives / "unpacked"
    done = subprocess.run(  # noqa: S603
        ["dpkg-deb", "--extract", str(found), str(whole)],  # noqa: S607
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        raise BaseFailed(f"{found.name} cannot be unpacked: {done.stderr.strip()}")
    place = target / WINE / "i386-windows"
    place.rmdir()
    (whole / "usr/lib/i386-linux-gnu/wine/i386-windows").rename(place)


def _name_and_version(archive: Path) -> tuple[str, str]:
    name, version, architecture = unquote(archive.stem).split("_")
    return (name if architecture != "i386" else f"{name}:i386"), version
