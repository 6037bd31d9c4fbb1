"""Kubernetes control plane for tests, with its data in one directory.

It listens on loopback, or on an address of the given network namespace. etcd and kube-apiserver
always run; kube-scheduler and kube-controller-manager unless switched off. Leaving the context
stops exactly the processes that entering it started.

Signed certificates are valid for `signing_duration`; a node is marked as unreachable after
`node_silence`.
"""

import base64
import http.client
import json
import os
import random
import socket
import ssl
import subprocess
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from tests.e2e.controlplane.build import Say, binaries
from tests.e2e.controlplane.certificates import Authority, Certificate, new_authority
from tests.e2e.controlplane.processes import ServerProcess

from winpod.network.netns import run_in_netns

LOOPBACK = "127.0.0.1"
SERVICE_RANGE = "10.96.0.0/16"
SERVICE_ADDRESS = "10.96.0.1"
POD_RANGE = "10.244.0.0/16"
BELOW_EPHEMERAL = range(20000, 32000)
PORTS_OF_A_PROCESS = 60
REQUEST_LIMIT = 120.0
IN_TIME = "--timeout=300s"
"""Timeout of a kubectl command that waits."""
ADMIN_GROUP = "system:masters"

_T = TypeVar("_T")


class KubectlFailed(Exception):
    """kubectl exited with an error; the message is its output."""


@dataclass(frozen=True)
class Answer:
    status: int
    body: Any

    @property
    def message(self) -> str:
        return str(self.body.get("message", "")) if isinstance(self.body, dict) else str(self.body)


class ControlPlane:
    """Context manager that runs the control plane; its members are available once entered."""

    kubeconfig: Path

    def __init__(
        self,
        directory: Path,
        *,
        scheduler: bool = True,
        controller_manager: bool = True,
        network: Path | None = None,
        address: str = LOOPBACK,
        signing_duration: str = "8760h",
        node_silence: str = "50s",
        without_admission: str = "",
        say: Say = print,
    ) -> None:
        self.directory = directory
        self.address = address
        self._network = network
        self._signing_duration = signing_duration
        self._node_silence = node_silence
        self._without_admission = without_admission
        self._with_scheduler = scheduler
        self._with_controller_manager = controller_manager
        self._say = say
        self._running = ExitStack()
        self._servers: list[ServerProcess] = []

    def __enter__(self) -> Self:
        with ExitStack() as starting:
            self._running = starting
            self._start()
            self._running = starting.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._running.close()

    @property
    def server(self) -> str:
        return f"https://{self.address}:{self._api_port}"

    @property
    def pids(self) -> list[int]:
        return [server.pid for server in self._servers]

    def kubectl_command(self, *arguments: str) -> list[str]:
        """Return the command line of `kubectl ARGUMENTS` as administrator."""
        program = str(self.binaries / "kubectl")
        return [*self._entering, program, "--kubeconfig", str(self.kubeconfig), *arguments]

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        """Run `kubectl ARGUMENTS` as administrator and return its output."""
        done = subprocess.run(
            self.kubectl_command(*arguments),
            input=stdin if stdin is not None else "",
            env={**os.environ, "HOME": str(self.directory)},
            capture_output=True,
            text=True,
        )
        if done.returncode != 0:
            raise KubectlFailed(f"kubectl {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout

    def apply(self, *objects: dict[str, Any]) -> None:
        """Apply the objects; a `status` is written to the status subresource."""
        listed = _list(*objects)
        self.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=listed)
        with_status = [item for item in objects if "status" in item]
        if with_status:
            command = ("apply", "--server-side", "--force-conflicts", "--subresource=status")
            self.kubectl(*command, "-f", "-", stdin=_list(*with_status))

    def create_namespace(self, name: str) -> None:
        """Create a namespace and wait for its default service account, which pods need."""
        account = {"name": "default", "namespace": name}
        self.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        self.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account})

    def request(self, method: str, path: str, body: object = None) -> Answer:
        """Send one request to the API server as administrator; return its status and body."""
        return self._inside(partial(_request, self._api, self._trust, method, path, body))

    def kubeconfig_for(self, user: str, *groups: str) -> Path:
        """Return a kubeconfig for a user, such as `system:node:win-a` in `system:nodes`."""
        name = user.replace(":", "-")
        return self._write_kubeconfig(name, self._authority.client(name, user, *groups))

    def serving_certificate(self, name: str, *addresses: str) -> Certificate:
        """Issue a server certificate that the cluster trusts, such as for a kubelet API."""
        return self._authority.serving(name, *addresses)

    def client_certificate(self, user: str, *groups: str) -> Certificate:
        return self._authority.client(user.replace(":", "-"), user, *groups)

    @property
    def authority(self) -> Path:
        return self._authority.certificate

    def public_kubeconfig(self) -> str:
        """Return the kubeconfig with server and CA, as published in the cluster-info ConfigMap."""
        cluster = {
            "server": self.server,
            "certificate-authority-data": _encoded(self._authority.certificate),
        }
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "", "cluster": cluster}],
        }
        return json.dumps(document)

    def _start(self) -> None:
        self.binaries = binaries(self._say)
        self._certificates = self.directory / "certificates"
        self._certificates.mkdir(parents=True)
        self._authority = new_authority(self._certificates, "cluster")
        self._serving = self._authority.serving(
            "serving",
            *("DNS:localhost", f"IP:{LOOPBACK}", f"IP:{self.address}", f"IP:{SERVICE_ADDRESS}"),
        )
        self._token_signer = self._authority.client("service-accounts", "service-accounts")
        ports = self._inside(partial(free_ports, 5))
        self._etcd_port, peer_port, self._api_port, scheduler_port, controller_port = ports
        admin = self._authority.client("admin", "admin", ADMIN_GROUP)
        self._trust = ssl.create_default_context(cafile=str(self._authority.certificate))
        self._trust.load_cert_chain(admin.certificate, admin.key)
        self.kubeconfig = self._write_kubeconfig("admin", admin)

        self._start_etcd(peer_port)
        self._start_api_server(new_authority(self._certificates, "front-proxy"))
        if self._with_scheduler:
            self._start_scheduler(scheduler_port)
        if self._with_controller_manager:
            self._start_controller_manager(controller_port)

    def _start_etcd(self, peer_port: int) -> None:
        flags = {
            "data-dir": self.directory / "etcd",
            "client-url": f"http://{LOOPBACK}:{self._etcd_port}",
            "peer-url": f"http://{LOOPBACK}:{peer_port}",
        }
        etcd = self._run("etcd", flags)
        etcd.wait_until(lambda: self._inside(partial(_listens, self._etcd_port)))

    def _start_api_server(self, front_proxy: Authority) -> None:
        kubelet_client = self._authority.client("kubelet-client", "kubelet-client", ADMIN_GROUP)
        proxy_client = front_proxy.client("proxy-client", "front-proxy-client")
        flags = {
            "etcd-servers": f"http://{LOOPBACK}:{self._etcd_port}",
            "bind-address": self.address,
            "secure-port": self._api_port,
            "advertise-address": self.address,
            "endpoint-reconciler-type": "none",
            "tls-cert-file": self._serving.certificate,
            "tls-private-key-file": self._serving.key,
            "client-ca-file": self._authority.certificate,
            "kubelet-client-certificate": kubelet_client.certificate,
            "kubelet-client-key": kubelet_client.key,
            "kubelet-certificate-authority": self._authority.certificate,
            "kubelet-preferred-address-types": "InternalIP",
            "requestheader-client-ca-file": front_proxy.certificate,
            "requestheader-allowed-names": "front-proxy-client",
            "requestheader-username-headers": "X-Remote-User",
            "requestheader-group-headers": "X-Remote-Group",
            "requestheader-extra-headers-prefix": "X-Remote-Extra-",
            "proxy-client-cert-file": proxy_client.certificate,
            "proxy-client-key-file": proxy_client.key,
            "service-account-issuer": f"https://{LOOPBACK}:{self._api_port}",
            "service-account-key-file": self._token_signer.certificate,
            "service-account-signing-key-file": self._token_signer.key,
            "service-cluster-ip-range": SERVICE_RANGE,
            "authorization-mode": "Node,RBAC",
            "enable-admission-plugins": "NodeRestriction",
            "disable-admission-plugins": self._without_admission,
            "allow-privileged": "true",
            "enable-bootstrap-token-auth": "true",
        }
        self._api_server_flags = flags
        self.start_api_server()

    def start_api_server(self) -> None:
        """Start the API server again after a stop, with the same address and data."""
        self._api_server = self._run("kube-apiserver", self._api_server_flags)
        self._api_server.wait_until(partial(self._healthy, self._api, "/readyz"))

    def stop_api_server(self) -> None:
        """Kill the API server, as in a failure; the data in etcd stays."""
        self._api_server.kill()
        self._servers.remove(self._api_server)

    def _start_scheduler(self, port: int) -> None:
        flags = self._component_flags("kube-scheduler", port)
        scheduler = self._run("kube-scheduler", flags)
        scheduler.wait_until(partial(self._healthy, (LOOPBACK, port), "/readyz"))

    def _start_controller_manager(self, port: int) -> None:
        flags = self._component_flags("kube-controller-manager", port) | {
            "use-service-account-credentials": "true",
            "controllers": "*,bootstrapsigner,tokencleaner",
            "root-ca-file": self._authority.certificate,
            "service-account-private-key-file": self._token_signer.key,
            "cluster-signing-cert-file": self._authority.certificate,
            "cluster-signing-key-file": self._authority.key,
            "cluster-signing-duration": self._signing_duration,
            "node-monitor-grace-period": self._node_silence,
            "allocate-node-cidrs": "true",
            "cluster-cidr": POD_RANGE,
            "service-cluster-ip-range": SERVICE_RANGE,
        }
        manager = self._run("kube-controller-manager", flags)
        manager.wait_until(partial(self._healthy, (LOOPBACK, port), "/healthz"))

    def _component_flags(self, name: str, port: int) -> dict[str, object]:
        kubeconfig = self.kubeconfig_for(f"system:{name}")
        return {
            "kubeconfig": kubeconfig,
            "authentication-kubeconfig": kubeconfig,
            "authorization-kubeconfig": kubeconfig,
            "bind-address": LOOPBACK,
            "secure-port": port,
            "tls-cert-file": self._serving.certificate,
            "tls-private-key-file": self._serving.key,
            "leader-elect": "false",
        }

    def _run(self, name: str, flags: dict[str, object]) -> ServerProcess:
        command = [
            *self._entering,
            str(self.binaries / name),
            *(f"--{key}={value}" for key, value in flags.items()),
        ]
        server = ServerProcess(name, command, self.directory / f"{name}.log")
        # A graceful stop waits for watchers, which are about to exit as well.
        self._running.callback(server.kill if name == "kube-apiserver" else server.stop)
        self._servers.append(server)
        return server

    @property
    def _api(self) -> tuple[str, int]:
        return self.address, self._api_port

    @property
    def _entering(self) -> list[str]:
        return ["nsenter", f"--net={self._network}"] if self._network else []

    def _inside(self, function: Callable[[], _T]) -> _T:
        return run_in_netns(self._network, function) if self._network else function()

    def _healthy(self, server: tuple[str, int], path: str) -> bool:
        try:
            send = partial(_request, server, self._trust, "GET", path, None)
            return self._inside(send).status == http.HTTPStatus.OK
        except OSError:
            return False

    def _write_kubeconfig(self, name: str, client: Certificate) -> Path:
        path = self.directory / f"{name}.kubeconfig"
        cluster = {
            "server": self.server,
            "certificate-authority-data": _encoded(self._authority.certificate),
        }
        user = {
            "client-certificate-data": _encoded(client.certificate),
            "client-key-data": _encoded(client.key),
        }
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "e2e", "cluster": cluster}],
            "users": [{"name": name, "user": user}],
            "contexts": [{"name": "e2e", "context": {"cluster": "e2e", "user": name}}],
            "current-context": "e2e",
        }
        path.write_text(json.dumps(document, indent=2))
        path.chmod(0o600)
        return path


def _request(
    server: tuple[str, int], trust: ssl.SSLContext, method: str, path: str, body: object
) -> Answer:
    connection = http.client.HTTPSConnection(*server, context=trust, timeout=REQUEST_LIMIT)
    try:
        payload = None if body is None else json.dumps(body)
        connection.request(method, path, payload, {"Content-Type": "application/json"})
        response = connection.getresponse()
        text = response.read().decode()
    finally:
        connection.close()
    is_json = response.headers.get_content_type() == "application/json"
    return Answer(response.status, json.loads(text) if is_json else text)


def _listens(port: int) -> bool:
    try:
        socket.create_connection((LOOPBACK, port), timeout=1).close()
    except OSError:
        return False
    return True


def free_ports(count: int) -> list[int]:
    """Return ports that no other test process uses, even while a server is down."""
    parts = len(BELOW_EPHEMERAL) // PORTS_OF_A_PROCESS
    first = os.getpid() % parts * PORTS_OF_A_PROCESS
    own = BELOW_EPHEMERAL[first : first + PORTS_OF_A_PROCESS]
    with ExitStack() as held:
        ports: list[int] = []
        for port in random.sample(own, len(own)):
            listener = held.enter_context(socket.socket())
            try:
                listener.bind((LOOPBACK, port))
            except OSError:
                continue
            ports.append(port)
            if len(ports) == count:
                return ports
    raise OSError(f"fewer than {count} free ports on {LOOPBACK}")


def _list(*objects: dict[str, Any]) -> str:
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})


def _encoded(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()
