"""The network of Windows pods in a real cluster: document 004's checks, each one.

Pods of two Windows nodes and a stand-in for a pod of Linux talk to each other and to the machines,
directly, by Services of a real kube-proxy, and by names of a real CoreDNS.
"""

import contextlib
import socket
import threading
import urllib.request
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from tests.e2e.controlplane import KubectlFailed
from tests.support.e2e.machines import Machine
from tests.support.e2e.waiting import eventually
from tests.support.e2e.windows_cluster import (
    DATAGRAM,
    PEER,
    PORT,
    WindowsCluster,
    service_without_pods,
    windows_spec,
)

NS = "network"
PODS = {"a1": "win-2019", "a2": "win-2019", "b1": "win-2022"}
NODE_PORT, HOST_PORT = 30080, 8088
PROTOCOLS = ("http", "udp")
WAYS = {
    "to itself": ("a1", "a1"),
    "to a pod of its node": ("a1", "a2"),
    "to a pod of another node": ("a1", "b1"),
    "back from the other node": ("b1", "a1"),
    "to a pod of Linux": ("a2", "linux-pod"),
    "from a pod of Linux": ("linux-pod", "b1"),
    "from its node": ("win-2019", "a1"),
    "from another node": ("win-2022", "a1"),
    "to its node": ("b1", "win-2022"),
    "to another node": ("b1", "win-2019"),
}


class Peers:
    """Who asks whom: a Windows pod by kubectl exec, a machine or a Linux pod by its own sockets."""

    def __init__(self, cluster: WindowsCluster) -> None:
        self.cluster = cluster
        self.machines = {**cluster.machines, cluster.linux_pod.name: cluster.linux_pod}
        self.addresses = {name: machine.address for name, machine in self.machines.items()}
        self.addresses |= {name: cluster.address(NS, name) for name in PODS}

    def ask(self, who: str, url: str) -> str:
        if who in PODS:
            scheme, _, rest = url.partition("://")
            datagram = (DATAGRAM, "ask", *rest.split(":"))
            command = datagram if scheme == "udp" else (PEER, "ask", url)
            return self.cluster.exec(NS, who, *command).strip()
        return self.machines[who].call(lambda: _ask(url))

    def until_answered(self, who: str, url: str) -> str:
        """A Service leads somewhere as soon as kube-proxy has heard of it."""
        answers: list[str] = []

        def asked() -> bool:
            with contextlib.suppress(KubectlFailed, OSError):
                answers.append(self.ask(who, url))
            return bool(answers)

        self.cluster.until(f"{who} asks {url}", asked)
        return answers[0]


@pytest.fixture(scope="module")
def peers(cluster: WindowsCluster) -> Iterator[Peers]:
    cluster.plane.create_namespace(NS)
    ports = {"a1": [{"containerPort": PORT, "hostPort": HOST_PORT}]}
    cluster.plane.apply(*(_pod(cluster, name, ports.get(name, [])) for name in PODS))
    cluster.plane.apply(
        _service("web", [_tcp(PORT), _udp(PORT)], {"app": "peer"}),
        _service("one", [_tcp(80)], {"pod": "a1"}),
        _service("outside", [_tcp(80) | {"nodePort": NODE_PORT}], {"on": "win-2022"}, "NodePort"),
        _service("each", [_tcp(PORT)], {"app": "peer"}, clusterIP="None"),
        *service_without_pods(NS, "linux", cluster.linux_pod.address, [_tcp(PORT)]),
    )
    standing_in = (cluster.linux_pod, cluster.machines["win-2019"], cluster.machines["win-2022"])
    with contextlib.ExitStack() as stack:
        for machine in standing_in:
            stack.enter_context(answering(machine))
        cluster.until_ready(NS, *PODS)
        yield Peers(cluster)
    cluster.kubectl("delete", "pods", "--all", "-n", NS, "--wait=false")


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("way", WAYS)
def test_pods_and_machines_reach_each_other(peers: Peers, way: str, protocol: str) -> None:
    who, whom = WAYS[way]
    heard = peers.until_answered(who, f"{protocol}://{peers.addresses[whom]}:{PORT}")
    name, _, seen = heard.partition(" heard ")
    assert name.lower() == whom
    if {who, whom} <= {*PODS, "linux-pod"}:
        assert seen == peers.addresses[who], "pods see each other's own addresses"


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_service_leads_to_all_of_its_pods(
    peers: Peers, cluster: WindowsCluster, protocol: str
) -> None:
    address = cluster.get(NS, "service", "web")["spec"]["clusterIP"]
    names: set[str] = set()
    asker = cluster.machines["win-2019"]

    def all_named() -> bool:
        with contextlib.suppress(OSError):
            names.add(asker.call(lambda: _ask(f"{protocol}://{address}:{PORT}")).partition(" ")[0])
        return {name.lower() for name in names} == set(PODS)

    cluster.until("every pod has answered", all_named)
    for who in ("a1", "b1"):
        assert " heard " in peers.until_answered(who, f"{protocol}://{address}:{PORT}")


def test_a_service_leads_a_windows_pod_to_a_pod_of_linux(
    peers: Peers, cluster: WindowsCluster
) -> None:
    address = cluster.get(NS, "service", "linux")["spec"]["clusterIP"]
    heard = peers.until_answered("b1", f"http://{address}:{PORT}")
    assert heard == f"linux-pod heard {peers.addresses['b1']}"


@pytest.mark.parametrize("node", ["win-2019", "win-2022"])
def test_a_port_of_every_node_leads_from_outside_to_a_pod_of_one(peers: Peers, node: str) -> None:
    heard = peers.until_answered("control", f"http://{peers.addresses[node]}:{NODE_PORT}")
    assert heard.lower().startswith("b1 heard ")


def test_a_host_port_leads_to_the_pod_that_asked_for_it(peers: Peers) -> None:
    url = f"http://{peers.addresses['win-2019']}:{HOST_PORT}"
    assert peers.until_answered("control", url).lower().startswith("a1 heard ")
    assert peers.until_answered("b1", url).lower().startswith("a1 heard ")


@pytest.mark.parametrize(
    "name", ["web", f"web.{NS}", f"web.{NS}.svc.cluster.local", "kubernetes.default"]
)
def test_a_windows_program_resolves_the_names_of_services(
    peers: Peers, cluster: WindowsCluster, name: str
) -> None:
    service, _, rest = name.partition(".")
    namespace = rest.partition(".")[0] or NS
    address = cluster.get(namespace, "service", service)["spec"]["clusterIP"]
    assert peers.until_answered("a1", f"dns://{name}").split() == [address]


def test_a_headless_service_names_its_pods(peers: Peers) -> None:
    named = partial(peers.until_answered, "b1", f"dns://each.{NS}.svc.cluster.local")
    pods = sorted(peers.addresses[name] for name in PODS)
    eventually(named, lambda found: sorted(found.split()) == pods)


def test_a_service_is_asked_by_its_name(peers: Peers) -> None:
    assert " heard " in peers.until_answered("a1", f"http://web:{PORT}")
    assert "linux-pod heard" in peers.until_answered("a2", f"http://linux.{NS}:{PORT}")


def test_a_pod_reaches_itself_through_its_service(peers: Peers) -> None:
    assert peers.until_answered("a1", "http://one").lower().startswith("a1 heard ")


@contextlib.contextmanager
def answering(machine: Machine) -> Iterator[None]:
    """A process of a machine or of a Linux pod, as sockets there that this one serves."""
    streams = machine.call(lambda: socket.create_server(("", PORT)))
    datagrams = machine.call(lambda: _datagrams(PORT))
    serving = [
        threading.Thread(target=target, args=(listener, machine.name), daemon=True)
        for target, listener in ((_serve_streams, streams), (_serve_datagrams, datagrams))
    ]
    for thread in serving:
        thread.start()
    try:
        yield
    finally:
        for listener in (streams, datagrams):
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()


def _datagrams(port: int) -> socket.socket:
    made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    made.bind(("", port))
    return made


def _serve_streams(listener: socket.socket, name: str) -> None:
    with contextlib.suppress(OSError):
        while True:
            connection, (client, _) = listener.accept()
            with connection:
                connection.recv(4096)
                text = f"{name} heard {client}"
                head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(text)}\r\nConnection: close"
                connection.sendall(f"{head}\r\n\r\n{text}".encode())


def _serve_datagrams(listener: socket.socket, name: str) -> None:
    with contextlib.suppress(OSError):
        while client := listener.recvfrom(1500)[1]:
            listener.sendto(f"{name} heard {client[0]}".encode(), client)


def _ask(url: str) -> str:
    scheme, _, rest = url.partition("://")
    if scheme == "http":
        with urllib.request.urlopen(url, timeout=10) as answer:
            return str(answer.read().decode())
    host, _, port = rest.partition(":")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        asking.settimeout(3)
        asking.sendto(b"hello", (host, int(port)))
        return asking.recv(1500).decode()


def _pod(cluster: WindowsCluster, name: str, ports: list[dict[str, int]]) -> dict[str, Any]:
    labels = {"app": "peer", "on": PODS[name], "pod": name}
    probe = {"tcpSocket": {"port": PORT}, "periodSeconds": 2, "failureThreshold": 60}
    container = {"readinessProbe": probe, "ports": ports}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": NS, "labels": labels},
        "spec": windows_spec(cluster.image, node=PODS[name], container=container),
    }


def _service(
    name: str, ports: list[dict[str, Any]], selector: dict[str, str], kind: str = "", **more: Any
) -> dict[str, Any]:
    spec = {"ports": ports, "selector": selector, **more}
    if kind:
        spec["type"] = kind
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": NS},
        "spec": spec,
    }


def _tcp(port: int) -> dict[str, Any]:
    return {"name": f"tcp-{port}", "port": port, "targetPort": PORT, "protocol": "TCP"}


def _udp(port: int) -> dict[str, Any]:
    return _tcp(port) | {"name": f"udp-{port}", "protocol": "UDP"}
