"""`winpod runtime`, forked by a process that has imported its code, with crash points.

Each line of the input starts one: its arguments and its environment, as JSON; the response is its
process id. A number sent to the socket in WINPOD_DIE makes it kill itself at that effect from then
on: a file created or half written, a name moved or removed, a transaction, a mount, a process
started or killed, a message to an agent or to QEMU. The names of all cgroups are written to
WINPOD_IDS before they are created.
"""

import asyncio
import ctypes
import json
import os
import signal
import socket
import sqlite3
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import winpod.cli.runtime
from winpod.cli.main import main
from winpod.compute import idmapped_mounts
from winpod.network import netns

_MOVES = ("os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.symlink", "os.chown", "os.kill")
_WHILE_IT_RUNS = 0.02
_READ_AHEAD = winpod.cli.runtime  # the CLI imports it lazily


class Effects:
    """Count effects, and kill the process at the chosen one."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._left: int | None = None
        self.counted = 0

    def choose(self, number: int) -> None:
        self.counted, self._left = 0, number

    def step(self, later: float = 0) -> None:
        if self._left is None:
            return
        self.counted += 1
        self._left -= 1
        if self._left == 0 and later:
            threading.Timer(later, die).start()
        elif self._left == 0:
            die()

    def audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "subprocess.Popen":
            self.step()
            self.step(_WHILE_IT_RUNS)
        writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & os.O_CREAT
        if (writes or event in _MOVES) and (
            event == "os.kill" or self._root in os.fsdecode(str(arguments[0]))
        ):
            self.step()

    def statement(self, text: str) -> None:
        if text.startswith(("BEGIN IMMEDIATE", "COMMIT")):
            self.step()

    def watch(self) -> None:
        connect = sqlite3.connect

        def traced(*arguments: Any, **options: Any) -> sqlite3.Connection:
            database: sqlite3.Connection = connect(*arguments, **options)
            database.set_trace_callback(self.statement)
            return database

        sqlite3.connect = traced  # type: ignore[assignment]
        for module, name in (
            (idmapped_mounts, "_check"),
            (netns, "_check_result"),
            (netns, "_unmount"),
        ):
            setattr(module, name, self._followed(getattr(module, name)))
        Path.write_text = self._torn(Path.write_text)  # type: ignore[method-assign]
        Path.write_bytes = self._torn(Path.write_bytes)  # type: ignore[method-assign]
        writer = asyncio.StreamWriter
        writer.write = self._followed(writer.write)  # type: ignore[method-assign]
        loop = asyncio.SelectorEventLoop
        loop.sock_sendall = self._preceded(loop.sock_sendall)  # type: ignore[method-assign]
        sys.addaudithook(self.audit)

    def _followed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def followed(*arguments: Any) -> Any:
            result = function(*arguments)
            number = ctypes.get_errno()
            self.step()
            ctypes.set_errno(number)
            return result

        return followed

    def _preceded(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def preceded(*arguments: Any) -> Any:
            self.step()
            return function(*arguments)

        return preceded

    def _torn(self, write: Callable[..., int]) -> Callable[..., int]:
        """Wrap a write so that it can be interrupted while its new file is empty."""

        def torn(path: Path, *arguments: Any, **options: Any) -> int:
            if path.name == "id":
                note(f"{arguments[0]}")
            elif path.parent.parent.name == "sandboxes":
                note(f"vm-{path.parent.name}")
            if self._left is not None and self._root in str(path):
                path.open("a" if path.exists() else "w").close()
            return write(path, *arguments, **options)

        return torn


def note(group: str) -> None:
    with Path(os.environ["WINPOD_IDS"]).open("a") as known:
        known.write(f"{group}\n")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def listening(path: str) -> socket.socket:
    Path(path).unlink(missing_ok=True)
    server = socket.socket(socket.AF_UNIX)
    server.bind(path)
    server.listen()
    return server


def answer(server: socket.socket, effects: Effects) -> None:
    while True:
        asking, _ = server.accept()
        with asking:
            if number := int(asking.recv(100)):
                effects.choose(number)
            asking.send(str(effects.counted).encode())


def run(arguments: list[str], environment: dict[str, str]) -> None:
    os.environ |= environment
    sys.argv = ["winpod", *arguments]
    log = os.open(environment["WINPOD_LOG"], os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for standard in (1, 2):
        os.dup2(log, standard)
    effects = Effects(environment["WINPOD_ROOT"])
    effects.watch()
    if at := environment.get("WINPOD_DIE_AT"):
        effects.choose(int(at))
    server = listening(environment["WINPOD_DIE"])
    threading.Thread(target=answer, args=(server, effects), daemon=True).start()
    main()


if __name__ == "__main__":
    for line in sys.stdin:
        wanted = json.loads(line)
        if pid := os.fork():
            print(pid, flush=True)
            os.waitpid(pid, 0)
            print("ended", flush=True)
            continue
        run(wanted["arguments"], wanted["environment"])
        os._exit(0)
