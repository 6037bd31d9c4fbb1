"""Processes that are killed before each change of the store in turn."""

import multiprocessing
import os
import signal
import sqlite3
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from winpod.images.pull import source

_FORK = multiprocessing.get_context("fork")


def killed_at_every_change(directory: Path, act: Callable[[Path], None]) -> Iterator[Path]:
    """Run a function on new paths, each killed one change later; yield each path.

    The last one is the path of the run that completed.
    """
    for number in range(1, 1000):
        root = directory / str(number)
        process = _FORK.Process(target=_die_at_change, args=(number, root, act))
        process.start()
        process.join()
        yield root
        if process.exitcode == 0:
            return
        assert process.exitcode == -signal.SIGKILL
    raise AssertionError("the function never completed")


def _die_at_change(number: int, root: Path, act: Callable[[Path], None]) -> None:
    """Kill this process before its nth change of the store: a file, a name, a transaction."""
    changes = 0

    def step(*_: object) -> None:
        nonlocal changes
        changes += 1
        if changes == number:
            os.kill(os.getpid(), signal.SIGKILL)

    def audit(event: str, arguments: tuple[Any, ...]) -> None:
        writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & os.O_CREAT
        moves = event in ("os.rename", "os.mkdir", "os.remove", "os.rmdir")
        if (writes or moves) and str(arguments[0]).startswith(str(root)):
            step()

    def statement(text: str) -> None:
        if text.startswith(("BEGIN IMMEDIATE", "COMMIT", "PRAGMA journal", "PRAGMA user")):
            step()

    connect, write = sqlite3.connect, source._write_all

    def traced(*arguments: Any, **options: Any) -> sqlite3.Connection:
        database: sqlite3.Connection = connect(*arguments, **options)
        database.set_trace_callback(statement)
        return database

    def counted(file: int, data: bytes) -> None:
        step()
        write(file, data)

    sqlite3.connect = traced  # type: ignore[assignment]
    source._write_all = counted
    sys.addaudithook(audit)
    act(root)
