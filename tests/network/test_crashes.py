"""Killed at any line, winpod leaves nothing in the network after its next start."""

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

import winpod.network
from tests.network.machine import NOTHING, Machine, ping, run
from winpod.network.attachments import PortMapping
from winpod.network.sandboxes import SandboxNetworks

_CODE = str(Path(winpod.network.__file__).parent)
_PURE = ("attachments.py", "configuration.py")  # they change nothing that could be left
_FORK = multiprocessing.get_context("fork")

Step = Callable[[Machine, SandboxNetworks], Coroutine[Any, Any, object]]


async def connect(machine: Machine, networks: SandboxNetworks) -> None:
    await networks.connect(machine.attachment("one"))


async def connect_with_port(machine: Machine, networks: SandboxNetworks) -> None:
    ports = (PortMapping(80, 8080),)
    await networks.connect(machine.attachment("one", port_mappings=ports))


async def disconnect(_: Machine, networks: SandboxNetworks) -> None:
    await networks.disconnect("one")


async def sweep(_: Machine, networks: SandboxNetworks) -> None:
    assert await networks.sweep(()) == []


def die_at_line(number: int) -> None:
    """End this process, all its threads, before the n-th line of the network's code it comes to."""
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
    """Die in the step, each time some lines later, until it comes to its end."""
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
def test_killed_at_any_line_it_leaves_nothing(
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
    """Connect a sandbox, and be killed while a plugin runs that writes `running` when it does."""
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


async def test_a_plugin_that_outlives_winpod_is_waited_for(machine: Machine) -> None:
    running, go, done = (machine.directory / name for name in ("running", "go", "done"))
    held = f"while [ ! -e {go} ]; do sleep 0.05; done"
    slow = f"[ $CNI_COMMAND = ADD ] || exit 0\ntouch {running}\n{held}\ntouch {done}\necho {{}}"
    await asyncio.to_thread(killed_while, machine, slow)
    sweeping = asyncio.create_task(machine.networks().sweep(()))
    assert (await asyncio.wait((sweeping,), timeout=0.5))[1]
    go.touch()
    assert await sweeping == []
    assert done.exists()
    assert machine.leftovers() == NOTHING


async def test_a_plugin_that_outlives_winpod_and_hangs_is_ended(machine: Machine) -> None:
    running = machine.directory / "running"
    hanging = f"[ $CNI_COMMAND = ADD ] || exit 0\necho $$ > {running}\nexec sleep 600"
    await asyncio.to_thread(killed_while, machine, hanging)
    assert await machine.networks(time_limit=1).sweep(()) == []
    assert not is_running(int(running.read_text()))
    assert machine.leftovers() == NOTHING


async def test_what_is_known_is_left_alone(machine: Machine) -> None:
    machine.use_default()
    networks = machine.networks()
    one, _ = [await networks.connect(machine.attachment(name)) for name in ("one", "two")]
    started_again = machine.networks()
    assert await started_again.sweep(["one"]) == []
    assert machine.namespaces.names() == ["one"]
    assert machine.leased() == [one.ip]
    assert ping(networks.netns("one"), "10.250.1.1")
    await started_again.disconnect("one")
    assert machine.leftovers() == NOTHING


async def test_after_a_reboot_only_files_are_left_and_they_go(machine: Machine) -> None:
    machine.configure(machine.bridge(ipMasq=True))
    networks = machine.networks()
    await networks.connect(machine.attachment("one"))
    machine.namespaces.remove("one")
    run("iptables", "--table", "nat", "--flush")
    run("iptables", "--table", "nat", "--delete-chain")
    assert machine.leased()
    assert await machine.networks().sweep(()) == []
    assert machine.leftovers() == NOTHING


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"kind": "cniCacheV1"}'])
async def test_a_cache_entry_without_its_content_still_has_its_name(
    machine: Machine, text: str
) -> None:
    machine.use_default()
    await machine.networks().connect(machine.attachment("one"))
    (machine.cache_dir / "results" / "winpod-one-eth0").write_text(text)
    (machine.cache_dir / ".winpod-two-eth0").touch()
    assert await machine.networks().sweep(()) == []
    assert machine.leftovers() == NOTHING
    assert sorted(path.name for path in machine.cache_dir.iterdir()) == ["lock", "results"]


async def test_a_half_made_namespace_is_not_there_and_goes(machine: Machine) -> None:
    machine.use_default()
    machine.namespaces.directory.mkdir()
    machine.namespaces.path("half").touch()
    assert not machine.namespaces.exists("half")
    assert await machine.networks().sweep(()) == []
    assert machine.leftovers() == NOTHING


async def test_what_cannot_be_swept_is_said_and_kept_for_the_next_time(machine: Machine) -> None:
    machine.configure(machine.bridge(), machine.script("stubborn", 'echo "{}"'))
    await machine.networks().connect(machine.attachment("one"))
    machine.script("stubborn", "echo not today >&2; exit 7")
    (trouble,) = await machine.networks().sweep(())
    assert "stubborn" in trouble
    assert "exit code 7, not today" in trouble
    assert machine.cached() == ["own-one-eth0"]
    machine.script("stubborn", 'echo "{}"')
    assert await machine.networks().sweep(()) == []
    assert machine.leftovers() == NOTHING
