"""Admission on a real API server: pods, workloads, registries of all kinds, a webhook that dies.

Pods have no RuntimeClass unless a test sets one. The Windows nodes are simulated.
"""

import asyncio
import base64
import hashlib
import http.client
import http.server
import json
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.controlplane import ControlPlane
from tests.support.e2e.node_process import NodeProcess, is_ready, phase
from tests.support.e2e.node_process import pod as found_pod
from tests.support.e2e.objects import (
    BUILD_2019,
    BUILD_2025,
    HYPERVISOR,
    PROCESS,
    add_nodes,
    bound_to,
    linux_node,
    pod,
    pods_path,
    runtime_class,
    windows_node,
)
from tests.support.e2e.operator_process import (
    NAMESPACE,
    OperatorProcess,
    ask_about_pods,
    classes,
    configure,
    use_settings,
)
from tests.support.e2e.waiting import eventually
from tests.support.registries import auths, basic_registry, home, log_in, registry

from winpod.cli.main import app
from winpod.k8s.client import ApiClient
from winpod.k8s.kubeconfig import read_kubeconfig
from winpod.operator.admission.certificates import shared_certificates

__all__ = ["basic_registry", "home", "registry"]

BUDGET = 25.0
SHORT_BUDGET = 2.0
pytestmark = pytest.mark.usefixtures("operator")
SETTINGS = f"classes: {{removeAfterSeconds: 0}}\nadmission: {{budgetSeconds: {BUDGET}}}"
CLASS_PATH = "/apis/node.k8s.io/v1/runtimeclasses"
BUILD = "node.kubernetes.io/windows-build"


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane with simulated Windows nodes of two builds and a Linux Node object."""
    directory = tmp_path_factory.mktemp("plane")
    with ControlPlane(directory, node_silence="1h") as running:
        running.create_namespace(NAMESPACE)
        running.create_namespace("apps")
        configure(running, SETTINGS)
        nodes_file = directory / "nodes.json"
        nodes = [{"name": f"win-{b}", "build": b, "simulated": True} for b in ("2019", "2022")]
        nodes_file.write_text(json.dumps({"nodes": nodes}))
        options = ("--kubeconfig", str(running.kubeconfig), "--nodes", str(nodes_file))
        with NodeProcess(directory / "nodes", *options):
            for node in nodes:
                eventually(lambda name=node["name"]: is_ready(running, name))  # type: ignore[misc]
            add_nodes(running, linux_node("linux"))
            yield running


@pytest.fixture(scope="module")
def operator(
    plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[OperatorProcess]:
    with OperatorProcess(plane, tmp_path_factory.mktemp("operator"), "one") as process:
        ask_about_pods(plane, process.webhook_port)
        for release in ("2019", "2022"):
            eventually(partial(_is_webhook_ready, plane, f"ltsc{release}"))
        yield process


@pytest.fixture(autouse=True)
def _clean_up(plane: ControlPlane, operator: OperatorProcess) -> Iterator[None]:
    yield
    use_settings(plane, operator, SETTINGS)
    options = ("-n", "apps", "--all", "--force", "--grace-period=0", "--wait=false")
    workloads = "deployments,replicasets,statefulsets,daemonsets,jobs,cronjobs"
    plane.kubectl("delete", f"{workloads},pods", *options)


def _is_webhook_ready(plane: ControlPlane, tag: str) -> bool:
    """Whether the API server calls both webhooks and the operator knows the tag's class."""
    with unused_address() as address:
        manifest = app_pod("x", f"{address}/app:{tag}", **WINDOWS)
        created = create(plane, manifest, "--dry-run=server")
    return bool(created.object and created.class_name and created.warnings)


@dataclass
class Created:
    """The result of a create: the object or a rejection, and the warnings."""

    object: dict[str, Any]
    warnings: list[str]
    rejection: str

    @property
    def class_name(self) -> str:
        return str(self.object["spec"].get("runtimeClassName", ""))


def create(plane: ControlPlane, obj: dict[str, Any], *options: str) -> Created:
    command = plane.kubectl_command("create", "-f", "-", "-o", "json", *options)
    result = subprocess.run(command, input=json.dumps(obj), capture_output=True, text=True)
    lines = result.stderr.splitlines()
    warnings = [line.removeprefix("Warning: ") for line in lines if line.startswith("Warning: ")]
    if result.returncode:
        return Created({}, warnings, result.stderr)
    return Created(json.loads(result.stdout), warnings, "")


def app_pod(name: str, *images: str, **spec: Any) -> dict[str, Any]:
    containers = [{"name": f"c{i}", "image": image} for i, image in enumerate(images)]
    return pod(name, "apps", {"containers": containers, "terminationGracePeriodSeconds": 0, **spec})


WINDOWS: dict[str, Any] = {"nodeSelector": {"kubernetes.io/os": "windows"}}


def push(home: Path, registry: str, name: str, *platforms: str) -> str:
    """Pack and push an image with `winpod image pack`; return its reference."""
    content = home / "content"
    content.mkdir(exist_ok=True)
    (content / "app.txt").write_text("app")
    builds = [option for build in platforms for option in ("--os-version", build)]
    reference = f"{registry}/{name}"
    app(["image", "pack", str(content), "-t", reference, *builds], standalone_mode=False)
    return reference


def test_story_1_pod_runs_on_the_build_of_its_image(
    plane: ControlPlane, home: Path, registry: str
) -> None:
    for release in ("2019", "2022"):
        image = push(home, registry, f"story-1:{release}", release)
        created = create(plane, app_pod(f"story-1-{release}", image))
        assert (created.class_name, created.warnings) == (f"windows-{release}", [])
        spec = created.object["spec"]
        assert BUILD in spec["nodeSelector"], "the API server merges the scheduling of the class"
    for release in ("2019", "2022"):
        eventually(lambda name=f"story-1-{release}": phase(plane, "apps", name) == "Running")  # type: ignore[misc]
        node = found_pod(plane, "apps", f"story-1-{release}")["spec"]["nodeName"]
        assert node == f"win-{release}"


def test_story_2_older_image_gets_hypervisor_isolation_on_a_newer_node(
    plane: ControlPlane, home: Path, registry: str
) -> None:
    image = push(home, registry, "story-2:1", "2019")
    guest = f"{HYPERVISOR}-17763"
    add_nodes(plane, windows_node("newest", BUILD_2025, handlers=(PROCESS, HYPERVISOR, guest)))
    plane.kubectl("cordon", "win-2019")
    try:
        eventually(lambda: "windows-2019-hyperv" in classes(plane))
        eventually(
            lambda: (
                create(plane, app_pod("x", image), "--dry-run=server").class_name
                == "windows-2019-hyperv"
            )
        )
        created = create(plane, app_pod("story-2", image))
        assert created.object["spec"]["overhead"] == {"memory": "200Mi"}
        assert bound_to(plane, "apps", "story-2") == "newest"
    finally:
        plane.kubectl("uncordon", "win-2019")
        plane.kubectl("delete", "pod", "story-2", "-n", "apps", "--force", "--grace-period=0")
        plane.kubectl("delete", "node", "newest")
        eventually(lambda: classes(plane).keys() == {"windows-2019", "windows-2022"})


def test_story_3_image_of_several_builds_gets_the_newest_or_requested_one(
    plane: ControlPlane, home: Path, registry: str
) -> None:
    image = push(home, registry, "story-3:1", "2019", "2022")
    assert create(plane, app_pod("newest", image)).class_name == "windows-2022"
    selector = {"nodeSelector": {BUILD: BUILD_2019}}
    assert create(plane, app_pod("asked", image, **selector)).class_name == "windows-2019"
    named = create(plane, app_pod("named", image, runtimeClassName="windows-2019"))
    assert (named.class_name, named.warnings) == ("windows-2019", [])
    for name, node in (("newest", "win-2022"), ("asked", "win-2019"), ("named", "win-2019")):
        assert bound_to(plane, "apps", name) == node


def test_index_without_a_matching_build_is_rejected_with_a_reason_per_node(
    plane: ControlPlane, operator: OperatorProcess, home: Path, registry: str
) -> None:
    image = push(home, registry, "newer:1", "2025")
    rejected = create(plane, app_pod("newer", image))
    assert 'webhook "pods.winpod.dev" denied the request: no node can run' in rejected.rejection
    for release in ("2019", "2022"):
        assert f"win-{release}: {image} has no build" in rejected.rejection
    assert "it has 10.0.26100" in rejected.rejection
    use_settings(plane, operator, f"{SETTINGS[:-1]}, refuseUnplaceable: false}}")
    admitted = create(plane, app_pod("newer", image))
    assert "no node can run this pod" in admitted.warnings[0]


def test_missing_build_pushed_under_the_same_tag_is_found_at_once(
    plane: ControlPlane, home: Path, registry: str
) -> None:
    image = push(home, registry, "mended:1", "2025")
    explicit = {"runtimeClassName": "windows-2022"}
    for name, spec in (("left-open", {}), ("asked", explicit)):
        assert create(plane, app_pod(name, image, **spec)).rejection
    push(home, registry, "mended:1", "2022", "2025")
    for name, spec in (("left-open", {}), ("asked", explicit)):
        created = create(plane, app_pod(name, image, **spec))
        assert (created.class_name, created.warnings) == ("windows-2022", [])


@pytest.mark.parametrize(
    ("spec", "sides"),
    [
        ({"runtimeClassName": "windows-2019"}, ("RuntimeClass windows-2019", "10.0.20348")),
        ({"nodeSelector": {BUILD: BUILD_2019}}, (f"spec.nodeSelector has {BUILD}={BUILD_2019}",)),
    ],
)
def test_conflict_with_the_image_is_rejected_naming_both_sides(
    plane: ControlPlane,
    home: Path,
    registry: str,
    spec: dict[str, Any],
    sides: tuple[str, ...],
) -> None:
    image = push(home, registry, "only-2022:1", "2022")
    rejection = create(
        plane, app_pod("against", image, **(spec | {"os": {"name": "windows"}}))
    ).rejection
    assert [side for side in (*sides, image) if side not in rejection] == []


def test_linux_and_multi_os_pods_are_not_changed(plane: ControlPlane) -> None:
    with fake_registry(linux_index()) as address:
        image = f"{address}/linux:1"
        both = f"{address}/both:1"
        for name, reference, spec in (
            ("by-image", image, {}),
            ("either", both, {}),
            ("by-author", both, {"nodeSelector": {"kubernetes.io/os": "linux"}}),
        ):
            created = create(plane, app_pod(name, reference, **spec))
            assert (created.class_name, created.warnings) == ("", [])
            assert "annotations" not in created.object["metadata"]
        assert create(plane, app_pod("windows", both, **WINDOWS)).class_name == "windows-2022"
    with fake_registry({}, is_silent=True) as address:
        started = time.monotonic()
        on_linux = {"nodeSelector": {"kubernetes.io/os": "linux"}}
        created = create(plane, app_pod("fast", f"{address}/x:1", **on_linux))
        assert (created.class_name, created.warnings) == ("", [])
        assert time.monotonic() - started < BUDGET


@contextmanager
def fake_registry(
    answers: dict[str, tuple[str, bytes]], *, is_silent: bool = False
) -> Iterator[str]:
    """A fake registry that serves manifests by name or digest, or never answers."""
    stopped = threading.Event()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if is_silent:
                stopped.wait()
            name, _, target = self.path.removeprefix("/v2/").partition("/manifests/")
            media_type, body = answers.get(target) or answers.get(name) or ("", b"")
            self.send_response(HTTPStatus.OK if body else HTTPStatus.NOT_FOUND)
            self.send_header("Content-Type", media_type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        do_HEAD = do_GET  # noqa: N815 - the name that the base class calls

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        stopped.set()
        server.shutdown()
        server.server_close()


def linux_index() -> dict[str, tuple[str, bytes]]:
    """Indexes by name: `linux` has one platform, `both` also has Windows."""
    media_type = "application/vnd.oci.image.index.v1+json"
    entry = {"mediaType": "application/vnd.oci.image.manifest.v1+json", "size": 2}
    linux = {**entry, "digest": f"sha256:{'1' * 64}"} | {
        "platform": {"os": "linux", "architecture": "amd64"}
    }
    windows = {**entry, "digest": f"sha256:{'2' * 64}"} | {
        "platform": {"os": "windows", "architecture": "amd64", "os.version": "10.0.20348.1"}
    }
    answers = {}
    for name, manifests in (("linux", [linux]), ("both", [linux, windows])):
        document = {"schemaVersion": 2, "mediaType": media_type, "manifests": manifests}
        body = json.dumps(document).encode()
        answers[name] = answers[f"sha256:{_sha256(body)}"] = (media_type, body)
    return answers


def _sha256(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


@contextmanager
def unused_address() -> Iterator[str]:
    """Reserve an address where nothing listens."""
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{reserved.getsockname()[1]}"


def test_unavailable_registry_admits_pods_with_a_warning_within_the_budget(
    plane: ControlPlane, operator: OperatorProcess
) -> None:
    """The API server would also admit them after its timeout, but without a warning."""
    use_settings(plane, operator, SETTINGS.replace(str(BUDGET), str(SHORT_BUDGET)))
    with fake_registry({}, is_silent=True) as slow, unused_address() as down:
        for name, address in (("slow", slow), ("down", down)):
            created = create(plane, app_pod(name, f"{address}/app:1", **WINDOWS))
            assert created.class_name == ""
            assert "could not be checked" in created.warnings[0]
            assert address in created.object["metadata"]["annotations"]["winpod.dev/unchecked"]

        def seconds_for_next_pod() -> float:
            began = time.monotonic()
            path = f"{pods_path('apps')}?dryRun=All"
            answer = plane.request("POST", path, app_pod("next", f"{slow}/other:1"))
            assert answer.status == HTTPStatus.CREATED
            return time.monotonic() - began

        eventually(seconds_for_next_pod, lambda took: took < SHORT_BUDGET)
        guessed = create(plane, app_pod("guessed", f"{down}/app:ltsc2019", **WINDOWS))
        assert guessed.class_name == "windows-2019"
        assert "could not be checked" in guessed.warnings[0]


def test_earlier_answer_of_an_unavailable_registry_rejects_no_pod(
    plane: ControlPlane,
) -> None:
    with fake_registry(linux_index()) as address:
        image = f"{address}/linux:1"
        assert f"{image} is for linux" in create(plane, app_pod("told", image, **WINDOWS)).rejection
    created = create(plane, app_pod("told", image, **WINDOWS))
    assert "could not be checked" in created.warnings[0]


def test_fail_closed_rejects_only_windows_pods(
    plane: ControlPlane, operator: OperatorProcess
) -> None:
    use_settings(plane, operator, f"{SETTINGS[:-1]}, failOpen: false}}")
    with unused_address() as address:
        image = f"{address}/app:1"
        assert "could not be checked" in create(plane, app_pod("x", image, **WINDOWS)).rejection
        assert create(plane, app_pod("unsaid", image)).object


def test_pull_secrets_of_pod_or_service_account_are_used(
    plane: ControlPlane, home: Path, basic_registry: str
) -> None:
    log_in(home, auths(basic_registry))
    image = push(home, basic_registry, "private:1", "2019")
    config = base64.b64encode(json.dumps(auths(basic_registry)).encode()).decode()
    account = {"name": "puller", "namespace": "apps"}
    plane.apply(
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "login", "namespace": "apps"},
            "type": "kubernetes.io/dockerconfigjson",
            "data": {".dockerconfigjson": config},
        },
        {
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": account,
            "imagePullSecrets": [{"name": "login"}],
        },
    )
    without = create(plane, app_pod("without", image, **WINDOWS))
    assert without.class_name == ""
    assert "could not be checked" in without.warnings[0]
    secrets = [{"name": "login"}]
    own = create(plane, app_pod("own", image, imagePullSecrets=secrets, **WINDOWS))
    assert (own.class_name, own.warnings) == ("windows-2019", [])
    elsewhere = [{"name": "../../apps/secrets/login"}]
    traversal = app_pod("astray", image, imagePullSecrets=elsewhere, **WINDOWS)
    assert create(plane, traversal, "--dry-run=server").class_name == ""
    accounts = create(plane, app_pod("accounts", image, serviceAccountName="puller", **WINDOWS))
    assert (accounts.class_name, accounts.warnings) == ("windows-2019", [])
    deployment = workload("Deployment", "private", image, serviceAccountName="puller", **WINDOWS)
    assert apply_warnings(plane, deployment) == []


def test_pod_that_has_to_wait_is_admitted_with_a_warning(
    plane: ControlPlane, home: Path, registry: str
) -> None:
    image = push(home, registry, "later:1", "2025")
    plane.apply(runtime_class("windows-later", PROCESS, BUILD_2025))
    try:
        eventually(lambda: not create(plane, app_pod("x", image), "--dry-run=server").rejection)
        created = create(plane, app_pod("later", image))
        assert created.class_name == "windows-later"
        assert "wait for a node that does not exist yet" in created.warnings[0]
        large = push(home, registry, "large:1", "2022")
        manifest = app_pod("large", large)
        manifest["spec"]["containers"][0]["resources"] = {"requests": {"memory": "9000Gi"}}
        assert "memory: requests 9000Gi" in create(plane, manifest).warnings[0]
    finally:
        plane.kubectl("delete", "runtimeclass", "windows-later")
        eventually(lambda: create(plane, app_pod("x", image), "--dry-run=server").rejection)


def test_linux_fields_on_a_windows_pod_give_warnings(
    plane: ControlPlane, home: Path, registry: str
) -> None:
    image = push(home, registry, "fields:1", "2022")
    created = create(
        plane, app_pod("fields", image, securityContext={"runAsUser": 1000}, **WINDOWS)
    )
    assert [warning.split()[1] for warning in created.warnings] == [
        "spec.securityContext.runAsUser"
    ]


def test_retiring_class_rejects_new_pods_with_its_reason(
    plane: ControlPlane, home: Path, registry: str
) -> None:
    image = push(home, registry, "retired:1", "2019")
    reason = "Windows Server 2019 ends in June: build for 2022."
    plane.kubectl("annotate", "runtimeclass", "windows-2019", f"winpod.dev/retiring={reason}")
    try:
        eventually(lambda: create(plane, app_pod("x", image), "--dry-run=server").rejection)
        for name, spec in (("named", {"runtimeClassName": "windows-2019"}), ("unnamed", {})):
            rejection = create(plane, app_pod(name, image, **spec)).rejection
            assert f"RuntimeClass windows-2019 accepts no new pods: {reason}" in rejection
    finally:
        plane.kubectl("annotate", "runtimeclass", "windows-2019", "winpod.dev/retiring-")
    eventually(lambda: create(plane, app_pod("again", image)).object)


_VERSIONS = {"ReplicationController": "v1", "Job": "batch/v1", "CronJob": "batch/v1"}


def workload(kind: str, name: str, image: str, **spec: Any) -> dict[str, Any]:
    labels = {"app": name}
    template = {
        "metadata": {"labels": labels},
        "spec": {"containers": [{"name": "c", "image": image}], **spec},
    }
    body: dict[str, Any] = {"selector": {"matchLabels": labels}, "template": template}
    if kind in ("Job", "CronJob"):
        template["spec"]["restartPolicy"] = "Never"
        body = {"template": template}
    if kind == "CronJob":
        body = {"schedule": "0 0 1 1 *", "jobTemplate": {"spec": body}}
    if kind == "StatefulSet":
        body["serviceName"] = name
    if kind == "ReplicationController":
        body["selector"] = labels
    version = _VERSIONS.get(kind, "apps/v1")
    metadata = {"name": name, "namespace": "apps"}
    return {"apiVersion": version, "kind": kind, "metadata": metadata, "spec": body}


def apply_warnings(plane: ControlPlane, obj: dict[str, Any]) -> list[str]:
    """Apply with kubectl and return the warnings."""
    command = plane.kubectl_command("apply", "-f", "-")
    result = subprocess.run(command, input=json.dumps(obj), capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    lines = result.stderr.splitlines()
    return [line.removeprefix("Warning: ") for line in lines if line.startswith("Warning: ")]


@pytest.mark.parametrize(
    "kind",
    [
        *("Deployment", "StatefulSet", "DaemonSet", "ReplicaSet"),
        *("ReplicationController", "Job", "CronJob"),
    ],
)
def test_workload_whose_pods_would_be_rejected_gets_a_warning(
    plane: ControlPlane, home: Path, registry: str, kind: str
) -> None:
    image = push(home, registry, "newer:1", "2025")
    name = f"new-{kind.lower()}"
    (warning,) = apply_warnings(plane, workload(kind, name, image, **WINDOWS))
    assert warning.startswith(f"winpod: pods of this {kind} will be rejected: no node can run")
    relabelled = workload(kind, name, image, **WINDOWS)
    relabelled["metadata"]["labels"] = {"changed": "not-the-pods"}
    assert apply_warnings(plane, relabelled) == []


def test_pods_of_a_deployment_get_a_runtime_class(
    plane: ControlPlane, home: Path, registry: str
) -> None:
    image = push(home, registry, "story-3:1", "2019", "2022")
    assert apply_warnings(plane, workload("Deployment", "plain", image)) == []
    wait = ("rollout", "status", "deployment/plain", "-n", "apps", "--timeout=300s")
    assert "successfully rolled out" in plane.kubectl(*wait)
    (created,) = json.loads(
        plane.kubectl("get", "pods", "-n", "apps", "-l", "app=plain", "-o", "json")
    )["items"]
    assert created["spec"]["runtimeClassName"] == "windows-2022"


def test_pods_get_node_selector_and_tolerations_if_classes_are_disabled(
    plane: ControlPlane, operator: OperatorProcess, home: Path, registry: str
) -> None:
    image = push(home, registry, "selected:1", "2019")
    use_settings(plane, operator, SETTINGS.replace("removeAfterSeconds: 0", "enabled: false"))
    try:
        eventually(lambda: not create(plane, app_pod("x", image), "--dry-run=server").class_name)
        spec = create(plane, app_pod("selected", image)).object["spec"]
        assert spec["nodeSelector"][BUILD] == BUILD_2019
        assert any(toleration.get("key") == "os" for toleration in spec["tolerations"])
        assert bound_to(plane, "apps", "selected") == "win-2019"
    finally:
        use_settings(plane, operator, SETTINGS)
        eventually(lambda: {"windows-2019", "windows-2022"} <= classes(plane).keys())


def test_system_namespaces_are_exempt(plane: ControlPlane, home: Path, registry: str) -> None:
    image = push(home, registry, "newer:1", "2025")
    system = app_pod("system", image, **WINDOWS)
    system["metadata"]["namespace"] = "kube-system"
    created = create(plane, system, "--dry-run=server")
    assert (created.rejection, created.class_name, created.warnings) == ("", "", [])


def test_malformed_review_is_a_bad_request(plane: ControlPlane, operator: OperatorProcess) -> None:
    secret = plane.request("GET", f"/api/v1/namespaces/{NAMESPACE}/secrets/winpod-webhook").body
    bundle = base64.b64decode(secret["data"]["ca.crt"]).decode()
    trust = ssl.create_default_context(cadata=bundle)
    for body in (
        b"",
        b"nonsense",
        b"{}",
        b'{"request": {"uid": 3}}',
        b'{"request": {"object": []}}',
    ):
        port = operator.webhook_port
        connection = http.client.HTTPSConnection("127.0.0.1", port, context=trust, timeout=60)
        connection.request("POST", "/pods/validate", body)
        assert connection.getresponse().status == HTTPStatus.BAD_REQUEST
        connection.close()


async def test_replicas_that_start_together_share_one_ca(plane: ControlPlane) -> None:
    plane.create_namespace("replicas")
    api = ApiClient(read_kubeconfig(plane.kubeconfig))
    try:
        many = await asyncio.gather(
            *(shared_certificates(api, "replicas", ("a.svc",)) for _ in range(5))
        )
        assert len(set(many)) == 1
        more = await shared_certificates(api, "replicas", ("a.svc", "b.svc"))
        assert (more.bundle, more.chain != many[0].chain) == (many[0].bundle, True)
    finally:
        await api.close()


def test_two_hundred_concurrent_pods_get_a_runtime_class(
    plane: ControlPlane, home: Path, registry: str
) -> None:
    image = push(home, registry, "crowd:1", "2019", "2022")

    def post(number: int) -> tuple[int, str]:
        answer = plane.request("POST", pods_path("apps"), app_pod(f"crowd-{number}", image))
        return answer.status, answer.body.get("spec", {}).get("runtimeClassName", "")

    with ThreadPoolExecutor(200) as pool:
        answers = set(pool.map(post, range(200)))
    assert {status for status, _ in answers} == {HTTPStatus.CREATED}
    assert {name for _, name in answers} <= {"windows-2019", "windows-2022"}


def test_pods_are_admitted_while_the_webhook_is_down_and_reviewed_afterwards(
    plane: ControlPlane, operator: OperatorProcess, home: Path, registry: str
) -> None:
    image = push(home, registry, "survives:1", "2019")
    operator.kill()
    created = create(plane, app_pod("while-dead", image, **WINDOWS))
    assert (created.rejection, created.class_name) == ("", "")
    plane.kubectl("delete", "secret", "winpod-webhook", "-n", NAMESPACE)
    operator.log.unlink()
    operator.start()
    ask_about_pods(plane, operator.webhook_port)
    eventually(
        lambda: create(plane, app_pod("x", image), "--dry-run=server").class_name == "windows-2019"
    )
