"""Client configuration from a kubeconfig or a service account.

Tokens from files and exec plugins are refreshed, since they expire. The kubeconfig is reloaded when
it or a file it refers to is replaced, and when the server rejects the credentials.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import os
import ssl
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml

from winpod.clock import utc_now
from winpod.errors import InvalidInput, PermissionDenied, Unavailable
from winpod.field_reader import Field
from winpod.files import write_atomic
from winpod.k8s.tls import load_certificate_chain
from winpod.subprocesses import run

Versions = tuple[tuple[int, int] | None, ...]
SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_TOKEN_REFRESH_SECONDS = 60
_PLUGIN_TIMEOUT = 60


@dataclass(slots=True)
class RestConfig:
    """Address and credentials of an API server.

    `ssl_context` has the CA and the client certificate, if any; `chain` is that certificate.
    `tls_server_name` is the name in the server's certificate, if not that of the URL.
    `sources` are the kubeconfigs it was read from, `files` those and the files they refer to.
    """

    url: str
    ssl_context: ssl.SSLContext
    ca_data: bytes = b""
    token: str = ""
    token_file: Path | None = None
    plugin: Mapping[str, Any] | None = None
    chain: bytes = b""
    tls_server_name: str = ""
    proxy: str = ""
    sources: tuple[Path, ...] = ()
    context: str | None = None
    files: tuple[Path, ...] = ()
    _versions: Versions = ()
    _fresh_until: float = field(default=float("-inf"), repr=False)
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock, repr=False)

    async def headers(self) -> dict[str, str]:
        async with self._lock:
            await self._refresh_token()
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}

    async def _refresh_token(self) -> None:
        now = time.monotonic()
        if now < self._fresh_until:
            return
        fresh = float(_TOKEN_REFRESH_SECONDS)
        if self.token_file:
            try:
                self.token = self.token_file.read_text().strip()
            except OSError as error:
                raise Unavailable(
                    f"Failed to read the API server token {self.token_file}: {error.strerror}."
                ) from None
        elif self.plugin:
            self.token, expires = await _run_plugin(self.plugin)
            if expires:
                fresh = (expires - utc_now()).total_seconds() - _TOKEN_REFRESH_SECONDS
        self._fresh_until = now + fresh

    def is_outdated(self) -> bool:
        """Whether a file was replaced since it was read."""
        return _versions(self.files) != self._versions

    def reload(self) -> bool:
        """Read the files again; return whether new connections are required."""
        self._fresh_until = float("-inf")
        if not self.sources:
            return False
        try:
            new = read_kubeconfig(*self.sources, context=self.context)
        except InvalidInput as error:
            raise Unavailable(error.message) from None
        is_changed = new._identity() != self._identity()
        self.url, self.ssl_context = new.url, new.ssl_context
        self.ca_data, self.chain = new.ca_data, new.chain
        self.tls_server_name, self.proxy = new.tls_server_name, new.proxy
        self.token, self.token_file, self.plugin = new.token, new.token_file, new.plugin
        self.files, self._versions = new.files, new._versions
        return is_changed

    def _identity(self) -> tuple[str | bytes, ...]:
        return self.url, self.ca_data, self.chain, self.tls_server_name, self.proxy


def read_kubeconfig(
    *files: Path, context: str | None = None, option: str = "--kubeconfig"
) -> RestConfig:
    """Read a context, by default the current one; `option` is the CLI option that named the file.

    Files are merged as kubectl does: the first one that defines a name wins, and missing ones are
    skipped.
    """
    names = ", ".join(map(str, files))
    try:
        documents = _read_documents(files)
        config = _to_config(documents, files, context) if documents else None
    except FileNotFoundError as error:
        raise InvalidInput(f"{error.filename}, referenced by {names}, does not exist.") from None
    except (OSError, ValueError, yaml.YAMLError, InvalidInput) as error:
        reason = " ".join(str(error).split())
        raise InvalidInput(f"{names} is not a valid kubeconfig: {reason}") from None
    if config is None:
        raise InvalidInput(f"{names} does not exist.", f"Set {option} to an existing file.")
    return config


def normalize_url(server: str) -> str:
    """Add the https scheme to a plain address."""
    return server if "://" in server else f"https://{server}"


def token_config(url: str, token: str, authority: bytes = b"") -> RestConfig:
    """Return a config for a token; without a CA, the system's CAs are trusted."""
    return RestConfig(url.rstrip("/"), _ssl_context(authority, insecure=False), authority, token)


def in_cluster_config(files: Path = SERVICE_ACCOUNT) -> RestConfig:
    """Return the config of the pod's service account."""
    host, port = (os.environ.get(f"KUBERNETES_SERVICE_{part}", "") for part in ("HOST", "PORT"))
    try:
        if not host:
            raise InvalidInput("KUBERNETES_SERVICE_HOST is not set.")
        authority = (files / "ca.crt").read_bytes()
        address = f"[{host}]" if ":" in host else host
        return RestConfig(
            f"https://{address}:{port or 443}",
            _ssl_context(authority, insecure=False),
            authority,
            token_file=files / "token",
        )
    except (OSError, ValueError, InvalidInput) as error:
        raise InvalidInput(
            f"Failed to load the service account of the pod: {error}",
            "Outside of a cluster, set --kubeconfig.",
        ) from None


def write_kubeconfig(file: Path, url: str, authority: bytes, certificate: Path) -> None:
    """Write a kubeconfig for a node's client certificate."""
    cluster: dict[str, str] = {"server": url}
    if authority:
        cluster["certificate-authority-data"] = base64.b64encode(authority).decode()
    user = {"client-certificate": str(certificate), "client-key": str(certificate)}
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "default", "cluster": cluster}],
        "users": [{"name": "default", "user": user}],
        "contexts": [{"name": "default", "context": {"cluster": "default", "user": "default"}}],
        "current-context": "default",
    }
    try:
        write_atomic(file, json.dumps(document, indent=2).encode())
    except OSError as error:
        raise PermissionDenied(
            f"Failed to write the kubeconfig {file}: {error.strerror}.",
            "Set --kubeconfig to a writable file.",
        ) from None


@dataclass(frozen=True, slots=True)
class _Document:
    """A kubeconfig; the paths in it are relative to its folder."""

    folder: Path
    fields: Field


def _read_documents(files: Iterable[Path]) -> list[_Document]:
    documents = []
    for file in files:
        with suppress(FileNotFoundError):
            documents.append(_Document(file.parent, Field(yaml.safe_load(file.read_text()))))
    return documents


def _to_config(
    documents: list[_Document], sources: tuple[Path, ...], context: str | None
) -> RestConfig:
    chosen = _named(documents, "context", context or _current_context(documents)).fields
    found = _named(documents, "cluster", chosen.get("cluster").required_text())
    cluster, cluster_folder = found.fields, found.folder
    found = _named(documents, "user", chosen.get("user").text())
    user, user_folder = found.fields, found.folder
    references = (
        (cluster_folder, cluster.get("certificate-authority").text()),
        (user_folder, user.get("client-certificate").text()),
        (user_folder, user.get("client-key").text()),
    )
    files = (*sources, *(folder / name for folder, name in references if name))
    versions = _versions(files)
    authority = _content(cluster, "certificate-authority", cluster_folder)
    ssl_context = _ssl_context(authority, insecure=cluster.get("insecure-skip-tls-verify").flag())
    chain, key = (
        _content(user, name, user_folder) for name in ("client-certificate", "client-key")
    )
    if chain and key:
        load_certificate_chain(ssl_context, chain, key)
    token_file = user.get("tokenFile").text()
    return RestConfig(
        cluster.get("server").required_text().rstrip("/"),
        ssl_context,
        authority,
        user.get("token").text(),
        user_folder / token_file if token_file else None,
        user.get("exec").value if user.get("exec") else None,
        chain,
        cluster.get("tls-server-name").text(),
        _proxy(cluster.get("proxy-url").text()),
        sources,
        context,
        files,
        versions,
    )


def _current_context(documents: Iterable[_Document]) -> str:
    for document in documents:
        if name := document.fields.get("current-context").text():
            return name
    raise InvalidInput("current-context is required.")


def _proxy(url: str) -> str:
    if url and not url.startswith(("http://", "https://")):
        raise InvalidInput(f'proxy-url "{url}" is not an http or https URL.')
    return url


def _versions(files: Iterable[Path]) -> Versions:
    return tuple(file_version(file) for file in files)


def file_version(file: Path) -> tuple[int, int] | None:
    """Return a value that changes when the file is replaced; None if it does not exist."""
    try:
        stat = file.stat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_ino


def _named(documents: Iterable[_Document], kind: str, name: str) -> _Document:
    """Return the first cluster, context or user of a name; the user without a name is empty."""
    for document in documents:
        for item in document.fields.get(f"{kind}s").items():
            if item.get("name").text() == name:
                return _Document(document.folder, item.get(kind))
    if not name:
        return _Document(Path(), Field({}))
    raise InvalidInput(f'it has no {kind} "{name}".')


def _content(at: Field, name: str, folder: Path) -> bytes:
    data, path = at.get(f"{name}-data").text(), at.get(name).text()
    try:
        if data:
            return base64.b64decode(data)
        return (folder / path).read_bytes() if path else b""
    except binascii.Error:
        raise InvalidInput(f"{name}-data is not base64.") from None


def _ssl_context(authority: bytes, *, insecure: bool) -> ssl.SSLContext:
    ssl_context = ssl.create_default_context(cadata=authority.decode() if authority else None)
    if insecure:
        ssl_context.check_hostname = False
        ssl_context.verify_mode = ssl.CERT_NONE
    return ssl_context


async def _run_plugin(plugin: Mapping[str, Any]) -> tuple[str, datetime | None]:
    """Run an exec credential plugin; return the token and its expiry."""
    environment = {item["name"]: item["value"] for item in plugin.get("env") or ()}
    exec_info: dict[str, Any] = {
        "apiVersion": plugin.get("apiVersion"),
        "kind": "ExecCredential",
        "spec": {},
    }
    command = [str(plugin["command"]), *map(str, plugin.get("args") or ())]
    try:
        async with asyncio.timeout(_PLUGIN_TIMEOUT):
            done = await run(
                command,
                env={**os.environ, **environment, "KUBERNETES_EXEC_INFO": json.dumps(exec_info)},
                is_interactive=True,
                show_errors=True,
            )
        status = json.loads(done.output)["status"]
        expires = status.get("expirationTimestamp")
        return str(status["token"]), datetime.fromisoformat(expires) if expires else None
    except (OSError, ValueError, KeyError, TimeoutError) as error:
        raise Unavailable(
            f"The credential plugin {command[0]} returned no token: {error!r}."
        ) from None
