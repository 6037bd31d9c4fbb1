"""Hosts of a registry: mirrors, certificates and headers in containerd's `hosts.toml`.

The file is `certs.d/HOST[:PORT]/hosts.toml`, or else `certs.d/_default/hosts.toml`; without one,
the registry itself is used over HTTPS. A directory without the file may have certificates in
Docker's layout (`*.crt`, `*.cert` with `*.key`). As in containerd, loopback registries use plain
HTTP unless certificates are configured for them.
"""

from __future__ import annotations

import ipaddress
import os
import ssl
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from winpod.errors import InvalidInput
from winpod.files import user_home
from winpod.images.references import DOCKER_HUB

HUB_HOST = "registry-1.docker.io"


class Capability(StrEnum):
    PULL = "pull"
    RESOLVE = "resolve"
    PUSH = "push"


@dataclass(frozen=True, slots=True)
class RegistryHost:
    """One host that serves a registry's content."""

    scheme: str
    name: str
    path: str = "/v2"
    capabilities: frozenset[Capability] = frozenset(Capability)
    authorities: tuple[Path, ...] = ()
    client_pairs: tuple[tuple[Path, Path | None], ...] = ()
    skip_verify: bool = False
    headers: tuple[tuple[str, str], ...] = ()

    @property
    def origin(self) -> str:
        return f"{self.scheme}://{self.name}"

    def serves(self, registry: str) -> bool:
        """Return whether it is the registry itself rather than a mirror."""
        return self.name == registry or (registry == DOCKER_HUB and self.name == HUB_HOST)

    def ssl_context(self) -> ssl.SSLContext:
        """Return a TLS context, cached until one of its certificate files changes."""
        system = ssl.get_default_verify_paths()
        client_files = (path for pair in self.client_pairs for path in pair)
        files = (system.cafile, system.capath, *self.authorities, *client_files)
        versions = tuple(_version(Path(path)) for path in files if path)
        return _context(self.authorities, self.client_pairs, self.skip_verify, versions)


@lru_cache(maxsize=64)
def _context(
    authorities: tuple[Path, ...],
    client_pairs: tuple[tuple[Path, Path | None], ...],
    skip_verify: bool,
    versions: tuple[int, ...],
) -> ssl.SSLContext:
    """Create a TLS context; cached, because loading the system's CA certificates is slow."""
    del versions
    context = ssl.create_default_context()
    for path in authorities:
        with _certificate_errors(path):
            context.load_verify_locations(path)
    for certificate, key in client_pairs:
        with _certificate_errors(certificate):
            context.load_cert_chain(certificate, key)
    if skip_verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _version(file: Path) -> int:
    try:
        return file.stat().st_mtime_ns
    except OSError:
        return 0


def hosts_directories() -> tuple[Path, ...]:
    if chosen := os.environ.get("WINPOD_HOSTS_DIR"):
        return (Path(chosen),)
    return (
        user_home() / ".config/winpod/certs.d",
        Path("/etc/winpod/certs.d"),
        Path("/etc/containerd/certs.d"),
    )


def registry_hosts(registry: str, roots: Sequence[Path]) -> tuple[RegistryHost, ...]:
    """Return the hosts of a registry, in the order in which to try them."""
    directory = _directory_of(registry, roots)
    if directory is None:
        return (_upstream(registry, {}, Path()),)
    file = directory / "hosts.toml"
    if not file.exists():
        return (_upstream(registry, _certificates(directory), directory),)
    try:
        table = tomllib.loads(file.read_text())
    except (ValueError, OSError) as error:
        raise InvalidInput(f"{file} cannot be read as TOML: {error}.") from None
    try:
        return _parse_hosts(table, registry, directory)
    except ValueError as error:
        raise InvalidInput(
            f"{file} is not a valid hosts file: {error}.", "See containerd's docs/hosts.md."
        ) from None


def is_loopback(name: str) -> bool:
    """Return whether HOST[:PORT] is a loopback address."""
    host = urlsplit(f"//{name}").hostname or ""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _directory_of(registry: str, roots: Sequence[Path]) -> Path | None:
    host, colon, port = registry.rpartition(":")
    windows_names = [f"{host}_{port}_"] if colon and port.isdigit() else []
    for root in roots:
        for name in (*windows_names, registry, "_default"):
            if (root / name).is_dir():
                return root / name
    return None


def _certificates(directory: Path) -> dict[str, Any]:
    clients = sorted(directory.glob("*.cert"))
    return {
        "ca": [str(path) for path in sorted(directory.glob("*.crt"))],
        "client": [[str(path), str(path.with_suffix(".key"))] for path in clients],
    }


def _parse_hosts(
    table: Mapping[str, Any], registry: str, directory: Path
) -> tuple[RegistryHost, ...]:
    hosts = table.get("host", {})
    if not isinstance(hosts, dict):
        raise ValueError('"host" is not a table of hosts')
    mirrors = []
    for url, settings in hosts.items():
        if not isinstance(settings, dict):
            raise ValueError(f'host "{url}" is not a table')
        mirrors.append(_parse_host(url, settings, directory))
    server = _text(table.get("server", ""), "server")
    upstream = (
        _parse_host(server, table, directory) if server else _upstream(registry, table, directory)
    )
    return (*mirrors, upstream)


def _upstream(registry: str, settings: Mapping[str, Any], directory: Path) -> RegistryHost:
    with_tls = any(settings.get(key) for key in ("ca", "client", "skip_verify"))
    scheme = "http" if is_loopback(registry) and not with_tls else "https"
    name = HUB_HOST if registry == DOCKER_HUB else registry
    return _parse_host(f"{scheme}://{name}", {**settings, "override_path": False}, directory)


def _parse_host(url: str, settings: Mapping[str, Any], directory: Path) -> RegistryHost:
    parts = urlsplit(url if "://" in url else f"https://{url}")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f'"{url}" is not a URL of a registry')
    path = parts.path.rstrip("/")
    if not settings.get("override_path") and not path.endswith("/v2"):
        path += "/v2"
    return RegistryHost(
        scheme=parts.scheme,
        name=parts.netloc.rpartition("@")[2],
        path=path,
        capabilities=_capabilities(settings.get("capabilities")),
        authorities=tuple(directory / p for p in _texts(settings.get("ca", []), "ca")),
        client_pairs=_client_pairs(settings.get("client", []), directory),
        skip_verify=settings.get("skip_verify") is True,
        headers=_headers(settings.get("header", {})),
    )


def _capabilities(value: object) -> frozenset[Capability]:
    names = _texts(value or list(Capability), "capabilities")
    try:
        return frozenset(Capability(name.lower()) for name in names)
    except ValueError:
        raise ValueError(f"capabilities must be pull, resolve or push, not {names}") from None


def _client_pairs(value: object, directory: Path) -> tuple[tuple[Path, Path | None], ...]:
    pairs: list[tuple[Path, Path | None]] = []
    items = [value] if isinstance(value, str) else value if isinstance(value, list) else [None]
    for item in items:
        if isinstance(item, str):
            pairs.append((directory / item, None))
        elif isinstance(item, list) and len(item) == 2:
            certificate, key = _texts(item, "client")
            pairs.append((directory / certificate, directory / key))
        else:
            raise ValueError(
                '"client" must be a file or a list of files or [certificate, key] pairs'
            )
    return tuple(pairs)


def _headers(value: object) -> tuple[tuple[str, str], ...]:
    if not isinstance(value, dict):
        raise ValueError('"header" is not a table')
    return tuple((key, text) for key, item in value.items() for text in _texts(item, "header"))


def _texts(value: object, key: str) -> list[str]:
    values = value if isinstance(value, list) else [value]
    return [_text(item, key) for item in values]


def _text(value: object, key: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f'"{key}" is not text')
    return value


@contextmanager
def _certificate_errors(certificate: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, ssl.SSLError) as error:
        raise InvalidInput(f"The certificate {certificate} cannot be used: {error}.") from None
