"""Control plane on the host for the guest to join, in a network namespace with a tap for QEMU."""

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.e2e.controlplane import IN_TIME, ControlPlane
from tests.fresh_machine.run import Handler
from tests.support.e2e.machines import BRIDGE, SUBNET, machines
from tests.support.e2e.node_process import is_ready, windows_pod
from tests.support.e2e.waiting import eventually

NODE = "win-guest"
ADDRESS = f"{SUBNET}.50"
TAP = "guest"
_TIMEOUT = 300.0


class Cluster:
    """Cluster; the namespace is created on entering, the control plane on request of the guest."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self._folder.mkdir()
        with ExitStack() as starting:
            made = starting.enter_context(machines(self._folder / "machines", "control"))
            self._machine = made["control"]
            self._machine.run("ip", "tuntap", "add", "dev", TAP, "mode", "tap")
            self._machine.run("ip", "link", "set", TAP, "master", BRIDGE, "up")
            self._stack = starting.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    @property
    def machine_options(self) -> dict[str, Any]:
        return {"tap": TAP, "prefix": self._machine.entering}

    @property
    def handlers(self) -> Mapping[str, Handler]:
        return {"control-plane": self._start, "run-pod": self._run_pod}

    def _start(self, _: Mapping[str, Any]) -> dict[str, Any]:
        """Start the control plane and return what the node needs to join it."""
        machine = self._machine
        self._plane = self._stack.enter_context(
            ControlPlane(self._folder / "plane", network=machine.network, address=machine.address)
        )
        plane = self._plane
        kubeconfig = plane.kubeconfig_for(f"system:node:{NODE}", "system:nodes")
        serving = plane.serving_certificate(f"{NODE}-serving", f"IP:{ADDRESS}")
        files = {
            "kubeconfig": kubeconfig.read_text(),
            "tls.crt": serving.certificate.read_text(),
            "tls.key": serving.key.read_text(),
        }
        return {"node": NODE, "address": ADDRESS, "files": files}

    def _run_pod(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Run a pod on the node, and return the output of kubectl."""
        plane = self._plane
        eventually(lambda: is_ready(plane, NODE), within=_TIMEOUT)
        plane.create_namespace("guest")
        pod = windows_pod("guest", "waits", request["image"], *request["command"], nodeName=NODE)
        plane.apply(pod)
        plane.kubectl("wait", "-n", "guest", "--for=condition=Ready", IN_TIME, "pod/waits")
        logs = plane.kubectl("logs", "-n", "guest", "waits")
        executed = plane.kubectl("exec", "-n", "guest", "waits", "--", "cmd", "/c", "ver")
        plane.kubectl("delete", "pod", "-n", "guest", "waits", IN_TIME)
        return {"logs": logs, "exec": executed}
