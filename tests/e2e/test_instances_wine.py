"""Three Windows hosts under Wine and one operator: they join and are upgraded one by one.

containerd.exe, SSH, registry, service manager, file locks and disks are real; winpod's node agent
acts as the kubelets. The operator is killed, a host reboots, one has a locked file, one loses
power, one has a full disk.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest
from tests.e2e.controlplane import ControlPlane
from tests.e2e.windows_host import WindowsHost, windows_host
from tests.e2e.windows_host.host import FRESH, READY
from tests.e2e.windows_host.kubelet import playing_kubelet
from tests.e2e.windows_host.machine import make_key
from tests.e2e.windows_host.payload import lay_programs, replace_payload
from tests.support.e2e.instance_fleet import config_map
from tests.support.e2e.instance_operator import (
    Watching,
    in_time,
    is_at,
    is_phase,
    operator,
    plane,
    says,
    status,
    until_told,
)
from tests.support.e2e.node_process import is_ready, node
from tests.support.e2e.operator_process import NAMESPACE, configure

from winpod.images.base.builder import Base
from winpod.instances.software.payload import make_payload

__all__ = ["plane"]

FEATURES = {"win-x": FRESH, "win-y": READY, "win-z": READY}
KILLS = (r"put the file C:\k\bin\containerd.exe", "start the service containerd")
SETTINGS = "instances: {joinSeconds: 900, drainSeconds: 860}\n"
HELD = r"C:\k\bin\crictl.exe"
Hosts = dict[str, WindowsHost]


@pytest.fixture
def hosts(plane: ControlPlane, base: Base, tmp_path: Path) -> Iterator[Hosts]:
    """Hosts by address, with one login key; each joins as the node of its name."""
    configure(plane, SETTINGS)
    key = make_key(tmp_path / "key")
    with ExitStack() as running:
        found = {}
        for name, features in FEATURES.items():
            made = windows_host(tmp_path / name, base, features=features, name=name, key=key)
            host = running.enter_context(made)
            running.enter_context(playing_kubelet(host, name))
            found[host.address] = host
        metadata = {"name": "cloud-private-key", "namespace": NAMESPACE}
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata}
        plane.apply({**secret, "stringData": {"private-key.pem": key.read_text()}})
        entries = {
            host.address: f"username={host.user},port={host.port}" for host in found.values()
        }
        plane.apply(config_map(NAMESPACE, entries))
        yield found


def test_hosts_join_and_are_upgraded_one_by_one_despite_failures(
    plane: ControlPlane, hosts: Hosts, tmp_path: Path
) -> None:
    payload_files = lay_programs(tmp_path / "payload", "1.0.0")
    make_payload(payload_files, "1.0.0")
    for number, step in enumerate(KILLS):
        with operator(plane, tmp_path / str(number), files=payload_files) as dying:
            in_time(plane, partial(dying.said, step))
            dying.kill()
    with operator(plane, tmp_path, files=payload_files):
        in_time(plane, partial(all_are_at, plane, hosts, "1.0.0"))
        for address, host in hosts.items():
            assert status(plane, address)["runtime"] == "containerd://2.4.2"
            assert set(host.services("containerd", "kubelet").values()) == {"running"}
        watching = Watching(plane, FEATURES)
        with ExitStack() as held:
            for host in hosts.values():
                held.enter_context(host.held(HELD))
            replace_payload(payload_files, "1.1.0")
            first = wait_first_failed(plane, watching, list(hosts))
        assert HELD in status(plane, first)["failure"]
        until_told(plane, first, "InstanceStepFailed")
        others = [address for address in hosts if address != first]
        for address in others:
            in_time(plane, partial(says, plane, address, f"the update of {first} failed"))
        trigger_reconcile(plane, 861)
        second = wait_first_changing(plane, watching, others)
        hosts[second].die()
        (third,) = [address for address in others if address != second]
        with hosts[third].full_disk(leaving=64 << 20):
            in_time(plane, partial(is_phase, plane, second, "Failed"))
            until_told(plane, second, "InstanceUnreachable")
            assert status(plane, third)["version"] == "1.0.0"
            hosts[second].switch_on()
            hosts[second].wait_until_up()
            trigger_reconcile(plane, 862)
            in_time(plane, lambda: watching.look() and is_at(plane, second, "1.1.0"))
            trigger_reconcile(plane, 863)
            in_time(plane, lambda: says(plane, third, "MiB free"))
            until_told(plane, third, "InstanceUnfit")
        trigger_reconcile(plane, 864)
        in_time(plane, lambda: watching.look() and all_are_at(plane, hosts, "1.1.0"))
        assert watching.most_at_once == 1
        for name in FEATURES:
            assert is_ready(plane, name)
            assert "unschedulable" not in node(plane, name)["spec"]


def all_are_at(plane: ControlPlane, hosts: Hosts, version: str) -> bool:
    return all(is_at(plane, address, version) for address in hosts)


def wait_first_failed(plane: ControlPlane, watching: Watching, addresses: list[str]) -> str:
    def failed() -> list[str]:
        return [address for address in addresses if is_phase(plane, address, "Failed")]

    (address,) = in_time(plane, lambda: watching.look() and failed())
    return address


def wait_first_changing(plane: ControlPlane, watching: Watching, addresses: list[str]) -> str:
    def changing() -> list[str]:
        return [address for address in addresses if is_phase(plane, address, "Changing")]

    return in_time(plane, lambda: watching.look() and changing())[0]


def trigger_reconcile(plane: ControlPlane, seconds: int) -> None:
    """Change a setting that has no effect, to trigger a reconcile."""
    configure(plane, SETTINGS.replace("860", str(seconds)))
