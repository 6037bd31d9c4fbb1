"""Optional packages of the commands: the extras of pyproject.toml.

`check`, `explain`, `image` and other commands that run no containers need no extra.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from winpod.errors import Unavailable

EXTRAS = {
    "instance": "instances",
    "node": "node",
    "operator": "operator",
    **dict.fromkeys(
        (
            *("attach", "base", "describe", "doctor", "down", "events", "exec", "inspect", "logs"),
            *("play", "port-forward", "ps", "pull", "rm", "run", "runtime", "stats", "stop"),
            "update",
        ),
        "runtime",
    ),
}
"""The extra that a command needs, if any."""

PACKAGES = {
    "asyncssh": "asyncssh",
    "cryptography": "cryptography",
    "google": "protobuf",
    "grpc": "grpcio",
    "isal": "isal",
    "prometheus_client": "prometheus-client",
    "pyregf": "libregf-python",
    "zstandard": "zstandard",
}
"""The packages of the extras by top-level module."""


@contextmanager
def requires_extra(command: str, extra: str) -> Iterator[None]:
    """Raise an error that names the extra if an import in the context fails for lack of it."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = PACKAGES.get((error.name or "").partition(".")[0])
        if package is None:
            raise
        raise Unavailable(
            f"winpod {command} needs packages that are not installed ({package}).",
            f"Install them with: pip install 'winpod[{extra}]'",
        ) from None
