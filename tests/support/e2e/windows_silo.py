"""Silo for tests: winit and wagent.exe in a base, in runc, with limits."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.e2e.windows_container import container
from tests.support.silos import until_listening
from winpod.compute.agent.client import AgentClient
from winpod.compute.native import WAGENT, WINIT, native_program, with_agent_socket
from winpod.images.base.build_container import ENVIRONMENT, build_container_spec
from winpod.images.base.builder import Base
from winpod.windows.builds import parse_build

PROCESSES = 512
PLACE = "/run/winpod"


class Shell:
    def __init__(self, folder: Path, process: subprocess.Popen[bytes]) -> None:
        self.folder = folder
        self.process = process
        self.agent = AgentClient(folder / "run/agent.sock")
        self.drive = folder / "prefix/drive_c"

    def runc(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = ["runc", "--root", str(self.folder / "state"), *words]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    def mounts(self) -> str:
        return Path(f"/proc/{self.pids()[0]}/mountinfo").read_text()

    def pids(self) -> list[int]:
        """Return the ids of the container's processes on the host."""
        found: list[int] = json.loads(self.runc("ps", "-f", "json", self.name).stdout)
        return found

    @property
    def name(self) -> str:
        return f"winpod-shell-{self.folder.parent.name}-{self.folder.name}"


@contextmanager
def windows_shell(base: Base, layer: Path, folder: Path) -> Iterator[Shell]:
    with container(base, parse_build("10.0.20348"), [layer], folder):
        (folder / "run").mkdir()
        shell = Shell(folder, _start(base, folder))
        try:
            until_listening(shell.agent.path)
            yield shell
        finally:
            shell.runc("delete", "--force", shell.name)
            shell.process.wait(300)


def _start(base: Base, folder: Path) -> subprocess.Popen[bytes]:
    name = f"winpod-shell-{folder.parent.name}-{folder.name}"
    command = [f"{PLACE}/{WINIT}", "/usr/lib/wine/wine64", f"{PLACE}/{WAGENT}"]
    spec = build_container_spec(base.rootfs, folder / "prefix", command, name, ENVIRONMENT)
    spec["linux"]["resources"]["pids"]["limit"] = PROCESSES
    spec["mounts"] += [
        {"destination": "/run", "type": "tmpfs", "source": "tmpfs", "options": ["size=1m"]},
        *(_bound(name) for name in (WINIT, WAGENT)),
    ]
    (folder / "config.json").write_text(json.dumps(spec))
    run = ["runc", "--root", str(folder / "state"), "run", "--preserve-fds", "1"]
    run += ["--bundle", str(folder), name]
    placed = with_agent_socket(folder / "run/agent.sock", run)
    return subprocess.Popen(placed, stdin=subprocess.DEVNULL)


def _bound(name: str) -> dict[str, Any]:
    return {
        "destination": f"{PLACE}/{name}",
        "type": "bind",
        "source": str(native_program(name)),
        "options": ["bind", "ro", "nosuid", "nodev"],
    }
