"""The network of Windows pods in a real cluster: every check of document 004.

Pods on two Windows nodes and a stand-in for a Linux pod connect to each other and to the machines,
directly, through Services of a real kube-proxy and by names of a real CoreDNS.
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
ROUTES = {
    "pod to itself": ("a1", "a1"),
    "pod to pod on its node": ("a1", "a2"),
    "pod to pod on another node": ("a1", "b1"),
    "pod on another node to pod": ("b1", "a1"),
    "Windows pod to Linux pod": ("a2", "linux-pod"),
    "Linux pod to Windows pod": ("linux-pod", "b1"),
    "node to its pod": ("win-2019", "a1"),
    "node to pod on another node": ("win-2022", "a1"),
    "pod to its node": ("b1", "win-2022"),
    "pod to another node": ("b1", "win-2019"),
}


class Peers:
    """Sends requests from Windows pods by kubectl exec, from others by sockets in their network."""

    def __init__(self, cluster: WindowsCluster) -> None:
        self.cluster = cluster
        self.machines = {**cluster.machines, cluster.linux_pod.name: cluster.linux_pod}
        self.addresses = {name: machine.address for name, machine in self.machines.items()}
        self.addresses |= {name: cluster.address(NS, name) for name in PODS}

    def request(self, client: str, url: str) -> str:
        if client in PODS:
            scheme, _, rest = url.partition("://")
            datagram = (DATAGRAM, "ask", *rest.split(":"))
            command = datagram if scheme == "udp" else (PEER, "ask", url)
            return self.cluster.exec(NS, client, *command).strip()
        return self.machines[client].call(lambda: _request(url))

    def wait_for_answer(self, client: str, url: str) -> str:
        """Retry until kube-proxy has programmed the Service."""
        answers: list[str] = []

        def is_answered() -> bool:
            with contextlib.suppress(KubectlFailed, OSError):
                answers.append(self.request(client, url))
            return bool(answers)

        self.cluster.until(f"{client} requests {url}", is_answered)
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
    stand_ins = (cluster.linux_pod, cluster.machines["win-2019"], cluster.machines["win-2022"])
    with contextlib.ExitStack() as stack:
        for machine in stand_ins:
            stack.enter_context(serve_peer(machine))
        cluster.until_ready(NS, *PODS)
        yield Peers(cluster)
    cluster.kubectl("delete", "pods", "--all", "-n", NS, "--wait=false")


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("route", ROUTES)
def test_pods_and_machines_reach_each_other(peers: Peers, route: str, protocol: str) -> None:
    client, server = ROUTES[route]
    answer = peers.wait_for_answer(client, f"{protocol}://{peers.addresses[server]}:{PORT}")
    name, _, seen = answer.partition(" heard ")
    assert name.lower() == server
    if {client, server} <= {*PODS, "linux-pod"}:
        assert seen == peers.addresses[client], "pods see each other's own addresses"


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_service_reaches_all_of_its_pods(
    peers: Peers, cluster: WindowsCluster, protocol: str
) -> None:
    address = cluster.get(NS, "service", "web")["spec"]["clusterIP"]
    names: set[str] = set()
    machine = cluster.machines["win-2019"]

    def all_answered() -> bool:
        with contextlib.suppress(OSError):
            names.add(
                machine.call(lambda: _request(f"{protocol}://{address}:{PORT}")).partition(" ")[0]
            )
        return {name.lower() for name in names} == set(PODS)

    cluster.until("every pod has answered", all_answered)
    for client in ("a1", "b1"):
        assert " heard " in peers.wait_for_answer(client, f"{protocol}://{address}:{PORT}")


def test_windows_pod_reaches_linux_pod_through_a_service(
    peers: Peers, cluster: WindowsCluster
) -> None:
    address = cluster.get(NS, "service", "linux")["spec"]["clusterIP"]
    answer = peers.wait_for_answer("b1", f"http://{address}:{PORT}")
    assert answer == f"linux-pod heard {peers.addresses['b1']}"


@pytest.mark.parametrize("node", ["win-2019", "win-2022"])
def test_node_port_of_every_node_reaches_the_pod_from_outside(peers: Peers, node: str) -> None:
    answer = peers.wait_for_answer("control", f"http://{peers.addresses[node]}:{NODE_PORT}")
    assert answer.lower().startswith("b1 heard ")


def test_host_port_reaches_its_pod(peers: Peers) -> None:
    url = f"http://{peers.addresses['win-2019']}:{HOST_PORT}"
    assert peers.wait_for_answer("control", url).lower().startswith("a1 heard ")
    assert peers.wait_for_answer("b1", url).lower().startswith("a1 heard ")


@pytest.mark.parametrize(
    "name", ["web", f"web.{NS}", f"web.{NS}.svc.cluster.local", "kubernetes.default"]
)
def test_windows_program_resolves_service_names(
    peers: Peers, cluster: WindowsCluster, name: str
) -> None:
    service, _, rest = name.partition(".")
    namespace = rest.partition(".")[0] or NS
    address = cluster.get(namespace, "service", service)["spec"]["clusterIP"]
    assert peers.wait_for_answer("a1", f"dns://{name}").split() == [address]


def test_headless_service_resolves_to_its_pods(peers: Peers) -> None:
    resolve = partial(peers.wait_for_answer, "b1", f"dns://each.{NS}.svc.cluster.local")
    pods = sorted(peers.addresses[name] for name in PODS)
    eventually(resolve, lambda found: sorted(found.split()) == pods)


def test_service_is_reached_by_its_name(peers: Peers) -> None:
    assert " heard " in peers.wait_for_answer("a1", f"http://web:{PORT}")
    assert "linux-pod heard" in peers.wait_for_answer("a2", f"http://linux.{NS}:{PORT}")


def test_pod_reaches_itself_through_its_service(peers: Peers) -> None:
    assert peers.wait_for_answer("a1", "http://one").lower().startswith("a1 heard ")


@contextlib.contextmanager
def serve_peer(machine: Machine) -> Iterator[None]:
    """Serve HTTP and UDP from sockets in the network of a machine or the Linux pod."""
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


def _request(url: str) -> str:
    scheme, _, rest = url.partition("://")
    if scheme == "http":
        with urllib.request.urlopen(url, timeout=10) as answer:
            return str(answer.read().decode())
    host, _, port = rest.partition(":")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.settimeout(3)
        client.sendto(b"hello", (host, int(port)))
        return client.recv(1500).decode()


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
