"""Machines of a cluster, each a network namespace, connected by one bridge.

The network of the real machine is not touched; everything is removed when the context is left.
"""

import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from winpod.network.netns import NetworkNamespaces, run_in_netns

SUBNET = "10.88.0"
BRIDGE = "cluster"

_T = TypeVar("_T")


@dataclass(frozen=True)
class Machine:
    """Machine with its address on the bridge."""

    name: str
    network: Path
    address: str

    @property
    def entering(self) -> tuple[str, ...]:
        """Return the command prefix that runs a command on this machine."""
        return ("nsenter", f"--net={self.network}")

    def run(self, *command: str) -> str:
        done = subprocess.run([*self.entering, *command], capture_output=True, text=True)
        assert done.returncode == 0, f"{' '.join(command)} on {self.name}: {done.stderr}"
        return done.stdout

    def call(self, function: Callable[[], _T]) -> _T:
        return run_in_netns(self.network, function)

    def reach(self, subnet: str, through: "Machine") -> None:
        self.run("ip", "route", "replace", subnet, "via", through.address)


@contextmanager
def machines(directory: Path, *names: str) -> Iterator[dict[str, Machine]]:
    """Create machines; the first has the bridge and is the default gateway of the others."""
    namespaces = NetworkNamespaces(directory)
    try:
        made = {
            name: Machine(name, namespaces.create(name), f"{SUBNET}.{number}")
            for number, name in enumerate(names, 1)
        }
        first, *others = made.values()
        first.run("ip", "link", "add", BRIDGE, "type", "bridge")
        first.run("ip", "address", "add", f"{first.address}/24", "dev", BRIDGE)
        first.run("ip", "link", "set", BRIDGE, "up")
        for machine in others:
            _plug_in(first, machine)
        yield made
    finally:
        for name in namespaces.names():
            namespaces.remove(name)


def _plug_in(first: Machine, machine: Machine) -> None:
    port = f"to-{machine.address.rpartition('.')[2]}"
    other = ("peer", "name", "eth0", "netns", str(machine.network))
    first.run("ip", "link", "add", port, "type", "veth", *other)
    first.run("ip", "link", "set", port, "master", BRIDGE, "up")
    machine.run("ip", "address", "add", f"{machine.address}/24", "dev", "eth0")
    machine.run("ip", "link", "set", "eth0", "up")
    machine.run("ip", "route", "add", "default", "via", first.address)


@contextmanager
def linux_pod(directory: Path, machine: Machine, subnet: str) -> Iterator[Machine]:
    """Create a stand-in for a Linux pod: a namespace with an address of its machine's subnet."""
    namespaces = NetworkNamespaces(directory)
    gateway, address = (f"{subnet.rpartition('.')[0]}.{last}" for last in (1, 10))
    try:
        pod = Machine("linux-pod", namespaces.create("linux-pod"), address)
        other = ("peer", "name", "eth0", "netns", str(pod.network))
        machine.run("ip", "link", "add", "pod", "type", "veth", *other)
        machine.run("ip", "address", "add", f"{gateway}/24", "dev", "pod")
        machine.run("ip", "link", "set", "pod", "up")
        machine.run("sysctl", "--quiet", "net.ipv4.ip_forward=1")
        pod.run("ip", "address", "add", f"{address}/24", "dev", "eth0")
        pod.run("ip", "link", "set", "eth0", "up")
        pod.run("ip", "route", "add", "default", "via", gateway)
        yield pod
    finally:
        for name in namespaces.names():
            namespaces.remove(name)
