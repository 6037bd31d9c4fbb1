"""The kubelet of an instance: command line, configuration and bootstrap kubeconfig.

Flags are those of current kubelets. The kubelet itself sets the label with the Windows build.
"""

from __future__ import annotations

import base64
import ipaddress
from dataclasses import dataclass, field

import yaml

from winpod.instances import paths
from winpod.instances.planner.state import KUBELET
from winpod.labels import WINDOWS_TAINT_KEY
from winpod.operator.instance_settings import InstanceSettings


@dataclass(frozen=True, slots=True)
class JoinConfig:
    """How an instance joins a cluster, and the pod CIDR the cluster has assigned since.

    `authority` is the cluster CA as PEM. `address` is where the instance is reached. `token` is the
    bootstrap token, not needed once joined. `subnet` is the pod CIDR, which a cluster assigns only
    to an existing Node.
    """

    api_server: str
    authority: str
    node: str
    address: str = ""
    token: str = field(default="", repr=False)
    subnet: str = ""

    @property
    def ip(self) -> str:
        """The address if it is an IP address and not a name, else empty."""
        try:
            return str(ipaddress.ip_address(self.address))
        except ValueError:
            return ""


RESERVED = {"cpu": "500m", "memory": "2Gi", "ephemeral-storage": "1Gi"}
TAINT = {"key": WINDOWS_TAINT_KEY, "value": "Windows", "effect": "NoSchedule"}


def kubelet_command(
    settings: InstanceSettings, join: JoinConfig, *, rotates: bool
) -> tuple[str, ...]:
    """Return the command, run by kube-log-runner: a Windows service has no output of its own."""
    flags = {
        "config": paths.KUBELET_CONFIG,
        "bootstrap-kubeconfig": paths.BOOTSTRAP_KUBECONFIG,
        "kubeconfig": paths.KUBECONFIG,
        "cert-dir": paths.CERTIFICATES,
        "container-runtime-endpoint": paths.RUNTIME_PIPE,
        "node-ip": join.ip,
        "node-labels": ",".join(f"{name}={value}" for name, value in settings.labels),
        "cloud-provider": settings.cloud_provider,
        "windows-priorityclass": "ABOVE_NORMAL_PRIORITY_CLASS",
        "v": "2",
    }
    return (
        *with_log_runner(KUBELET, paths.KUBELET_LOGS, rotates=rotates),
        "--windows-service",
        *(f"--{flag}={value}" for flag, value in flags.items() if value),
    )


def with_log_runner(name: str, logs: str, *, rotates: bool) -> tuple[str, ...]:
    """Return the log runner's command.

    `rotates` is whether it supports rotation; an older one exits on an unknown flag.
    """
    runner, program = rf"{paths.BIN}\kube-log-runner.exe", rf"{paths.BIN}\{name}.exe"
    limits = ("-log-file-size=100Mi", "-log-file-age=168h") if rotates else ()
    return (runner, rf"-log-file={logs}\{name}.log", *limits, program)


def kubelet_config(settings: InstanceSettings) -> str:
    document = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": paths.KUBELET_CA},
        },
        "authorization": {"mode": "Webhook"},
        "cgroupsPerQOS": False,
        "enforceNodeAllocatable": [],
        "clusterDNS": list(settings.dns_servers),
        "clusterDomain": settings.dns_domain,
        "registerWithTaints": [TAINT],
        "resolvConf": "",
        "rotateCertificates": True,
        "serverTLSBootstrap": True,
        "systemReserved": RESERVED,
    }
    return yaml.safe_dump(document, sort_keys=False)


def bootstrap_kubeconfig(join: JoinConfig) -> str:
    """Return the kubeconfig with which a kubelet requests its client certificate."""
    authority = base64.b64encode(join.authority.encode()).decode()
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {
                "name": "cluster",
                "cluster": {
                    "server": join.api_server,
                    "certificate-authority-data": authority,
                },
            }
        ],
        "users": [{"name": "bootstrap", "user": {"token": join.token}}],
        "contexts": [{"name": "bootstrap", "context": {"cluster": "cluster", "user": "bootstrap"}}],
        "current-context": "bootstrap",
    }
    return yaml.safe_dump(document, sort_keys=False)
