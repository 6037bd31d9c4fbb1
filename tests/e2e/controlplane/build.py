"""Build a Kubernetes control plane and etcd from the Go module proxy, once per pinned version.

`python -m tests.e2e.controlplane` builds missing binaries and prints their directory.
"""

import re
from pathlib import Path

from tests.support.e2e import go_build
from tests.support.e2e.go_build import BuildFailed, GoModule, Say

__all__ = ["BuildFailed", "Say", "binaries", "kubernetes_version"]

SOURCE = Path(__file__).parent
PACKAGES = {
    "etcd": "./etcd",
    "kube-apiserver": "k8s.io/kubernetes/cmd/kube-apiserver",
    "kube-scheduler": "k8s.io/kubernetes/cmd/kube-scheduler",
    "kube-controller-manager": "k8s.io/kubernetes/cmd/kube-controller-manager",
    "kube-proxy": "k8s.io/kubernetes/cmd/kube-proxy",
    "kubectl": "k8s.io/kubernetes/cmd/kubectl",
}


def binaries(say: Say = print) -> Path:
    """Return the directory with every binary of PACKAGES, building them first if absent."""
    version = kubernetes_version()
    module = GoModule(
        name="controlplane",
        title=f"Kubernetes {version} and etcd",
        source=SOURCE,
        files=("go.mod", "go.sum", "etcd/main.go"),
        packages=PACKAGES,
        linker_flags=_linker_flags(version),
    )
    return go_build.binaries(module, say)


def kubernetes_version() -> str:
    """Return the pinned version of Kubernetes, such as v1.36.4."""
    match = re.search(r"^\s*k8s\.io/kubernetes (v\S+)", (SOURCE / "go.mod").read_text(), re.M)
    if match is None:
        raise BuildFailed(f"{SOURCE / 'go.mod'} does not require k8s.io/kubernetes")
    return match[1]


def _linker_flags(version: str) -> str:
    major, minor, _ = version.removeprefix("v").split(".", 2)
    values = {"gitVersion": version, "gitMajor": major, "gitMinor": minor}
    settings = [f"-X k8s.io/component-base/version.{key}={value}" for key, value in values.items()]
    return " ".join(["-s", "-w", *settings])
