"""The operator's chart and manifests: generated from one source, accepted by an API server."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.controlplane import ControlPlane
from tests.e2e.helm import (
    CHART,
    CRDS,
    MANIFESTS,
    NAMESPACE,
    RELEASE,
    HelmFailed,
    as_yaml,
    helm,
    objects,
    plain_manifests,
    rendered,
)
from tests.support.e2e.node_process import found
from tests.support.e2e.objects import BUILD_2019, add_nodes, windows_node
from tests.support.e2e.operator_process import OperatorProcess, classes
from tests.support.e2e.waiting import eventually

from winpod import __version__
from winpod.labels import API_GROUP, OPERATOR_CONFIG_MAP
from winpod.operator.settings import CONFIG_KEY, OperatorSettings, read_settings
from winpod.operator.upgrade.resource import PLURAL

VALUES = {
    "defaults": (),
    "bare": (
        "--set",
        "replicas=1,webhook.enabled=false,rbac.pullSecrets=false,rbac.upgrades=false",
    ),
    "some pull secrets": ("--set", "rbac.pullSecretNamespaces={kube-public,kube-node-lease}"),
    "own exemptions": ("--set", "settings.admission.exemptNamespaces={apps,kube-system}"),
    "everything": (
        *("--set", "rbac.page=true,priorityClassName=system-cluster-critical"),
        *("--set", "image.pullSecrets[0].name=pull,podAnnotations.a=b"),
        *("--set", "tolerations[0].operator=Exists,settings.page.authenticated=true"),
        *("--set", "webhook.clientAuthority=api-servers,webhook.networkPolicy.enabled=true"),
        *("--set", "webhook.networkPolicy.from[0].ipBlock.cidr=192.0.2.0/28"),
        *("--set", "instances.enabled=true,instances.payload.image.reference=payload:1"),
        *("--set", "settings.instances.machineNamespace=winpod-system"),
    ),
}


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    directory = tmp_path_factory.mktemp("plane")
    with ControlPlane(directory, scheduler=False, controller_manager=False) as running:
        yield running


def named(listed: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    return next(obj for obj in listed if obj["kind"] == kind)


def test_manifests_are_the_chart_rendered_with_defaults(tmp_path: Path) -> None:
    """`make manifests` generates them."""
    written = {file.name: file.read_text() for file in sorted(MANIFESTS.glob("*.yaml"))}
    assert written == plain_manifests(tmp_path)
    for file, crd in CRDS.items():
        assert file.read_text() == as_yaml(crd)


def test_chart_passes_helm_lint_and_has_the_version_of_winpod(
    tmp_path: Path,
) -> None:
    assert "0 chart(s) failed" in helm(tmp_path, "lint", "--strict", str(CHART))
    assert objects((CHART / "Chart.yaml").read_text())[0]["appVersion"] == __version__


def test_manifests_pass_strict_validation(plane: ControlPlane) -> None:
    apply = ("apply", "--server-side", "--validate=strict", "-f", str(MANIFESTS))
    output = plane.kubectl(*apply)
    files = sorted(MANIFESTS.glob("*.yaml"))
    assert output.count("serverside-applied") == sum(len(objects(f.read_text())) for f in files)
    assert plane.kubectl(*apply).count("serverside-applied")


@pytest.mark.parametrize("values", VALUES)
def test_chart_passes_strict_validation_with_any_values(
    values: str, plane: ControlPlane, tmp_path: Path
) -> None:
    text = rendered(tmp_path, *VALUES[values])
    plane.kubectl("apply", "-f", str(MANIFESTS / "01-namespace.yaml"))
    apply = ("apply", "--server-side", "--force-conflicts", "--dry-run=server")
    plane.kubectl(*apply, "--validate=strict", "-f", "-", stdin=text)
    settings = named(objects(text), "ConfigMap")
    assert settings["metadata"]["name"] == OPERATOR_CONFIG_MAP
    assert isinstance(read_settings(settings["data"][CONFIG_KEY]), OperatorSettings)


def test_service_monitor_selects_the_metrics_port(tmp_path: Path) -> None:
    listed = objects(rendered(tmp_path, "--set", "serviceMonitor.enabled=true"))
    (endpoint,) = named(listed, "ServiceMonitor")["spec"]["endpoints"]
    ports = {port["name"] for port in named(listed, "Service")["spec"]["ports"]}
    assert endpoint["path"] == "/metrics"
    assert endpoint["port"] in ports


def test_webhooks_fail_open_and_skip_exempt_namespaces(
    tmp_path: Path,
) -> None:
    exempt = ("--set", "settings.admission.exemptNamespaces={infra}")
    for obj in objects(rendered(tmp_path, *exempt)):
        for webhook in obj.get("webhooks", ()):
            assert webhook["failurePolicy"] == "Ignore"
            assert webhook["timeoutSeconds"] <= 10
            (rule,) = webhook["namespaceSelector"]["matchExpressions"]
            assert rule["operator"] == "NotIn"
            assert rule["values"] == ["infra", "winpod-system"]


def test_network_policy_restricts_the_webhook_and_not_the_metrics(
    tmp_path: Path,
) -> None:
    chosen = "webhook.networkPolicy.enabled=true"
    with pytest.raises(HelmFailed, match="set it to the addresses of the API servers"):
        rendered(tmp_path, "--set", chosen)
    cidr = "webhook.networkPolicy.from[0].ipBlock.cidr=192.0.2.0/28"
    listed = objects(rendered(tmp_path, "--set", f"{chosen},{cidr}"))
    policy = named(listed, "NetworkPolicy")["spec"]
    assert policy["ingress"] == [
        {"ports": [{"port": "http"}]},
        {"ports": [{"port": "webhook"}], "from": [{"ipBlock": {"cidr": "192.0.2.0/28"}}]},
    ]
    pods = named(listed, "Deployment")["spec"]["template"]
    assert policy["podSelector"]["matchLabels"].items() <= pods["metadata"]["labels"].items()


def test_webhook_client_ca_is_mounted_where_it_is_read(
    tmp_path: Path,
) -> None:
    listed = objects(rendered(tmp_path, "--set", "webhook.clientAuthority=api-servers"))
    pod = named(listed, "Deployment")["spec"]["template"]["spec"]
    (operator,) = pod["containers"]
    mounts = {mount["name"]: mount["mountPath"] for mount in operator["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert volumes["webhook-clients"]["configMap"] == {"name": "api-servers"}
    assert f"--webhook-client-ca={mounts['webhook-clients']}/ca.crt" in operator["args"]


def test_instances_require_a_payload_which_is_mounted_where_it_is_read(tmp_path: Path) -> None:
    chosen = "instances.enabled=true"
    with pytest.raises(HelmFailed, match="set it to the volume with the files to install"):
        rendered(tmp_path, "--set", chosen)
    volume = "instances.payload.persistentVolumeClaim.claimName=files"
    pod = named(objects(rendered(tmp_path, "--set", f"{chosen},{volume}")), "Deployment")["spec"]
    spec = pod["template"]["spec"]
    (operator,) = spec["containers"]
    (mount,) = [mount for mount in operator["volumeMounts"] if mount["name"] == "payload"]
    assert f"--payload={mount['mountPath']}" in operator["args"]
    assert {"name": "payload", "persistentVolumeClaim": {"claimName": "files"}} in spec["volumes"]


@contextmanager
def permissions(plane: ControlPlane, home: Path, *options: str) -> Iterator[None]:
    """Grant the operator's permissions under these chart options, and revoke them afterwards."""
    kinds = ("ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")
    listed = [obj for obj in objects(rendered(home, *options)) if obj["kind"] in kinds]
    plane.kubectl("apply", "-f", str(MANIFESTS / "01-namespace.yaml"))
    plane.apply(*listed)
    try:
        yield
    finally:
        text = "---\n".join(map(as_yaml, listed))
        plane.kubectl("delete", "--ignore-not-found", "-f", "-", stdin=text)


def may(plane: ControlPlane, verb: str, namespace: str) -> bool:
    """Whether the operator may use this verb on Secrets in the namespace."""
    account = f"system:serviceaccount:{NAMESPACE}:winpod-operator"
    command = ("auth", "can-i", verb, "secrets", "-n", namespace, "--as", account)
    result = subprocess.run(plane.kubectl_command(*command), capture_output=True, text=True)
    assert result.stdout.strip() in ("yes", "no"), result.stderr
    return result.stdout.strip() == "yes"


@pytest.mark.parametrize(
    ("chosen", "readable"),
    [
        ("rbac.pullSecrets=true", {"default", "kube-system", "kube-public"}),
        ("rbac.pullSecretNamespaces={default}", {"default"}),
        ("rbac.pullSecretNamespaces={default},rbac.pullSecrets=false", set()),
        ("rbac.pullSecrets=false", set()),
    ],
)
def test_operator_may_read_configured_secrets_and_only_create_in_kube_system(
    chosen: str, readable: set[str], plane: ControlPlane, tmp_path: Path
) -> None:
    instances = "instances.enabled=true,instances.payload.image.reference=payload:1"
    with permissions(plane, tmp_path, "--set", instances, "--set", chosen):
        eventually(lambda: may(plane, "create", "kube-system"))
        eventually(
            lambda: {
                namespace
                for namespace in ("default", "kube-system", "kube-public")
                if may(plane, "get", namespace)
            },
            lambda found: found == readable,
        )
        for verb in ("list", "watch", "update", "patch", "delete"):
            assert not may(plane, verb, "kube-system"), verb


def test_operator_without_webhook_has_the_permissions_it_needs(
    plane: ControlPlane, tmp_path: Path
) -> None:
    pod = named(objects(rendered(tmp_path, *VALUES["bare"])), "Deployment")["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    options = [option for option in container["args"] if "webhook" in option]
    assert options == ["--no-webhook"]
    operator = OperatorProcess(plane, tmp_path, "bare", *options)
    with permissions(plane, tmp_path, *VALUES["bare"]):
        eventually(lambda: not may(plane, "create", NAMESPACE))
        with operator:
            add_nodes(plane, windows_node("old", BUILD_2019))
            eventually(lambda: "windows-2019" in classes(plane))
            eventually(lambda: operator.answer("/readyz") == (200, "leader\n"))
            problems = [line for line in operator.lines() if line["level"] != "info"]
            assert not problems
            assert not [line for line in operator.lines() if "webhook_port" in line]
            assert not found(plane, f"/api/v1/namespaces/{NAMESPACE}/secrets/winpod-webhook")
    plane.kubectl("delete", "node/old", "runtimeclass/windows-2019")


def test_helm_installs_upgrades_and_uninstalls_all_but_the_upgrade_crd(
    plane: ControlPlane, tmp_path: Path
) -> None:
    for file in MANIFESTS.glob("10-*.yaml"):
        plane.kubectl("delete", "--ignore-not-found", "-f", str(file))
    where = ("--namespace", NAMESPACE, "--kubeconfig", str(plane.kubeconfig))
    helm(tmp_path, "install", RELEASE, str(CHART), *where, "--create-namespace")
    helm(tmp_path, "upgrade", RELEASE, str(CHART), *where, "--set", "replicas=3")
    path = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/winpod-operator"
    assert found(plane, path)["spec"]["replicas"] == 3
    helm(tmp_path, "uninstall", RELEASE, *where)
    assert not found(plane, path)
    assert found(
        plane, f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{PLURAL}.{API_GROUP}"
    )
