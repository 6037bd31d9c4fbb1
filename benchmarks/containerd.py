"""Debian's containerd in a separate directory, for the duration of a measurement."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

_PLACES = """\
version = 2
root = "{place}/root"
state = "{place}/state"
{first}
[grpc]
address = "{place}/socket"
{rest}
"""
_PULLS_ONLY = (
    'disabled_plugins = ["io.containerd.grpc.v1.cri", "io.containerd.internal.v1.opt"]',
    "",
)
_CRI = (
    'disabled_plugins = ["io.containerd.internal.v1.opt"]',
    """\
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{pause}"
restrict_oom_score_adj = true
stream_server_port = "0"
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "/usr/lib/cni"
conf_dir = "{cni}"
""",
)


@contextmanager
def containerd(place: Path, environment: Mapping[str, str] | None = None) -> Iterator[Path]:
    """Run a containerd that stores and unpacks images; yield its socket."""
    with _running(place, *_PULLS_ONLY, environment=environment) as socket:
        yield socket


@contextmanager
def cri_containerd(place: Path, pause: str, cni: Path) -> Iterator[Path]:
    """Run a containerd with CRI and this pause image; yield its socket."""
    first, rest = _CRI
    with _running(place, first, rest.format(pause=pause, cni=cni)) as socket:
        yield socket


@contextmanager
def _running(
    place: Path, first: str, rest: str, environment: Mapping[str, str] | None = None
) -> Iterator[Path]:
    config, log = place / "config.toml", place / "log"
    config.write_text(_PLACES.format(place=place, first=first, rest=rest))
    with log.open("wb") as output:
        process = subprocess.Popen(
            ["containerd", "--config", str(config)],
            stdout=output,
            stderr=output,
            env={**os.environ, **(environment or {})},
        )
        try:
            deadline = time.monotonic() + 30
            while not (place / "socket").exists():
                if process.poll() is not None or time.monotonic() > deadline:
                    sys.exit(f"containerd did not start:\n{log.read_text()}")
                time.sleep(0.05)
            yield place / "socket"
        finally:
            process.terminate()
            process.wait()
