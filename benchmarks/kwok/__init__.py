"""KWOK, the fake kubelet of Kubernetes' own scale tests, built from the Go module proxy."""

import subprocess
from pathlib import Path

from tests.support.e2e import go_build
from tests.support.e2e.go_build import GoModule

_MODULE = GoModule(
    name="kwok",
    title="KWOK",
    source=Path(__file__).parent,
    files=("go.mod", "go.sum"),
    packages={"kwok": "sigs.k8s.io/kwok/cmd/kwok"},
)


_STAGES = (
    "node/fast/node-initialize",
    "node/heartbeat-with-lease/node-heartbeat-with-lease",
    "pod/fast/pod-ready",
    "pod/fast/pod-complete",
    "pod/fast/pod-delete",
)
"""Stages of its nodes and pods, from its own installation manifests."""


def kwok_command() -> list[str]:
    program = go_build.binaries(_MODULE) / "kwok"
    listed = ["go", "list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/kwok"]
    folder = subprocess.check_output(listed, cwd=_MODULE.source, text=True).strip()
    stages = (f"{folder}/kustomize/stage/{stage}.yaml" for stage in _STAGES)
    return [str(program), *(f"--config={stage}" for stage in stages)]
