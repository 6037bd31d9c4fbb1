"""Silo without a container: winit with the stand-in agent, for tests without Windows."""

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from winpod.compute.agent.client import (
    AgentClient,
    RegistryChange,
    registry_frames,
    short_socket_path,
)
from winpod.compute.agent.protocol import Frame
from winpod.compute.native import WINIT, native_program, with_agent_socket

STANDIN = Path(__file__).parent / "fake_agent.py"


class StandinSilo:
    def __init__(self, folder: Path, process: subprocess.Popen[bytes]) -> None:
        self.folder = folder
        self.process = process
        self.agent = AgentClient(folder / "run/agent.sock")

    @property
    def memory(self) -> int:
        """Return the peak resident memory of winit in bytes."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024


@contextmanager
def standin_silo(folder: Path) -> Iterator[StandinSilo]:
    (folder / "run").mkdir(parents=True)
    command = [str(native_program(WINIT)), sys.executable, str(STANDIN)]
    placed = with_agent_socket(folder / "run/agent.sock", command)
    process = subprocess.Popen(placed, stdin=subprocess.DEVNULL)
    until_listening(folder / "run/agent.sock")
    try:
        yield StandinSilo(folder, process)
    finally:
        process.kill()
        process.wait()


async def change_registry(agent: AgentClient, changes: Iterable[RegistryChange]) -> None:
    """Send registry changes like wproxy does before it starts a program."""
    with short_socket_path(agent.path) as name:
        reader, writer = await asyncio.open_unix_connection(name)
    writer.write(registry_frames(changes))
    assert await reader.readexactly(5) == b"\0\0\0\0" + bytes([Frame.DONE])
    writer.close()


def until_listening(path: Path) -> None:
    folder = os.open(path.parent, os.O_PATH)
    try:
        for _ in range(12000):
            with socket.socket(socket.AF_UNIX) as probe, contextlib.suppress(OSError):
                probe.connect(f"/proc/self/fd/{folder}/{path.name}")
                return
            time.sleep(0.01)
    finally:
        os.close(folder)
    raise TimeoutError(f"nothing listens on {path}")
