"""The kubelet on an instance: its command line, its configuration and what it joins with.

Flags are those that current kubelets have. The label with the build is the kubelet's own work.
"""

from __future__ import annotations

import base64

import yaml

from winpod.cluster.instance_settings import InstanceSettings
from winpod.instances import paths
from winpod.instances.rules.stopping import KUBELET
from winpod.instances.software.joining import Joining

RESERVED = {"cpu": "500m", "memory": "2Gi", "ephemeral-storage": "1Gi"}
TAINT = {"key": "os", "value": "Windows", "effect": "NoSchedule"}


def kubelet_command(
    settings: InstanceSettings, joining: Joining, *, rotates: bool
) -> tuple[str, ...]:
    """Behind the program that writes its log: a service has no output of its own."""
    flags = {
        "config": paths.KUBELET_CONFIG,
        "bootstrap-kubeconfig": paths.BOOTSTRAP_KUBECONFIG,
        "kubeconfig": paths.KUBECONFIG,
        "cert-dir": paths.CERTIFICATES,
        "container-runtime-endpoint": paths.RUNTIME_PIPE,
        "node-ip": joining.ip,
        "node-labels": ",".join(f"{name}={value}" for name, value in settings.labels),
        "cloud-provider": settings.cloud_provider,
        "windows-priorityclass": "ABOVE_NORMAL_PRIORITY_CLASS",
        "v": "2",
    }
    return (
        *logged(KUBELET, paths.KUBELET_LOGS, rotates=rotates),
        "--windows-service",
        *(f"--{flag}={value}" for flag, value in flags.items() if value),
    )


def logged(name: str, logs: str, *, rotates: bool) -> tuple[str, ...]:
    """`rotates` is whether the runner knows how to: an older one ends over a flag it has not."""
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


def bootstrap_kubeconfig(joining: Joining) -> str:
    """It lets a kubelet in once, to ask for a certificate of its own."""
    authority = base64.b64encode(joining.authority.encode()).decode()
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {
                "name": "cluster",
                "cluster": {
                    "server": joining.api_server,
                    "certificate-authority-data": authority,
                },
            }
        ],
        "users": [{"name": "bootstrap", "user": {"token": joining.token}}],
        "contexts": [{"name": "bootstrap", "context": {"cluster": "cluster", "user": "bootstrap"}}],
        "current-context": "bootstrap",
    }
    return yaml.safe_dump(document, sort_keys=False)
