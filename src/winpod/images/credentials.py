"""Who to be at a registry: Docker's config file, its credential helpers, and pull secrets.

Sources are asked in order and the first that knows the registry wins. A key of a source is a host,
with a path to narrow it and `*` for labels of the host, as the kubelet matches them.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import fnmatch
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from winpod.images.home import user_home
from winpod.images.hosts import HUB_HOST
from winpod.images.references import DOCKER_HUB
from winpod.windows.errors import InvalidInput

HELPER_SECONDS = 30.0
_HUB_NAMES = frozenset({DOCKER_HUB, "index.docker.io", HUB_HOST})
_HUB_KEY = "https://index.docker.io/v1/"


@dataclass(frozen=True, slots=True)
class Credential:
    """A name and password, or a token that is exchanged for others. Never shown."""

    username: str = field(default="", repr=False)
    password: str = field(default="", repr=False)
    identity_token: str = field(default="", repr=False)


class CredentialSource(Protocol):
    async def find(self, registry: str, repository: str) -> Credential | None: ...


@dataclass(frozen=True, slots=True)
class Keyring:
    """Credentials by key, read from one file or secret."""

    entries: tuple[tuple[str, Credential], ...]

    async def find(self, registry: str, repository: str) -> Credential | None:
        fitting = [
            (len(path), "*" not in host, credential)
            for key, credential in self.entries
            for host, path in [_split_key(key)]
            if _host_fits(host, registry) and _path_fits(path, repository)
        ]
        return max(fitting, key=lambda one: one[:2])[2] if fitting else None


@dataclass(frozen=True, slots=True)
class DockerConfig:
    """A config.json: its own entries, and the helpers it names."""

    path: Path
    keyring: Keyring
    helpers: Mapping[str, str]
    store: str

    async def find(self, registry: str, repository: str) -> Credential | None:
        if helper := self._helper(registry):
            key = _HUB_KEY if registry in _HUB_NAMES else registry
            if credential := await _ask_helper(helper, key, self.path):
                return credential
        return await self.keyring.find(registry, repository)

    def _helper(self, registry: str) -> str:
        for key, helper in self.helpers.items():
            if _host_fits(_split_key(key)[0], registry):
                return helper
        return self.store


async def find_credential(
    sources: Iterable[CredentialSource], registry: str, repository: str
) -> Credential | None:
    """The first that any source knows, in the order of the sources."""
    for source in sources:
        if credential := await source.find(registry, repository):
            return credential
    return None


def read_docker_config() -> DockerConfig | None:
    """The user's config.json, or None where there is none."""
    directory = os.environ.get("DOCKER_CONFIG")
    path = (Path(directory) if directory else user_home() / ".docker") / "config.json"
    try:
        data = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror}.") from None
    config = _object(data, str(path))
    helpers, store = _known(config, "credHelpers", {}), _known(config, "credsStore", "")
    if not isinstance(helpers, dict) or not isinstance(store, str):
        raise InvalidInput(f'In {path}, "credHelpers" must be an object and "credsStore" text.')
    names = {str(key): str(value) for key, value in helpers.items()}
    return DockerConfig(path, _keyring(_known(config, "auths", {}), str(path)), names, store)


def read_pull_secret(secret: Mapping[str, Any]) -> Keyring:
    """A Kubernetes Secret's registry credentials. One of another type has none."""
    name = f'Secret "{(secret.get("metadata") or {}).get("name", "")}"'
    kind = secret.get("type")
    if kind == "kubernetes.io/dockerconfigjson":
        config = _object(_secret_value(secret, ".dockerconfigjson", name), name)
        return _keyring(_known(config, "auths", {}), name)
    if kind == "kubernetes.io/dockercfg":
        return _keyring(_object(_secret_value(secret, ".dockercfg", name), name), name)
    return Keyring(())


def read_pull_secrets(secrets: Sequence[Mapping[str, Any]]) -> tuple[Keyring, ...]:
    return tuple(map(read_pull_secret, secrets))


def _secret_value(secret: Mapping[str, Any], key: str, name: str) -> bytes:
    plain, encoded = (
        values.get(key) if isinstance(values := secret.get(field), Mapping) else None
        for field in ("stringData", "data")
    )
    if isinstance(plain, str):
        return plain.encode(errors="replace")
    if not isinstance(encoded, str):
        raise InvalidInput(
            f'{name} is of type {secret.get("type")} and has no "{key}".',
            "`kubectl create secret docker-registry` makes such secrets.",
        )
    try:
        return base64.b64decode("".join(encoded.split()), validate=True)
    except (binascii.Error, ValueError):
        raise InvalidInput(f'In {name}, data "{key}" is not base64.') from None


def _object(data: bytes, name: str) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"{name} is not JSON: {error}.") from None
    if not isinstance(value, dict):
        raise InvalidInput(f"{name} is JSON, but not an object.")
    return value


def _known(config: Mapping[str, Any], key: str, default: Any) -> Any:
    return default if config.get(key) is None else config[key]


def _keyring(auths: object, name: str) -> Keyring:
    if not isinstance(auths, dict):
        raise InvalidInput(f'In {name}, "auths" is not an object.')
    read = [(key, _credential(value, key, name)) for key, value in auths.items()]
    return Keyring(tuple((key, credential) for key, credential in read if credential))


def _credential(value: object, key: str, name: str) -> Credential | None:
    if not isinstance(value, dict):
        raise InvalidInput(f'In {name}, the entry "{key}" is not an object.')
    username, password = str(value.get("username") or ""), str(value.get("password") or "")
    if value.get("auth"):
        try:
            text = base64.b64decode(str(value["auth"])).decode()
        except (binascii.Error, ValueError):
            text = ""
        username, colon, password = text.rstrip("\0").partition(":")
        if not colon:
            raise InvalidInput(
                f'In {name}, "auth" of "{key}" is not base64 of USER:PASSWORD.',
                "`docker login` writes it.",
            )
    token = str(value.get("identitytoken") or "")
    if not username and not token:
        return None  # docker leaves an empty entry where a helper has the credential
    return Credential(username, password, token)


def _split_key(key: str) -> tuple[str, str]:
    """Host and path of `https://index.docker.io/v1/`, `host:5000`, `host/team`."""
    host, _, path = re.sub(r"^https?://", "", key).partition("/")
    return host.lower(), re.sub(r"^v[12](?:/|$)", "", path).strip("/")


def _host_fits(pattern: str, registry: str) -> bool:
    registry = registry.lower()
    if registry in _HUB_NAMES:
        return pattern in _HUB_NAMES
    labels, wanted = registry.split("."), pattern.split(".")
    return len(labels) == len(wanted) and all(map(fnmatch.fnmatchcase, labels, wanted))


def _path_fits(path: str, repository: str) -> bool:
    return not path or f"{repository}/".startswith(f"{path}/")


async def _ask_helper(helper: str, key: str, config: Path) -> Credential | None:
    program = f"docker-credential-{helper}"
    if not re.fullmatch(r"[\w.-]+", helper):
        raise InvalidInput(f'{config} names a credential helper "{helper}", which is no name.')
    try:
        process = await asyncio.create_subprocess_exec(
            program,
            "get",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
    except OSError as error:
        raise InvalidInput(
            f"{config} names the credential helper {program}, which cannot be run: "
            f"{error.strerror}.",
            f'Install it, or take "{helper}" out of the file.',
        ) from None
    try:
        async with asyncio.timeout(HELPER_SECONDS):
            output, complaint = await process.communicate(key.encode())
    except TimeoutError:
        raise InvalidInput(
            f"The credential helper {program} did not answer within {HELPER_SECONDS:.0f} s."
        ) from None
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    if process.returncode != 0:
        said = (output or complaint).decode(errors="replace").strip()
        if "not found" in said.lower():
            return None
        raise InvalidInput(f"The credential helper {program} failed for {key}: {said}.")
    answer = _object(output, f"The answer of {program}")
    username, secret = str(answer.get("Username", "")), str(answer.get("Secret", ""))
    if username == "<token>":
        return Credential(identity_token=secret)
    return Credential(username, secret) if username else None
