"""Examples of the documentation from examples/: their images, and a run of one."""

import json
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

from tests.support.e2e.command_line import Winpod

_EXAMPLES = Path(__file__).parents[3] / "examples"
_IMAGES = (
    ("legacy:1.0", ("10.0.17763.805",)),
    ("modern:1.0", ("10.0.18362.356",)),
    ("sdk:2.1", ("10.0.17134.1006", "10.0.17763.737", "10.0.18362.356")),
)


def pack_images(winpod: Winpod, line: str) -> Path:
    """Pack the images into a layout, and return it; each prints a line and keeps running."""
    content, layout = winpod.home / "app", winpod.home / "stories"
    content.mkdir()
    (content / "hello.cmd").write_text(f"@{line}\r\n@ping -n 900 127.0.0.1 >nul\r\n")
    for name, builds in _IMAGES:
        options = [word for build in builds for word in ("--os-version", build)]
        image = f"oci:{layout}:registry.example/{name}"
        words = ("image", "pack", str(content), "-t", image, "--cmd", "cmd /c hello.cmd", *options)
        assert winpod(*words).returncode == 0
    return layout


def play(winpod: Winpod, story: int, layout: Path) -> tuple[CompletedProcess[str], dict[str, Any]]:
    """Play an example; return its output and the resulting objects."""
    folder = _EXAMPLES / f"story-{story}"
    files = [str(folder / name) for name in ("nodes.yaml", "classes.yaml", "pods.yaml")]
    ran = winpod("play", *files, "--layout", str(layout))
    return ran, json.loads(winpod("ps", "--pods", "-o", "json").stdout)
