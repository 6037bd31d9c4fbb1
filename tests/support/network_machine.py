"""Machine for network tests: a network namespace that stands for the host.

The network of the real machine is not touched: plugins run in the namespace that the fixture
enters, and keep their leases in the test's directory.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import socket
import struct
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path
from typing import Any

import pytest

from winpod.network.attachments import Attachment
from winpod.network.cni import Cni
from winpod.network.netns import NetworkNamespaces, run_in_netns
from winpod.network.sandbox_network import CniSandboxNetwork

PLUGINS = Path("/usr/lib/cni")
SUBNET = IPv4Network("10.250.1.0/24")
SUBNET_6 = IPv6Network("fd00:250:1::/64")
NEEDED = {
    "containernetworking-plugins": PLUGINS / "bridge",
    "iptables": Path("/usr/sbin/iptables"),
    "iproute2": Path("/usr/sbin/ip"),
}


@dataclass
class Machine:
    """Stand-in for a host, with winpod's directories."""

    directory: Path

    @property
    def conf_dir(self) -> Path:
        return self.directory / "net.d"

    @property
    def cache_dir(self) -> Path:
        return self.directory / "cni"

    @property
    def leases(self) -> Path:
        return self.directory / "leases"

    @property
    def own_plugins(self) -> Path:
        return self.directory / "bin"

    @property
    def namespaces(self) -> NetworkNamespaces:
        return NetworkNamespaces(self.directory / "netns")

    def cni(self, *, time_limit: float = 60) -> Cni:
        directories = (self.own_plugins, PLUGINS)
        return Cni(self.conf_dir, directories, self.cache_dir, time_limit=time_limit)

    def networks(self, *, time_limit: float = 60) -> CniSandboxNetwork:
        """Return networks as after a start of winpod: their state is read from disk."""
        return CniSandboxNetwork(self.namespaces, self.cni(time_limit=time_limit))

    def attachment(self, sandbox_id: str, **further: Any) -> Attachment:
        return Attachment(sandbox_id, self.namespaces.path(sandbox_id), **further)

    def use_default(self, *subnets: IPv4Network | IPv6Network) -> None:
        assert self.cni().write_default(subnets or (SUBNET,), leases=self.leases)

    def configure(self, *plugins: dict[str, Any], **further: Any) -> Path:
        """Configure a network with these plugins, replacing existing ones."""
        document = {"cniVersion": "1.0.0", "name": "own", **further, "plugins": list(plugins)}
        return self.write("10-own.conflist", json.dumps(document))

    def write(self, name: str, text: str) -> Path:
        self.conf_dir.mkdir(exist_ok=True)
        path = self.conf_dir / name
        path.write_text(text)
        return path

    def bridge(self, **further: Any) -> dict[str, Any]:
        ipam = {
            "type": "host-local",
            "dataDir": str(self.leases),
            "ranges": [[{"subnet": str(SUBNET)}]],
        }
        return {"type": "bridge", "bridge": "own0", "isGateway": True, "ipam": ipam, **further}

    def script(self, name: str, text: str) -> dict[str, Any]:
        """Add a stand-in for a plugin: a shell script, and its configuration."""
        self.own_plugins.mkdir(exist_ok=True)
        path = self.own_plugins / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
        return {"type": name}

    def leftovers(self) -> dict[str, list[str]]:
        """Return all that a sandbox can leave on this machine, as lists by kind."""
        deadline = time.monotonic() + 60
        while (links := self._links()) and time.monotonic() < deadline:
            time.sleep(0.01)  # the kernel removes a namespace asynchronously
        return {
            "namespaces": self.namespaces.names(),
            "links": links,
            "leases": self.leased(),
            "cache": self.cached(),
            "rules": self.rules(),
        }

    def leased(self) -> list[str]:
        files = (path for path in self.leases.glob("*/*") if path.is_file())
        kept = ("lock", "last_reserved_ip.0", "last_reserved_ip.1")
        return sorted(path.name for path in files if path.name not in kept)

    def cached(self) -> list[str]:
        return sorted(path.name for path in (self.cache_dir / "results").glob("*"))

    def rules(self) -> list[str]:
        """Return the rules and chains of single sandboxes."""
        saved = [run("iptables-save"), run("ip6tables-save")]
        return [
            line
            for line in "".join(saved).splitlines()
            if "id: " in line or (line.startswith(":CNI-") and "HOSTPORT" not in line)
        ]

    def _links(self) -> list[str]:
        links = json.loads(run("ip", "-json", "link", "show"))
        return [link["ifname"] for link in links if link["ifname"].startswith(("veth", "bwp"))]


NOTHING: dict[str, list[str]] = {
    key: [] for key in ("namespaces", "links", "leases", "cache", "rules")
}


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    if os.geteuid() != 0:
        pytest.fail("Network tests require root: they create network namespaces.")
    for package, path in NEEDED.items():
        if not path.exists():
            pytest.fail(f"{path} is missing: apt-get install {package}")
    outer = NetworkNamespaces(tmp_path / "outer")
    outer.create("machine")
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    _enter(os.open(outer.path("machine"), os.O_RDONLY | os.O_CLOEXEC))
    made = Machine(tmp_path)
    try:
        yield made
    finally:
        _enter(home)
        for namespaces in (made.namespaces, outer):
            for name in namespaces.names():
                namespaces.remove(name)


def run(*command: str) -> str:
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    program = shutil.which(command[0], path=path) or command[0]
    done = subprocess.run((program, *command[1:]), capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
    return done.stdout


def ping(netns: Path, address: str) -> bool:
    """Send one echo request from inside a namespace; return whether a reply came."""

    def echo() -> bool:
        with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP) as raw:
            raw.settimeout(60)
            header = struct.pack("!BBHHH", 8, 0, 0, 1, 1)
            checksum = 0xFFFF - sum(struct.unpack("!4H", header))
            raw.sendto(struct.pack("!BBHHH", 8, 0, checksum, 1, 1), (address, 0))
            while True:
                packet, (sender, _) = raw.recvfrom(1024)
                if packet[20] == 0:
                    return bool(sender == address)

    try:
        return run_in_netns(netns, echo)
    except OSError:
        return False


def listen(netns: Path, port: int = 80) -> socket.socket:
    """Return a listening socket inside a namespace, for a caller outside."""
    return run_in_netns(netns, lambda: socket.create_server(("", port)))


def peer_of(server: socket.socket, client: socket.socket) -> str:
    """Return the address of a connected client as the server sees it."""
    with client, server:
        connection, (address, _) = server.accept()
        connection.close()
        return str(address)


def _enter(descriptor: int) -> None:
    failed = ctypes.CDLL(None).setns(descriptor, 0)
    os.close(descriptor)
    assert not failed
