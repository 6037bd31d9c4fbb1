"""Runs of `winpod play` against a server in the same process."""

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.winpod_cli import Ran, winpod

Run = Callable[..., Ran]
APP = """\
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db, namespace: shop}
spec:
  replicas: 2
  selector: {matchLabels: {app: db}}
  template:
    metadata: {labels: {app: db}}
    spec:
      terminationGracePeriodSeconds: 0
      containers:
        - {name: main, image: registry.example/hello:1}
        - {name: beside, image: registry.example/hello:1, command: [look, out]}
---
apiVersion: v1
kind: Service
metadata: {name: db, namespace: shop}
spec:
  selector: {app: db}
  ports: [{port: 5432}]
"""


@pytest.fixture
def home() -> Iterator[Path]:
    """Return a home with a path short enough for Unix sockets."""
    with tempfile.TemporaryDirectory(prefix="play-", ignore_cleanup_errors=True) as directory:
        home = Path(directory)
        (home / ".config/winpod").mkdir(parents=True)
        settings = f'root = "{home}/root"\n[runtime]\ncompute = "simulated"\n'
        (home / ".config/winpod/config.toml").write_text(settings)
        (home / "content").mkdir()
        (home / "app.yaml").write_text(APP)
        image = f"oci:{home}/images:registry.example/hello:1"
        options = ("--os-version", "2022", "--cmd", "serve")
        packed = winpod("image", "pack", f"{home}/content", "-t", image, *options, home=home)
        assert packed.code == 0, packed.err
        yield home
        winpod("down", "--volumes", home=home)


@pytest.fixture
def run(home: Path) -> Run:
    return lambda *arguments: winpod(*arguments, home=home)
