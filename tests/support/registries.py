"""Registries for tests: Debian's docker-registry, and stand-ins for faulty ones."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import shutil
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import yaml
from aiohttp import web

from winpod.images.manifests import ImageBundle

USER, PASSWORD = "alice", "correct horse"


@pytest.fixture(autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Set a separate home for every test, so that no files of the user are read or written."""
    path = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("HOME", str(path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(path / ".cache"))
    monkeypatch.setenv("WINPOD_HOSTS_DIR", str(path / "certs.d"))
    for name in ("DOCKER_CONFIG", "SOURCE_DATE_EPOCH", "http_proxy", "https_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    return path


def write_hosts(home: Path, registry: str, text: str) -> None:
    directory = home / "certs.d" / registry
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "hosts.toml").write_text(text)


def auths(registry: str, user: str = USER, password: str = PASSWORD) -> dict[str, Any]:
    pair = base64.b64encode(f"{user}:{password}".encode()).decode()
    return {"auths": {registry: {"auth": pair}}}


def log_in(home: Path, config: Mapping[str, Any]) -> None:
    (home / ".docker").mkdir(exist_ok=True)
    (home / ".docker" / "config.json").write_text(json.dumps(config))


def program(name: str, package: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.fail(f"{name} is missing: apt-get install -y {package}", pytrace=False)
    return found


@contextmanager
def docker_registry(
    directory: Path, *, inside: Sequence[str] = (), **settings: Any
) -> Iterator[str]:
    """Run a real registry on a free loopback port; yield HOST:PORT. `inside` enters a network."""
    http = {"addr": "127.0.0.1:0", "secret": "s", **settings.pop("http", {})}
    config = {
        "version": 0.1,
        "storage": {"filesystem": {"rootdirectory": str(directory / "storage")}},
        "http": http,
        **settings,
    }
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.yml").write_text(yaml.safe_dump(config))
    command = [
        program("docker-registry", "docker-registry"),
        "serve",
        str(directory / "config.yml"),
    ]
    guard = [program("setpriv", "util-linux"), "--pdeathsig", "KILL", "--"]
    log = directory / "log"
    with log.open("wb") as output:
        process = subprocess.Popen([*guard, *inside, *command], stdout=output, stderr=output)
    try:
        yield _address(process, log)
    finally:
        process.terminate()
        process.wait()


def _address(process: subprocess.Popen[bytes], log: Path) -> str:
    while True:
        ended = process.poll() is not None
        if found := re.search(r"listening on ([^ ,\"]+)", log.read_text()):
            return found[1]
        if ended:
            pytest.fail(f"docker-registry did not start:\n{log.read_text()}", pytrace=False)
        time.sleep(0.02)


@pytest.fixture(scope="session")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """HOST:PORT of a registry without authentication."""
    with docker_registry(tmp_path_factory.mktemp("registry")) as address:
        yield address


@pytest.fixture(scope="session")
def basic_registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """HOST:PORT of a registry that requires USER and PASSWORD."""
    directory = tmp_path_factory.mktemp("basic")
    htpasswd = program("htpasswd", "apache2-utils")
    line = subprocess.run(
        [htpasswd, "-Bbn", USER, PASSWORD], check=True, capture_output=True, text=True
    ).stdout
    (directory / "htpasswd").write_text(line)
    auth = {"htpasswd": {"realm": "test", "path": str(directory / "htpasswd")}}
    with docker_registry(directory, auth=auth) as address:
        yield address


def make_certificate(directory: Path) -> tuple[Path, Path]:
    """Create a self-signed certificate for 127.0.0.1, and its key."""
    certificate, key = directory / "cert.pem", directory / "key.pem"
    arguments = f"req -x509 -newkey rsa:2048 -nodes -keyout {key} -out {certificate} -days 2"
    arguments += " -subj /CN=test -addext subjectAltName=IP:127.0.0.1"
    command = [program("openssl", "openssl"), *arguments.split()]
    subprocess.run(command, check=True, capture_output=True)
    return certificate, key


@pytest.fixture(scope="session")
def tls_registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """HOST:PORT of a registry with an untrusted certificate, and the certificate."""
    directory = tmp_path_factory.mktemp("tls")
    certificate, key = make_certificate(directory)
    tls = {"certificate": str(certificate), "key": str(key)}
    with docker_registry(directory, http={"tls": tls}) as address:
        yield address, certificate


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def serve(handler: Handler) -> AsyncIterator[str]:
    """Run an HTTP server during a test; yield HOST:PORT."""

    async def handle(request: web.Request) -> web.StreamResponse:
        return await handler(request)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        yield f"{host}:{port}"
    finally:
        await runner.cleanup()


class StandIn:
    """Stand-in for a registry: serves one image under every name, and can inject faults.

    `before` is called with each request; if it returns a response, that is sent.
    """

    def __init__(
        self,
        image: ImageBundle,
        before: Callable[[web.Request], Awaitable[web.StreamResponse | None]] | None = None,
    ) -> None:
        self.image = image
        self.before = before
        self.requests: list[web.Request] = []

    def count(self, method: str, part: str = "") -> int:
        return sum(r.method == method and part in r.path for r in self.requests)

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(request)
        if self.before and (answer := await self.before(request)):
            return answer
        target = request.path.rpartition("/")[2]
        for descriptor, content in (*self.image.blobs, *self.image.manifests):
            is_root = descriptor is self.image.root
            if target == descriptor.digest or (is_root and not target.startswith("sha256:")):
                assert isinstance(content, bytes)
                headers = {
                    "Docker-Content-Digest": descriptor.digest,
                    "Content-Type": descriptor.media_type,
                }
                return web.Response(body=content, headers=headers)
        return web.json_response({"errors": [{"code": "MANIFEST_UNKNOWN"}]}, status=404)


class TokenServer:
    """Stand-in for a token server: signs tokens that a real docker-registry accepts."""

    SERVICE, ISSUER, REFRESH = "registry.test", "issuer.test", "refresh-me"

    def __init__(self, certificate: Path, key: Path) -> None:
        self._certificate = certificate
        self._key = key
        self.requested_scopes: list[tuple[str, str]] = []

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        fields = await request.post() if request.method == "POST" else request.query
        scopes = [one for text in fields.getall("scope", []) for one in str(text).split()]
        known = "anonymous"
        if request.headers.get("Authorization"):
            pair = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
            if request.headers["Authorization"] != f"Basic {pair}":
                return web.json_response({"details": "incorrect"}, status=401)
            known = "password"
        if request.method == "POST":
            if fields.get("refresh_token") != self.REFRESH:
                return web.json_response({"details": "incorrect"}, status=401)
            known = "refresh"
        self.requested_scopes += [(known, scope) for scope in scopes]
        token = await self._token([] if known == "anonymous" else scopes)
        return web.json_response({"access_token" if known == "refresh" else "token": token})

    async def _token(self, scopes: list[str]) -> str:
        der = "".join(self._certificate.read_text().split("-----")[2].split())
        now = int(time.time())
        access = [
            {"type": kind, "name": name, "actions": actions.split(",")}
            for kind, name, actions in (scope.split(":") for scope in scopes)
        ]
        claims = {
            "iss": self.ISSUER,
            "aud": self.SERVICE,
            "sub": USER,
            "exp": now + 300,
            "nbf": now - 10,
            "iat": now,
            "jti": uuid4().hex,
            "access": access,
        }
        header = {"typ": "JWT", "alg": "RS256", "x5c": [der]}
        signed = ".".join(_encoded(json.dumps(part).encode()) for part in (header, claims))
        process = await asyncio.create_subprocess_exec(
            *(program("openssl", "openssl"), "dgst", "-sha256", "-sign", str(self._key)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        signature, _ = await process.communicate(signed.encode())
        return f"{signed}.{_encoded(signature)}"


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


@pytest.fixture
async def token_registry(tmp_path: Path) -> AsyncIterator[tuple[str, TokenServer]]:
    """HOST:PORT of a real registry that requires tokens, and its token server."""
    certificate, key = make_certificate(tmp_path)
    server = TokenServer(certificate, key)
    async with serve(server) as realm:
        token = {
            "realm": f"http://{realm}/token",
            "service": server.SERVICE,
            "issuer": server.ISSUER,
            "rootcertbundle": str(certificate),
        }
        with docker_registry(tmp_path / "registry", auth={"token": token}) as address:
            yield address, server
