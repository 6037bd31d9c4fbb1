"""Network cleanup at the next start after winpod was killed at any line."""

import asyncio
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import winpod.files
import winpod.network
import winpod.subprocesses
from tests.support.network_machine import NOTHING, Machine, ping, run
from winpod.network.attachments import PortMapping
from winpod.network.sandbox_network import CniSandboxNetwork

_CODE = (
    str(Path(winpod.network.__file__).parent),
    winpod.files.__file__,
    winpod.subprocesses.__file__,
)
_PURE = ("attachments.py", "cni_config.py")  # they change nothing that could be left
_FORK = multiprocessing.get_context("fork")

Step = Callable[[Machine, CniSandboxNetwork], Coroutine[Any, Any, object]]


async def connect(machine: Machine, networks: CniSandboxNetwork) -> None:
    await networks.connect(machine.attachment("one"))


async def connect_with_port(machine: Machine, networks: CniSandboxNetwork) -> None:
    ports = (PortMapping(80, 8080),)
    await networks.connect(machine.attachment("one", port_mappings=ports))


async def disconnect(_: Machine, networks: CniSandboxNetwork) -> None:
    await networks.disconnect("one")


async def sweep(_: Machine, networks: CniSandboxNetwork) -> None:
    assert await networks.remove_unknown(()) == []


def die_at_line(number: int) -> None:
    """Kill this process before it executes the n-th line of the network package."""
    lines: set[tuple[str, int]] = set()

    def trace(frame: FrameType, event: str, _: object) -> object:
        file = frame.f_code.co_filename
        if not file.startswith(_CODE) or file.endswith(_PURE):
            return None
        if event == "line":
            lines.add((file, frame.f_lineno))
        if len(lines) == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return trace

    threading.settrace(trace)  # type: ignore[arg-type]
    sys.settrace(trace)  # type: ignore[arg-type]


def _take_steps(machine: Machine, before: Step | None, step: Step, number: int) -> None:
    async def steps() -> None:
        networks = machine.networks()
        if before:
            await before(machine, networks)
        die_at_line(number)
        await step(machine, networks)

    asyncio.run(steps())


def deaths(machine: Machine, before: Step | None, step: Step, every: int) -> Iterator[int]:
    """Kill the step some lines later each time, until it completes."""
    for number in range(1, 2000, every):
        process = _FORK.Process(target=_take_steps, args=(machine, before, step, number))
        process.start()
        process.join()
        yield number
        if process.exitcode == 0:
            return
        assert process.exitcode == -signal.SIGKILL
    pytest.fail("The step never came to its end.")


STEPS = [  # what was done before, what is killed, at every how manieth line
    pytest.param(None, connect, 1, id="connect"),
    pytest.param(connect, disconnect, 1, id="disconnect"),
    pytest.param(connect, sweep, 3, id="sweep"),
    pytest.param(None, connect_with_port, 10, id="connect with a port"),
    pytest.param(connect_with_port, disconnect, 10, id="disconnect with a port"),
]


@pytest.mark.parametrize(("before", "step", "every"), STEPS)
def test_kill_at_any_line_leaves_nothing_after_restart(
    machine: Machine, before: Step | None, step: Step, every: int
) -> None:
    if connect_with_port in (before, step):
        portmap = {"type": "portmap", "capabilities": {"portMappings": True}}
        machine.configure(machine.bridge(ipMasq=True), portmap)
    else:
        machine.use_default()
    for number in deaths(machine, before, step, every):
        asyncio.run(sweep(machine, machine.networks()))
        assert machine.leftovers() == NOTHING, f"killed at line {number}"
    assert number > 50


def _connect_until_killed(machine: Machine) -> None:
    asyncio.run(connect(machine, machine.networks()))


def killed_while(machine: Machine, plugin: str) -> None:
    """Connect a sandbox, and kill winpod while the plugin runs, after it wrote `running`."""
    machine.configure(machine.bridge(), machine.script("slow", plugin))
    process = _FORK.Process(target=_connect_until_killed, args=(machine,))
    process.start()
    while not (machine.directory / "running").exists():
        time.sleep(0.01)
    process.kill()
    process.join()


def is_running(pid: int) -> bool:
    try:
        return ") Z" not in Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False


async def test_orphaned_plugin_is_waited_for(machine: Machine) -> None:
    running, go, done = (machine.directory / name for name in ("running", "go", "done"))
    held = f"while [ ! -e {go} ]; do sleep 0.05; done"
    slow = f"[ $CNI_COMMAND = ADD ] || exit 0\ntouch {running}\n{held}\ntouch {done}\necho {{}}"
    await asyncio.to_thread(killed_while, machine, slow)
    sweeping = asyncio.create_task(machine.networks().remove_unknown(()))
    assert (await asyncio.wait((sweeping,), timeout=0.5))[1]
    go.touch()
    assert await sweeping == []
    assert done.exists()
    assert machine.leftovers() == NOTHING


async def test_hung_orphaned_plugin_is_killed(machine: Machine) -> None:
    running = machine.directory / "running"
    hanging = f"[ $CNI_COMMAND = ADD ] || exit 0\necho $$ > {running}\nexec sleep 600"
    await asyncio.to_thread(killed_while, machine, hanging)
    assert await machine.networks(time_limit=1).remove_unknown(()) == []
    assert not is_running(int(running.read_text()))
    assert machine.leftovers() == NOTHING


async def test_known_sandboxes_are_kept(machine: Machine) -> None:
    machine.use_default()
    networks = machine.networks()
    one, _ = [await networks.connect(machine.attachment(name)) for name in ("one", "two")]
    started_again = machine.networks()
    assert await started_again.remove_unknown(["one"]) == []
    assert machine.namespaces.names() == ["one"]
    assert machine.leased() == [one.ip]
    assert ping(networks.netns("one"), "10.250.1.1")
    await started_again.disconnect("one")
    assert machine.leftovers() == NOTHING


async def test_files_left_by_a_reboot_are_removed(machine: Machine) -> None:
    machine.configure(machine.bridge(ipMasq=True))
    networks = machine.networks()
    await networks.connect(machine.attachment("one"))
    machine.namespaces.remove("one")
    run("iptables", "--table", "nat", "--flush")
    run("iptables", "--table", "nat", "--delete-chain")
    assert machine.leased()
    assert await machine.networks().remove_unknown(()) == []
    assert machine.leftovers() == NOTHING


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"kind": "cniCacheV1"}'])
async def test_empty_cache_entry_is_removed_by_its_file_name(machine: Machine, text: str) -> None:
    machine.use_default()
    await machine.networks().connect(machine.attachment("one"))
    (machine.cache_dir / "results" / "winpod-one-eth0").write_text(text)
    (machine.cache_dir / ".winpod-two-eth0").touch()
    assert await machine.networks().remove_unknown(()) == []
    assert machine.leftovers() == NOTHING
    assert sorted(path.name for path in machine.cache_dir.iterdir()) == ["lock", "results"]


async def test_incomplete_namespace_is_removed(machine: Machine) -> None:
    machine.use_default()
    machine.namespaces.directory.mkdir()
    machine.namespaces.path("half").touch()
    assert not machine.namespaces.exists("half")
    assert await machine.networks().remove_unknown(()) == []
    assert machine.leftovers() == NOTHING


async def test_failed_cleanup_is_reported_and_retried_at_next_start(machine: Machine) -> None:
    machine.configure(machine.bridge(), machine.script("stubborn", 'echo "{}"'))
    await machine.networks().connect(machine.attachment("one"))
    machine.script("stubborn", "echo not today >&2; exit 7")
    (trouble,) = await machine.networks().remove_unknown(())
    assert "stubborn" in trouble
    assert "exit code 7, not today" in trouble
    assert machine.cached() == ["own-one-eth0"]
    machine.script("stubborn", 'echo "{}"')
    assert await machine.networks().remove_unknown(()) == []
    assert machine.leftovers() == NOTHING
