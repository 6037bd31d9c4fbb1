"""Helm, built from the Go module proxy, and the manifests it renders from the operator's chart."""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from tests.e2e.controlplane.build import kubernetes_version
from tests.support.e2e import go_build
from tests.support.e2e.go_build import GoModule, Say

from winpod.instances.cluster.resource import CRD as INSTANCES
from winpod.operator.upgrade.resource import CRD as UPGRADES

SOURCE = Path(__file__).parent
DEPLOY = SOURCE.parents[2] / "deploy"
CHART = DEPLOY / "chart" / "winpod-operator"
MANIFESTS = DEPLOY / "manifests"
CRDS = {
    CHART / "crds" / f"{crd['spec']['names']['plural']}.yaml": crd for crd in (UPGRADES, INSTANCES)
}
RELEASE, NAMESPACE = "winpod-operator", "winpod-system"
_CRDS = "00-crds.yaml"
_NAMESPACE_FILE = "01-namespace.yaml"


class HelmFailed(Exception):
    """helm exited with an error; the message is its output."""


def program(say: Say = print) -> Path:
    """Return the program, building it first if absent."""
    module = GoModule(
        name="helm",
        title="helm",
        source=SOURCE,
        files=("go.mod", "go.sum"),
        packages={"helm": "helm.sh/helm/v3/cmd/helm"},
    )
    return go_build.binaries(module, say) / "helm"


def helm(home: Path, *arguments: str) -> str:
    """Run `helm ARGUMENTS` and return its output; all its files are in `home`."""
    places = {name: str(home) for name in ("HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME")}
    done = subprocess.run(
        [str(program()), *arguments],
        env={**os.environ, **places, "HOME": str(home)},
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        raise HelmFailed(f"helm {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout


def rendered(home: Path, *options: str) -> str:
    """Render the chart's objects, without its CRDs, with these options."""
    where = ("--namespace", NAMESPACE, "--kube-version", kubernetes_version())
    return helm(home, "template", RELEASE, str(CHART), *where, *options)


def plain_manifests(home: Path) -> dict[str, str]:
    """Return the files of `deploy/manifests` by name, in the order of their names."""
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    metadata = {"name": NAMESPACE, "labels": labels}
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}
    crds = "---\n".join(file.read_text() for file in CRDS)
    files = {_CRDS: crds, _NAMESPACE_FILE: as_yaml(namespace)}
    for document in rendered(home).split("\n---\n"):
        source, _, text = document.removeprefix("---\n").partition("\n")
        name = f"10-{Path(source).name}"
        files[name] = f"{files[name]}\n---\n{text}" if name in files else text
    return {name: _HEADING + text.rstrip("\n") + "\n" for name, text in sorted(files.items())}


_HEADING = "# Generated from deploy/chart by `make manifests`.\n"


def as_yaml(obj: Mapping[str, Any]) -> str:
    return yaml.safe_dump(obj, sort_keys=False, width=100)


def objects(text: str) -> list[dict[str, Any]]:
    return [document for document in yaml.safe_load_all(text) if document]
