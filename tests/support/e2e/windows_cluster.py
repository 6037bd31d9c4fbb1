"""Complete cluster for tests: control plane, kube-proxy, CoreDNS, and `winpod node` with Wine.

Its machines are network namespaces: one for the control plane and CoreDNS, one for each Windows
node with a kube-proxy, and one that stands for a Linux node.
"""

import asyncio
import json
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tests.e2e.controlplane import IN_TIME, ControlPlane, KubectlFailed
from tests.e2e.controlplane.control_plane import POD_RANGE
from tests.e2e.controlplane.processes import ServerProcess
from tests.e2e.coredns import coredns
from tests.support.e2e import windows_programs
from tests.support.e2e.go_build import Say
from tests.support.e2e.machines import Machine, linux_pod, machines
from tests.support.e2e.node_process import NodeProcess, is_ready, node
from tests.support.e2e.objects import TAINT
from tests.support.e2e.windows_container import link_base
from winpod.cli.main import app
from winpod.cri.proto import api_pb2 as api
from winpod.cri.rpc import CriClient
from winpod.images.base.builder import Base

BUILDS = {"win-2019": "2019", "win-2022": "2022"}
DNS_ADDRESS = "10.96.0.10"
LINUX_PODS = "10.244.200.0/24"
PEER = "C:\\peer.exe"
DATAGRAM = "C:\\datagram.exe"
PORT = 8080
PATIENCE = 300.0
GOES_ANYWHERE = [TAINT | {"operator": "Equal"}]


@dataclass
class WindowsCluster:
    """Cluster under test; `image` is for both builds, `images` has one image for each."""

    plane: ControlPlane
    machines: dict[str, Machine]
    nodes: dict[str, NodeProcess]
    image: str
    images: dict[str, str]
    linux_pod: Machine

    def kubectl(self, *arguments: str) -> str:
        return self.plane.kubectl(*arguments)

    def get(self, namespace: str, kind: str, name: str) -> dict[str, Any]:
        """Return an object, empty if it does not exist."""
        try:
            text = self.kubectl("get", kind, name, "-n", namespace, "-o", "json")
        except KubectlFailed:
            return {}
        return dict(json.loads(text))

    def until(self, what: str, holds: Callable[[], object]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not holds():
            assert time.monotonic() < deadline, f"{what}: not within {PATIENCE} s"
            time.sleep(0.5)

    def until_ready(self, namespace: str, *names: str) -> None:
        pods = [f"pod/{name}" for name in names]
        self.kubectl("wait", "-n", namespace, "--for=condition=Ready", IN_TIME, *pods)

    def until_rolled_out(self, namespace: str, what: str) -> None:
        self.kubectl("rollout", "status", what, "-n", namespace, IN_TIME)

    def delete_pods(self, namespace: str) -> None:
        self.kubectl("delete", "pods", "--all", "-n", namespace, IN_TIME)

    def exec(self, namespace: str, name: str, *command: str) -> str:
        return self.kubectl("exec", "-n", namespace, name, "--", *command)

    def address(self, namespace: str, name: str) -> str:
        return str(self.get(namespace, "pod", name)["status"]["podIP"])


def windows_spec(image: str, *command: str, node: str = "", **more: Any) -> dict[str, Any]:
    """Return the spec of a pod for any Windows node, or for this one."""
    container = {"name": "app", "image": image, "command": list(command or (PEER, "serve", "8080"))}
    container |= more.pop("container", {})
    selector = {"kubernetes.io/os": "windows"}
    if node:
        selector["kubernetes.io/hostname"] = node
    return {
        "os": {"name": "windows"},
        "nodeSelector": selector,
        "tolerations": GOES_ANYWHERE,
        "terminationGracePeriodSeconds": 1,
        "containers": [container],
        **more,
    }


@contextmanager
def windows_cluster(directory: Path, base: Base, say: Say) -> Iterator[WindowsCluster]:
    with ExitStack() as stack:
        names = ("control", *BUILDS, "linux-node")
        made = stack.enter_context(machines(directory / "machines", *names))
        pod = stack.enter_context(linux_pod(directory / "pods", made["linux-node"], LINUX_PODS))
        control = made["control"]
        plane = ControlPlane(
            directory / "plane", network=control.network, address=control.address, say=say
        )
        stack.enter_context(plane)
        stack.callback(_start_dns(plane, control, directory, say).stop)
        image = pack(directory / "images", "any", *BUILDS.values())
        images = {name: pack(directory / "images", name, build) for name, build in BUILDS.items()}
        nodes = {
            name: windows_node(plane, made[name], directory / name, base, build)
            for name, build in BUILDS.items()
        }
        cluster = WindowsCluster(plane, made, nodes, image, images, pod)
        stack.callback(_tear_down, cluster, directory)
        for process in nodes.values():
            process.start()
        for name in BUILDS:
            cluster.until(f"{name} is ready", partial(is_ready, plane, name))
            stack.callback(_start_proxy(plane, made[name], directory).stop)
        _add_routes(cluster)
        yield cluster


def pack(layouts: Path, name: str, *builds: str) -> str:
    """Pack an image of the test program into a directory; several builds share one name."""
    content = layouts / f"{name}-content"
    content.mkdir(parents=True)
    shutil.copy(windows_programs.go_program(name="peer"), content / "peer.exe")
    datagram = windows_programs.c_program("datagram", libraries=("ws2_32",))
    shutil.copy(datagram, content / "datagram.exe")
    reference = f"oci:{layouts / name}:1"
    versions = [option for build in builds for option in ("--os-version", build)]
    app(["image", "pack", str(content), "-t", reference, *versions], standalone_mode=False)
    return reference


def windows_node(
    plane: ControlPlane, machine: Machine, directory: Path, base: Base, build: str, *options: str
) -> NodeProcess:
    """Start a node with given kubeconfig and certificates, and its own runtime."""
    root = directory / "root"
    root.mkdir(parents=True, exist_ok=True)
    link_base(root, base)
    config = directory / "config.toml"
    config.write_text("[runtime]\nwarm_shells = 0\n")
    kubeconfig = plane.kubeconfig_for(f"system:node:{machine.name}", "system:nodes")
    serving = plane.serving_certificate(f"{machine.name}-serving", f"IP:{machine.address}")
    return NodeProcess(
        directory,
        *("--kubeconfig", str(kubeconfig), "--name", machine.name),
        *("--build", build, "--node-ip", machine.address),
        *("--cluster-dns", DNS_ADDRESS, "--cluster-cidr", POD_RANGE),
        *("--tls-cert-file", str(serving.certificate), "--tls-private-key-file", str(serving.key)),
        *options,
        before=(*machine.entering, "env", f"WINPOD_CONFIG={config}"),
    )


def _start_proxy(plane: ControlPlane, machine: Machine, directory: Path) -> ServerProcess:
    flags = {
        "kubeconfig": plane.kubeconfig_for("system:kube-proxy"),
        "hostname-override": machine.name,
        "proxy-mode": "iptables",
        "cluster-cidr": POD_RANGE,
        "conntrack-max-per-core": 0,
        "conntrack-tcp-timeout-established": "0s",
        "conntrack-tcp-timeout-close-wait": "0s",
    }
    options = (f"--{key}={value}" for key, value in flags.items())
    command = [*machine.entering, str(plane.binaries / "kube-proxy"), *options]
    return ServerProcess("kube-proxy", command, directory / f"kube-proxy-{machine.name}.log")


def _start_dns(plane: ControlPlane, machine: Machine, directory: Path, say: Say) -> ServerProcess:
    """Run CoreDNS at the cluster DNS address, through a Service that points to its process."""
    kubeconfig = plane.kubeconfig_for("coredns", "system:masters")
    corefile = directory / "Corefile"
    zone = f"kubernetes cluster.local {{\n kubeconfig {kubeconfig}\n }}"
    corefile.write_text(f".:53 {{\n errors\n ready {machine.address}:8181\n {zone}\n}}\n")
    command = [*machine.entering, str(coredns(say)), "-conf", str(corefile)]
    process = ServerProcess("coredns", command, directory / "coredns.log")
    ports = [{"name": name.lower(), "port": 53, "protocol": name} for name in ("UDP", "TCP")]
    plane.apply(
        *service_without_pods("kube-system", "kube-dns", machine.address, ports, DNS_ADDRESS)
    )
    return process


def service_without_pods(
    namespace: str, name: str, address: str, ports: list[dict[str, Any]], cluster_ip: str = ""
) -> list[dict[str, Any]]:
    """Return a Service with one endpoint that is not a pod of the cluster."""
    metadata = {"name": name, "namespace": namespace}
    labels = {"labels": {"kubernetes.io/service-name": name}}
    spec = {"ports": ports, **({"clusterIP": cluster_ip} if cluster_ip else {})}
    return [
        {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec},
        {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": metadata | labels,
            "addressType": "IPv4",
            "ports": [{k: v for k, v in port.items() if k != "targetPort"} for port in ports],
            "endpoints": [{"addresses": [address], "conditions": {"ready": True}}],
        },
    ]


def _add_routes(cluster: WindowsCluster) -> None:
    """Add routes between the pod subnets of all machines, like a cluster network."""
    subnets = {name: node(cluster.plane, name)["spec"]["podCIDR"] for name in BUILDS}
    subnets["linux-node"] = LINUX_PODS
    for machine in cluster.machines.values():
        for name, subnet in subnets.items():
            if name != machine.name:
                machine.reach(subnet, cluster.machines[name])


def _tear_down(cluster: WindowsCluster, directory: Path) -> None:
    """Remove pods through the cluster and the runtimes first, then the nodes."""
    away = ("--all", "--all-namespaces", "--force", "--grace-period=0", "--wait=false")
    for kind in ("deployments,replicasets,statefulsets,daemonsets,jobs", "pods"):
        cluster.kubectl("delete", kind, *away)
    for name, process in cluster.nodes.items():
        remove_sandboxes(directory / name / f"root/nodes/{name}/cri.sock")
        process.stop()


def remove_sandboxes(socket: Path) -> None:
    """Remove sandboxes, including those created meanwhile for pods that were deleted."""
    asyncio.run(_remove_sandboxes(socket))


async def _remove_sandboxes(socket: Path) -> None:
    client = CriClient(f"unix:{socket}")
    try:
        while found := (await client.call("ListPodSandbox", api.ListPodSandboxRequest())).items:
            for item in found:
                request = api.RemovePodSandboxRequest(pod_sandbox_id=item.id)
                await client.call("RemovePodSandbox", request)
    finally:
        await client.close()
