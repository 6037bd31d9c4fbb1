"""How an API server is reached, and as whom: what a kubeconfig says, in the form requests need.

A token that is in a file, or that a program tells, is asked for again and again, since it expires;
the whole kubeconfig is read again where it or a file that it names was replaced, and as soon as the
server no longer knows who this is.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import os
import ssl
import tempfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from winpod.windows.errors import InvalidInput, PermissionDenied, Unavailable
from winpod.windows.reading import At

Versions = tuple[tuple[int, int] | None, ...]
SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_TOKEN_SECONDS = 60
_EXEC_SECONDS = 60


@dataclass(slots=True)
class Access:
    """`trust` says whom to believe, and has the client's own certificate if there is one.

    `chain` is that certificate. `files` are the kubeconfig that said all of it and those it names.
    """

    url: str
    trust: ssl.SSLContext
    authority: bytes = b""
    token: str = ""
    token_file: Path | None = None
    plugin: Mapping[str, Any] | None = None
    chain: bytes = b""
    files: tuple[Path, ...] = ()
    _versions: Versions = ()
    _fresh_until: float = field(default=float("-inf"), repr=False)
    _renewing: asyncio.Lock = field(default_factory=asyncio.Lock, repr=False)

    async def headers(self) -> dict[str, str]:
        async with self._renewing:
            await self._renew()
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}

    async def _renew(self) -> None:
        now = time.monotonic()
        if now < self._fresh_until:
            return
        fresh = float(_TOKEN_SECONDS)
        if self.token_file:
            try:
                self.token = self.token_file.read_text().strip()
            except OSError as error:
                raise Unavailable(
                    f"the token for the API server cannot be read: {self.token_file}: "
                    f"{error.strerror}."
                ) from None
        elif self.plugin:
            self.token, expires = await _ask_plugin(self.plugin)
            if expires:
                fresh = (expires - datetime.now(UTC)).total_seconds() - _TOKEN_SECONDS
        self._fresh_until = now + fresh

    def is_outdated(self) -> bool:
        """Whether a file was replaced since all of this was read."""
        return _versions(self.files) != self._versions

    def read_again(self) -> bool:
        """What the files say now; whether connections have to be made anew for it."""
        self._fresh_until = float("-inf")
        if not self.files:
            return False
        try:
            new = read_kubeconfig(self.files[0])
        except InvalidInput as error:
            raise Unavailable(error.sentence) from None
        is_another = new._whom() != self._whom()
        self.url, self.trust = new.url, new.trust
        self.authority, self.chain = new.authority, new.chain
        self.token, self.token_file, self.plugin = new.token, new.token_file, new.plugin
        self.files, self._versions = new.files, new._versions
        return is_another

    def _whom(self) -> tuple[str, bytes, bytes]:
        return self.url, self.authority, self.chain


def read_kubeconfig(file: Path, option: str = "--kubeconfig") -> Access:
    """Of its current context; `option` is what named the file."""
    try:
        document = At(yaml.safe_load(file.read_text()))
        context = _named(document, "contexts", document.get("current-context").required_text())
        cluster = _named(document, "clusters", context.get("context", "cluster").required_text())
        name = context.get("context", "user").text()
        user = _named(document, "users", name).get("user") if name else At({})
        return _access(cluster.get("cluster"), user, file)
    except FileNotFoundError as error:
        if error.filename == str(file):
            raise InvalidInput(f"{file} does not exist.", f"{option} names it.") from None
        raise InvalidInput(f"{error.filename}, which {file} names, does not exist.") from None
    except (OSError, ValueError, yaml.YAMLError, InvalidInput) as error:
        why = " ".join(str(error).split())
        raise InvalidInput(f"{file} is not a kubeconfig that can be used: {why}") from None


def full_url(server: str) -> str:
    """Of a server that may be named by its address alone."""
    return server if "://" in server else f"https://{server}"


def token_access(url: str, token: str, authority: bytes = b"") -> Access:
    """As whoever a token says; without an authority only servers that everybody trusts."""
    return Access(url.rstrip("/"), _trust(authority, insecure=False), authority, token)


def service_account_access(files: Path = SERVICE_ACCOUNT) -> Access:
    """As the service account of the pod that this runs in."""
    host, port = (os.environ.get(f"KUBERNETES_SERVICE_{part}", "") for part in ("HOST", "PORT"))
    try:
        if not host:
            raise InvalidInput("KUBERNETES_SERVICE_HOST is not set.")
        authority = (files / "ca.crt").read_bytes()
        address = f"[{host}]" if ":" in host else host
        return Access(
            f"https://{address}:{port or 443}",
            _trust(authority, insecure=False),
            authority,
            token_file=files / "token",
        )
    except (OSError, ValueError, InvalidInput) as error:
        raise InvalidInput(
            f"there is no service account of a pod to reach the API server with: {error}",
            "Outside of a cluster, name a kubeconfig with --kubeconfig.",
        ) from None


def write_kubeconfig(file: Path, url: str, authority: bytes, certificate: Path) -> None:
    """For a node that has its own certificate, by which it comes back without a bootstrap."""
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
    new = file.with_name(f".{file.name}.new")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        new.touch(0o600)
        new.write_text(json.dumps(document, indent=2))
        new.replace(file)
    except OSError as error:
        raise PermissionDenied(
            f"the kubeconfig {file} cannot be written: {error.strerror}.",
            "--kubeconfig names a file that may be written.",
        ) from None


def _access(cluster: At, user: At, file: Path) -> Access:
    folder = file.parent
    named = (
        cluster.get("certificate-authority").text(),
        user.get("client-certificate").text(),
        user.get("client-key").text(),
    )
    files = (file, *(folder / name for name in named if name))
    versions = _versions(files)
    authority = _content(cluster, "certificate-authority", folder)
    trust = _trust(authority, insecure=cluster.get("insecure-skip-tls-verify").flag())
    chain, key = (_content(user, name, folder) for name in ("client-certificate", "client-key"))
    if chain and key:
        _load(trust, chain, key)
    token_file = user.get("tokenFile").text()
    return Access(
        cluster.get("server").required_text().rstrip("/"),
        trust,
        authority,
        user.get("token").text(),
        folder / token_file if token_file else None,
        user.get("exec").value if user.get("exec") else None,
        chain,
        files,
        versions,
    )


def _versions(files: Iterable[Path]) -> Versions:
    return tuple(file_version(file) for file in files)


def file_version(file: Path) -> tuple[int, int] | None:
    """Another where the file was replaced; one that is not there has none."""
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino


def _named(document: At, section: str, name: str) -> At:
    for item in document.get(section).items():
        if item.get("name").text() == name:
            return item
    raise InvalidInput(f'it has no {section.removesuffix("s")} "{name}".')


def _content(at: At, name: str, folder: Path) -> bytes:
    data, path = at.get(f"{name}-data").text(), at.get(name).text()
    try:
        if data:
            return base64.b64decode(data)
        return (folder / path).read_bytes() if path else b""
    except binascii.Error:
        raise InvalidInput(f"{name}-data is not base64.") from None


def _trust(authority: bytes, *, insecure: bool) -> ssl.SSLContext:
    trust = ssl.create_default_context(cadata=authority.decode() if authority else None)
    if insecure:
        trust.check_hostname = False
        trust.verify_mode = ssl.CERT_NONE
    return trust


def _load(trust: ssl.SSLContext, chain: bytes, key: bytes) -> None:
    """OpenSSL takes certificates from files only."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(chain.rstrip() + b"\n" + key)
        file.flush()
        trust.load_cert_chain(file.name)


async def _ask_plugin(plugin: Mapping[str, Any]) -> tuple[str, datetime | None]:
    """A program of the kubeconfig that knows a token, as clouds have one."""
    environment = {item["name"]: item["value"] for item in plugin.get("env") or ()}
    asked: dict[str, Any] = {
        "apiVersion": plugin.get("apiVersion"),
        "kind": "ExecCredential",
        "spec": {},
    }
    command = [str(plugin["command"]), *map(str, plugin.get("args") or ())]
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            env={**os.environ, **environment, "KUBERNETES_EXEC_INFO": json.dumps(asked)},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
        )
        output, _ = await asyncio.wait_for(process.communicate(), _EXEC_SECONDS)
        status = json.loads(output)["status"]
        expires = status.get("expirationTimestamp")
        return str(status["token"]), datetime.fromisoformat(expires) if expires else None
    except (OSError, ValueError, KeyError, TimeoutError) as error:
        raise Unavailable(f"{command[0]} told no token for the API server: {error!r}.") from None
