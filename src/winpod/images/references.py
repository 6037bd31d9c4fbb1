"""Image references, with the grammar of the distribution project.

`parse_reference` accepts short forms (`nginx`, `user/app:1`, `localhost:5000/x@sha256:…`) and
returns the full name. `str(reference)` is canonical and parses back to an equal reference.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from functools import lru_cache

from winpod.errors import InvalidInput

DOCKER_HUB = "docker.io"
DEFAULT_TAG = "latest"
MAX_NAME = 255
MAX_TAG = 128

_LABEL = r"[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?"
_REGISTRY = re.compile(rf"(?:{_LABEL}(?:\.{_LABEL})*|\[[a-fA-F0-9:]+\])(?::[0-9]+)?")
_COMPONENT = re.compile(r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*")
_TAG = re.compile(r"[a-zA-Z0-9_][a-zA-Z0-9_.-]{0,127}")
_DIGEST_LENGTHS = {"sha256": 64, "sha384": 96, "sha512": 128}
_IMAGE_ID = re.compile(r"[a-f0-9]{64}")


@dataclass(frozen=True, slots=True)
class Reference:
    """A full image name with a tag, a digest, or both."""

    registry: str
    repository: str
    tag: str = ""
    digest: str = ""

    def __str__(self) -> str:
        return f"{self.registry}/{self.repository}{self._suffix}"

    @property
    def familiar(self) -> str:
        """The name as Docker shortens it: `nginx:latest`, `user/app:1`."""
        short = self.repository.removeprefix("library/")
        if _split_registry(short) != (self.registry, self.repository):
            return str(self)
        return short + self._suffix

    @property
    def _suffix(self) -> str:
        tag = f":{self.tag}" if self.tag else ""
        return f"{tag}@{self.digest}" if self.digest else tag


@lru_cache(maxsize=8192)
def parse_reference(text: str) -> Reference:
    """Parse an image name, or raise `InvalidInput` with the expected form."""
    if not text or text.strip() != text:
        raise _invalid(text, "it is empty or has spaces around it", "Write NAME[:TAG][@DIGEST].")
    if "://" in text:
        raise _invalid(text, "it is a URL", f"Write {text.partition('://')[2] or 'NAME:TAG'}.")
    rest, at, digest = text.partition("@")
    if at:
        _check_digest(digest, text)
    name, tag = _split_tag(rest)
    if tag is not None and not _TAG.fullmatch(tag):
        raise _invalid(
            text,
            f'"{tag}" is not a tag',
            f"A tag has 1 to {MAX_TAG} letters, digits, dots, dashes and underscores, and does "
            "not start with a dot or dash.",
        )
    registry, repository = _split_registry(name)
    _check_name(text, registry, repository)
    if tag is None:
        tag = "" if digest else DEFAULT_TAG
    return Reference(registry, repository, tag, digest)


def _check_digest(digest: str, text: str) -> None:
    """Raise InvalidInput unless the digest has a supported algorithm and length."""
    algorithm, _, value = digest.partition(":")
    length = _DIGEST_LENGTHS.get(algorithm)
    if length is None or not re.fullmatch(rf"[a-f0-9]{{{length}}}", value):
        raise _invalid(
            text,
            f'"{digest}" is not a digest',
            "Write sha256: and 64 lowercase hexadecimal digits.",
        )


def _split_tag(rest: str) -> tuple[str, str | None]:
    name, colon, tag = rest.rpartition(":")
    return (name, tag) if colon and "/" not in tag else (rest, None)


def _split_registry(name: str) -> tuple[str, str]:
    first, slash, rest = name.partition("/")
    is_host = bool(slash) and (
        "." in first or ":" in first or first == "localhost" or first.lower() != first
    )
    registry, repository = (first, rest) if is_host else (DOCKER_HUB, name)
    if registry == "index.docker.io":
        registry = DOCKER_HUB
    if registry == DOCKER_HUB and "/" not in repository:
        repository = f"library/{repository}"
    return registry, repository


def _check_name(text: str, registry: str, repository: str) -> None:
    if not _REGISTRY.fullmatch(registry) or not _is_address(registry):
        raise _invalid(text, f'"{registry}" is not a registry host', "Write HOST[:PORT]/NAME.")
    if _IMAGE_ID.fullmatch(repository.removeprefix("library/")):
        raise _invalid(text, "64 hexadecimal digits are an image id", "Write a name.")
    if repository.lower() != repository:
        raise _invalid(
            text, "a repository name must be lowercase", f"Write {repository.lower()}, perhaps."
        )
    for component in repository.split("/"):
        if not _COMPONENT.fullmatch(component):
            raise _invalid(
                text,
                f'"{component}" cannot be part of a repository name'
                if component
                else "a part of the repository name is empty",
                "Components between slashes are lowercase letters and digits, separated by one "
                "dot, one or two underscores, or dashes.",
            )
    if len(registry) + 1 + len(repository) > MAX_NAME:
        raise _invalid(text, f"it is longer than {MAX_NAME} characters", "Write a shorter name.")


def _is_address(registry: str) -> bool:
    """Return whether brackets, if any, contain an IPv6 address."""
    if not registry.startswith("["):
        return True
    try:
        ipaddress.IPv6Address(registry[1 : registry.index("]")])
    except ValueError:
        return False
    return True


def _invalid(text: str, reason: str, advice: str) -> InvalidInput:
    shown = text if len(text) <= 300 else text[:300] + "…"
    return InvalidInput(f'failed to parse image reference "{shown}": {reason}.', advice)
