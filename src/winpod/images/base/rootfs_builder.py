"""Root filesystem of the base: Debian packages, unpacked and reduced to what Wine needs.

`mmdebstrap` resolves the packages with apt, verifies Debian's signatures and unpacks them without
running maintainer scripts, from the mirror in this machine's apt sources or else Debian's own.

A library is kept if the dynamic linker reports that a kept file needs it, never by name. Wine's
drivers are all kept: a tree without them has been seen to fork without end.
"""

from __future__ import annotations

import filecmp
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from winpod.errors import InvalidInput
from winpod.files import remove_tree
from winpod.images import pe
from winpod.images.base.build_container import run_in_container, with_parent_death_signal
from winpod.images.base.recipe import (
    ACCOUNTS,
    CONTAINER_ETC_FILES,
    FONT_CACHE,
    KEPT_PATHS,
    LIBRARIES,
    LOADED_LIBRARIES,
    MOUNT_POINTS,
    PACKAGES,
    SUITE,
    UNUSED_MODULES,
    WINDOWS_FILES,
    WINE,
    ZLIB,
)
from winpod.images.errors import BaseBuildFailed, DiskFull, MirrorUnavailable, ToolMissing
from winpod.subprocesses import run_blocking

KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
APT = Path("/etc/apt")
_DEFAULT_MIRROR = "http://deb.debian.org/debian"
_DEFAULT_SECURITY_MIRROR = "http://deb.debian.org/debian-security"
_SCHEMES = ("http", "https", "file", "copy")
_DEB_LINE = re.compile(r"^(deb)\s+(?:\[[^]]*\]\s+)?(\S+)\s+(\S+)")
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
    """Debian mirrors; `security` is empty if the mirror has no security archive."""

    main: str
    security: str = ""

    def sources(self, *, with_32bit: bool = False) -> list[str]:
        """Return apt source lines, each restricted to Debian's keys.

        Only the main suite includes i386: Wine is the only 32-bit package needed, and its version
        must equal that of the 64-bit one.
        """
        architectures = "amd64,i386" if with_32bit else "amd64"
        suites = [(self.main, SUITE, architectures), (self.main, f"{SUITE}-updates", "amd64")]
        if self.security:
            suites.append((self.security, f"{SUITE}-security", "amd64"))
        return [
            f"deb [arch={architecture} signed-by={KEYRING}] {uri} {suite} main"
            for uri, suite, architecture in suites
        ]


def choose_mirrors(chosen: str = "", apt: Path = APT) -> Mirrors:
    """Return the chosen mirror, or that of this machine's apt, or Debian's own."""
    if chosen:
        if urlsplit(chosen).scheme not in _SCHEMES or re.search(r"\s", chosen):
            raise InvalidInput(
                f'"{chosen}" is not the URL of a Debian mirror.',
                f"Use a URL such as {_DEFAULT_MIRROR}.",
            )
        main = chosen.rstrip("/")
        security = _DEFAULT_SECURITY_MIRROR if main == _DEFAULT_MIRROR else ""
        return Mirrors(main, security)
    uris = list(_apt_uris(apt))
    for main in uris:
        if _last_part(main) == "debian":
            return Mirrors(main, _security_mirror(main, uris))
    return Mirrors(_DEFAULT_MIRROR, _DEFAULT_SECURITY_MIRROR)


def unpack_packages(
    target: Path, mirrors: Mirrors, *, with_32bit: bool, packages: Sequence[str] = PACKAGES
) -> dict[str, str]:
    """Unpack packages and their dependencies, and return the version of each."""
    if not KEYRING.is_file():
        raise ToolMissing(
            f"Debian's archive keys are missing: {KEYRING} does not exist.",
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
    result = run_blocking(with_parent_death_signal(command))
    if result.code:
        raise explain(result.error_text, mirrors)
    archives = target / _ARCHIVES
    if with_32bit:
        _unpack_windows_files(archives, target)
    return dict(sorted(map(_name_and_version, archives.glob("*.deb"))))


def explain(output: str, mirrors: Mirrors) -> Exception:
    """Return an error with advice for the output of a failed mmdebstrap."""
    mirror = mirrors.main
    if "No space left on device" in output:
        return DiskFull(
            "The disk became full while unpacking Debian packages.", "Free 2 GB and retry."
        )
    if re.search(
        r"NO_PUBKEY|not signed|EXPKEYSIG|BADSIG|signatures? (couldn't|were invalid)", output
    ):
        return MirrorUnavailable(
            f"The packages at {mirror} are not signed with this machine's Debian archive keys.",
            "Update the keys (apt-get install debian-archive-keyring), or choose another mirror"
            " with --mirror.",
        )
    if re.search(
        r"Could not (connect|resolve)|Temporary failure|Connection (failed|timed)", output
    ):
        return MirrorUnavailable(
            f"The Debian mirror {mirror} cannot be reached.",
            "Check this machine's network and proxy (http_proxy), or choose another mirror with"
            " --mirror.",
        )
    if re.search(r"Mirror sync in progress|Hash Sum mismatch|unexpected size", output):
        return MirrorUnavailable(
            f"The Debian mirror {mirror} is being synchronised, or serves outdated files.",
            "Try again in a few minutes, or choose another mirror with --mirror.",
        )
    if re.search(r"404 +Not Found|does not have a Release file|Unable to locate package", output):
        return MirrorUnavailable(
            f"The Debian mirror {mirror} does not have all packages of Debian {SUITE}.",
            "Choose another mirror with --mirror, such as http://deb.debian.org/debian.",
        )
    errors = [line for line in output.splitlines() if line.startswith(("E:", "Err"))]
    shown = "; ".join((errors or output.splitlines())[:_SHOWN_LINES])
    return BaseBuildFailed(f"mmdebstrap failed to unpack Debian packages: {shown}")


def _apt_uris(apt: Path) -> Iterator[str]:
    """Yield the URIs of all package sources, in the order in which apt reads the files."""
    files = [apt / "sources.list", *sorted((apt / "sources.list.d").glob("*"))]
    for file in files:
        try:
            text = file.read_text()
        except (OSError, ValueError):
            continue
        uris = _parse_deb822(text) if file.suffix == ".sources" else _parse_list(text)
        if file.suffix in (".list", ".sources"):
            yield from (uri.rstrip("/") for uri in uris if urlsplit(uri).scheme in _SCHEMES)


def _parse_list(text: str) -> Iterator[str]:
    for line in text.splitlines():
        if match := _DEB_LINE.match(line.strip()):
            yield match[2]


def _parse_deb822(text: str) -> Iterator[str]:
    """Yield the URIs of a deb822 file: paragraphs of fields with multi-line values."""
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    for paragraph in re.split(r"\n\s*\n", "\n".join(lines)):
        fields = {
            match[1].lower(): match[2]
            for match in re.finditer(r"^([\w-]+):(.*(?:\n[ \t]+.*)*)", paragraph, re.MULTILINE)
        }
        enabled = fields.get("enabled", "yes").strip().lower() not in ("no", "false", "0")
        if enabled and "deb" in fields.get("types", "").split():
            yield from fields.get("uris", "").split()


def _security_mirror(main: str, uris: Sequence[str]) -> str:
    candidates = (uri for uri in uris if _last_part(uri) == "debian-security")
    return next(candidates, _DEFAULT_SECURITY_MIRROR if main == _DEFAULT_MIRROR else "")


def _last_part(uri: str) -> str:
    return urlsplit(uri).path.rpartition("/")[2]


def _unpack_windows_files(archives: Path, target: Path) -> None:
    """Move the Windows files of 32-bit Wine into the tree, without its Linux files."""
    package = next(archives.glob("libwine_*_i386.deb"), None)
    if package is None:
        raise BaseBuildFailed("Debian's 32-bit Wine was not downloaded.")
    unpacked = archives / "unpacked"
    result = run_blocking(["dpkg-deb", "--extract", str(package), str(unpacked)])
    if result.code:
        raise BaseBuildFailed(f"{package.name} cannot be unpacked: {result.error_text}")
    destination = target / WINE / "i386-windows"
    destination.rmdir()
    (unpacked / "usr/lib/i386-linux-gnu/wine/i386-windows").rename(destination)


def _name_and_version(archive: Path) -> tuple[str, str]:
    name, version, architecture = unquote(archive.stem).split("_")
    return (name if architecture != "i386" else f"{name}:i386"), version


LOADER = "usr/lib64/ld-linux-x86-64.so.2"
SHELL = "usr/bin/sh"
_RESOLVED_LIBRARY = re.compile(r"(?:=> )?(/\S+) \(0x")


def complete_tree(rootfs: Path) -> None:
    """Create what package configuration would have created, as far as Wine needs it."""
    for name in ("bin", "lib", "lib64", "sbin"):
        if not (rootfs / name).exists():
            (rootfs / name).symlink_to(f"usr/{name}")
    for name in MOUNT_POINTS:
        (rootfs / name).mkdir(exist_ok=True)
    accounts = (f"{name}:x:{uid}:{uid}::/root:/bin/false\n" for name, uid in ACCOUNTS.items())
    (rootfs / "etc/passwd").write_text("".join(accounts))
    (rootfs / "etc/group").write_text("root:x:0:\n")
    (rootfs / "etc/nsswitch.conf").write_text("passwd: files\ngroup: files\nhosts: files dns\n")
    for name, target in CONTAINER_ETC_FILES.items():
        (rootfs / "etc" / name).unlink(missing_ok=True)
        (rootfs / "etc" / name).symlink_to(target)
    _write_certificates(rootfs)
    server = rootfs / "usr/lib/wine/wineserver"
    server.unlink()
    server.symlink_to("wineserver64")  # replaces a script that searches for it on every start
    for folder, library in ZLIB.items():
        if any((rootfs / WINE / folder).glob("*.dll")):
            shutil.copy2(rootfs / library, rootfs / WINE / folder)


def cache_fonts(rootfs: Path, prefix: Path, workspace: Path) -> None:
    """Run fc-cache as Debian does on installation; the container can only write to the prefix."""
    cache = prefix / "fontconfig"
    cache.mkdir()
    environment = {"XDG_CACHE_HOME": "/prefix"}
    command = ["/usr/bin/fc-cache"]
    result = run_in_container(
        rootfs, prefix, command, workspace, seconds=60, environment=environment
    )
    if result.code != 0:
        raise BaseBuildFailed(f"fc-cache failed in the base: {result.output[-500:]}")
    shutil.copytree(cache, rootfs / FONT_CACHE, dirs_exist_ok=True)
    remove_tree(cache)


def keep_only_needed(rootfs: Path, prefix: Path, workspace: Path) -> None:
    """Remove all files that are neither in the recipe nor needed by a file that is."""
    for name in UNUSED_MODULES:
        (rootfs / WINE / "x86_64-unix" / name).unlink()
    kept = {rootfs / LOADER, rootfs / SHELL, (rootfs / SHELL).resolve()}
    kept |= _needed_libraries(rootfs, prefix, workspace)
    kept |= set((rootfs / "usr/share/doc").glob("*/copyright"))
    kept = {Path(os.path.realpath(path.parent)) / path.name for path in kept}
    _prune(rootfs / "usr", kept, tuple(rootfs / path for path in KEPT_PATHS))
    _prune(
        rootfs / "etc",
        {
            rootfs / "etc" / name
            for name in ("passwd", "group", "nsswitch.conf", *CONTAINER_ETC_FILES)
        },
        tuple(rootfs / path for path in KEPT_PATHS),
    )
    _prune(rootfs / "var", set(), (rootfs / FONT_CACHE,))
    for entry in (rootfs / "dev").iterdir():
        remove_tree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()


def strip_windows_files(rootfs: Path) -> None:
    for folder in WINDOWS_FILES:
        for file in (rootfs / WINE / folder).iterdir():
            before = file.read_bytes()
            after = pe.strip_debug_data(before)
            if len(after) < len(before):
                file.unlink()
                file.write_bytes(after)


def share_windows_files(rootfs: Path, drive_c: Path) -> None:
    """Hard-link the files that Wine copied into the prefix unchanged."""
    sources = [rootfs / WINE / folder for folder in WINDOWS_FILES]
    for file in sorted(drive_c.rglob("*")):
        if file.is_symlink() or not file.is_file():
            continue
        for folder in sources:
            same = folder / file.name
            if same.is_file() and filecmp.cmp(same, file, shallow=False):
                _replace_by_link(file, same)
                break


def _needed_libraries(rootfs: Path, prefix: Path, workspace: Path) -> set[Path]:
    """Return the libraries that kept files need, including the symlinks to them."""
    programs = ["/usr/lib/wine/wine64", "/usr/lib/wine/wineserver64", f"/{SHELL}"]
    modules = sorted((rootfs / WINE / "x86_64-unix").glob("*.so"))
    programs += [f"/{path.relative_to(rootfs)}" for path in modules]
    loaded = [f"/{LIBRARIES}/{name}" for name in LOADED_LIBRARIES]
    plugins = sorted((rootfs / LIBRARIES / "krb5").rglob("*.so"))
    programs += loaded + [f"/{path.relative_to(rootfs)}" for path in plugins]
    script = f'for one in "$@"; do /{LOADER} --list "$one" || exit; done'
    command = ["/bin/sh", "-c", script, "sh", *programs]
    environment = {"LD_LIBRARY_PATH": f"/{WINE}/x86_64-unix"}  # Wine's modules need one another
    listing = run_in_container(
        rootfs, prefix, command, workspace, seconds=60, environment=environment
    )
    if listing.code != 0:
        raise BaseBuildFailed(f"Failed to list the libraries of Wine: {listing.output[-500:]}")
    libraries = {*loaded, *_RESOLVED_LIBRARY.findall(listing.output)}
    return {step for path in libraries for step in _follow_symlinks(rootfs, path)}


def _follow_symlinks(rootfs: Path, path: str) -> Iterator[Path]:
    """Yield the symlinks on the way to a file, and the file."""
    current = rootfs / path.lstrip("/")
    while current.is_symlink():
        yield current
        target = str(current.readlink())
        current = rootfs / target.lstrip("/") if target[0] == "/" else current.parent / target
    yield current


def _prune(folder: Path, kept: set[Path], kept_folders: tuple[Path, ...]) -> None:
    """Remove everything below a directory except the given files and directories."""
    for entry in folder.iterdir():
        if entry in kept or entry in kept_folders:
            continue
        if entry.is_dir() and not entry.is_symlink():
            _prune(entry, kept, kept_folders)
            if not any(entry.iterdir()):
                entry.rmdir()
        else:
            entry.unlink()


def _replace_by_link(file: Path, same: Path) -> None:
    temporary = file.with_name(f".{file.name}.link")
    os.link(same, temporary)
    temporary.replace(file)


def _write_certificates(rootfs: Path) -> None:
    """Write the CA bundle that Wine reads; Debian creates it on installation."""
    folder = rootfs / "etc/ssl/certs"
    folder.mkdir(parents=True, exist_ok=True)
    certificates = sorted((rootfs / "usr/share/ca-certificates").rglob("*.crt"))
    (folder / "ca-certificates.crt").write_text("".join(path.read_text() for path in certificates))
