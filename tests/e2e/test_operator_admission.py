"""Admission on a real API server: pods, workloads, registries of all kinds, a webhook that dies.

Pods name no class unless a test says so. The Windows nodes are simulated, and run what they get.
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
    """With a Windows node of each of two builds, and a node of Linux that is only written down."""
    directory = tmp_path_factory.mktemp("plane")
    with ControlPlane(directory, node_silence="1h") as running:
        running.create_namespace(NAMESPACE)
        running.create_namespace("apps")
        configure(running, SETTINGS)
        nodes = directory / "nodes.json"
        wanted = [{"name": f"win-{b}", "build": b, "simulated": True} for b in ("2019", "2022")]
        nodes.write_text(json.dumps({"nodes": wanted}))
        reach = ("--kubeconfig", str(running.kubeconfig), "--nodes", str(nodes))
        with NodeProcess(directory / "nodes", *reach):
            for one in wanted:
                eventually(lambda name=one["name"]: is_ready(running, name))  # type: ignore[misc]
            add_nodes(running, linux_node("linux"))
            yield running


@pytest.fixture(scope="module")
def operator(
    plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[OperatorProcess]:
    with OperatorProcess(plane, tmp_path_factory.mktemp("operator"), "one") as process:
        ask_about_pods(plane, process.webhook_port)
        for release in ("2019", "2022"):
            eventually(partial(_is_asked, plane, f"ltsc{release}"))
        yield process


@pytest.fixture(autouse=True)
def _tidy(plane: ControlPlane, operator: OperatorProcess) -> Iterator[None]:
    yield
    use_settings(plane, operator, SETTINGS)
    away = ("-n", "apps", "--all", "--force", "--grace-period=0", "--wait=false")
    makers = "deployments,replicasets,statefulsets,daemonsets,jobs,cronjobs"
    plane.kubectl("delete", f"{makers},pods", *away)


def _is_asked(plane: ControlPlane, tag: str) -> bool:
    """Whether the API server asks both webhooks, and the operator knows the class of this tag."""
    with nobody() as address:
        tried = app_pod("x", f"{address}/app:{tag}", **WINDOWS)
        created = create(plane, tried, "--dry-run=server")
    return bool(created.object and created.class_name and created.warnings)


@dataclass
class Created:
    """What became of it: the object, or a refusal, and what was said."""

    object: dict[str, Any]
    warnings: list[str]
    refusal: str

    @property
    def class_name(self) -> str:
        return str(self.object["spec"].get("runtimeClassName", ""))


def create(plane: ControlPlane, obj: dict[str, Any], *options: str) -> Created:
    command = plane.kubectl_command("create", "-f", "-", "-o", "json", *options)
    done = subprocess.run(command, input=json.dumps(obj), capture_output=True, text=True)
    said = done.stderr.splitlines()
    warnings = [line.removeprefix("Warning: ") for line in said if line.startswith("Warning: ")]
    if done.returncode:
        return Created({}, warnings, done.stderr)
    return Created(json.loads(done.stdout), warnings, "")


def app_pod(name: str, *images: str, **spec: Any) -> dict[str, Any]:
    containers = [{"name": f"c{i}", "image": image} for i, image in enumerate(images)]
    return pod(name, "apps", {"containers": containers, "terminationGracePeriodSeconds": 0, **spec})


WINDOWS: dict[str, Any] = {"nodeSelector": {"kubernetes.io/os": "windows"}}


def push(home: Path, registry: str, name: str, *platforms: str) -> str:
    """Pack and push an image with the command itself; gives its reference."""
    content = home / "content"
    content.mkdir(exist_ok=True)
    (content / "app.txt").write_text("app")
    builds = [option for build in platforms for option in ("--os-version", build)]
    reference = f"{registry}/{name}"
    app(["image", "pack", str(content), "-t", reference, *builds], standalone_mode=False)
    return reference


def test_story_1_a_pod_runs_on_the_build_of_its_image(
    plane: ControlPlane, home: Path, registry: str
) -> None:
    for release in ("2019", "2022"):
        image = push(home, registry, f"story-1:{release}", release)
        created = create(plane, app_pod(f"story-1-{release}", image))
        assert (created.class_name, created.warnings) == (f"windows-{release}", [])
        spec = created.object["spec"]
        assert BUILD in spec["nodeSelector"], "the API server merges what the class says"
    for release in ("2019", "2022"):
        eventually(lambda name=f"story-1-{release}": phase(plane, "apps", name) == "Running")  # type: ignore[misc]
        there = found_pod(plane, "apps", f"story-1-{release}")["spec"]["nodeName"]
        assert there == f"win-{release}"


def test_story_2_an_older_image_gets_a_guest_on_a_newer_node(
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


def test_story_3_an_image_of_several_builds_goes_to_the_newest_or_where_its_author_wants(
    plane: ControlPlane, home: Path, registry: str
) -> None:
    image = push(home, registry, "story-3:1", "2019", "2022")
    assert create(plane, app_pod("newest", image)).class_name == "windows-2022"
    asked = {"nodeSelector": {BUILD: BUILD_2019}}
    assert create(plane, app_pod("asked", image, **asked)).class_name == "windows-2019"
    named = create(plane, app_pod("named", image, runtimeClassName="windows-2019"))
    assert (named.class_name, named.warnings) == ("windows-2019", [])
    for name, node in (("newest", "win-2022"), ("asked", "win-2019"), ("named", "win-2019")):
        assert bound_to(plane, "apps", name) == node


def test_an_index_without_a_fitting_build_is_refused_with_the_reasons_of_the_nodes(
    plane: ControlPlane, operator: OperatorProcess, home: Path, registry: str
) -> None:
    image = push(home, registry, "newer:1", "2025")
    refused = create(plane, app_pod("newer", image))
    assert 'webhook "pods.winpod.dev" denied the request: no node can run' in refused.refusal
    for release in ("2019", "2022"):
        assert f"win-{release}: {image} has no build" in refused.refusal
    assert "it has 10.0.26100" in refused.refusal
    use_settings(plane, operator, f"{SETTINGS[:-1]}, refuseUnplaceable: false}}")
    told = create(plane, app_pod("newer", image))
    assert "no node can run this pod" in told.warnings[0]


def test_who_pushes_the_missing_build_under_the_same_tag_is_let_in_at_once(
    plane: ControlPlane, home: Path, registry: str
) -> None:
    image = push(home, registry, "mended:1", "2025")
    asked = {"runtimeClassName": "windows-2022"}
    for name, spec in (("left-open", {}), ("asked", asked)):
        assert create(plane, app_pod(name, image, **spec)).refusal
    push(home, registry, "mended:1", "2022", "2025")
    for name, spec in (("left-open", {}), ("asked", asked)):
        created = create(plane, app_pod(name, image, **spec))
        assert (created.class_name, created.warnings) == ("windows-2022", [])


@pytest.mark.parametrize(
    ("spec", "sides"),
    [
        ({"runtimeClassName": "windows-2019"}, ("RuntimeClass windows-2019", "10.0.20348")),
        ({"nodeSelector": {BUILD: BUILD_2019}}, (f"spec.nodeSelector has {BUILD}={BUILD_2019}",)),
    ],
)
def test_what_contradicts_the_image_is_refused_with_both_sides(
    plane: ControlPlane,
    home: Path,
    registry: str,
    spec: dict[str, Any],
    sides: tuple[str, ...],
) -> None:
    image = push(home, registry, "only-2022:1", "2022")
    refusal = create(
        plane, app_pod("against", image, **(spec | {"os": {"name": "windows"}}))
    ).refusal
    assert [side for side in (*sides, image) if side not in refusal] == []


def test_linux_pods_and_pods_of_either_kind_pass_untouched(plane: ControlPlane) -> None:
    with listening(linux_index()) as address:
        image = f"{address}/linux:1"
        both = f"{address}/both:1"
        for name, text, spec in (
            ("by-image", image, {}),
            ("either", both, {}),
            ("by-author", both, {"nodeSelector": {"kubernetes.io/os": "linux"}}),
        ):
            created = create(plane, app_pod(name, text, **spec))
            assert (created.class_name, created.warnings) == ("", [])
            assert "annotations" not in created.object["metadata"]
        assert create(plane, app_pod("windows", both, **WINDOWS)).class_name == "windows-2022"
    with listening({}, is_silent=True) as address:
        began = time.monotonic()
        nowhere = {"nodeSelector": {"kubernetes.io/os": "linux"}}
        created = create(plane, app_pod("fast", f"{address}/x:1", **nowhere))
        assert (created.class_name, created.warnings) == ("", [])
        assert time.monotonic() - began < BUDGET


@contextmanager
def listening(answers: dict[str, tuple[str, bytes]], *, is_silent: bool = False) -> Iterator[str]:
    """A stand-in for a registry: a name's document by the last part of its path, or no answer."""
    ends = threading.Event()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if is_silent:
                ends.wait()
            name, _, target = self.path.removeprefix("/v2/").partition("/manifests/")
            media_type, body = answers.get(target) or answers.get(name) or ("", b"")
            self.send_response(HTTPStatus.OK if body else HTTPStatus.NOT_FOUND)
            self.send_header("Content-Type", media_type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        do_HEAD = do_GET  # noqa: N815 - the name that the class looks for

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        ends.set()
        server.shutdown()
        server.server_close()


def linux_index() -> dict[str, tuple[str, bytes]]:
    """`linux` has one platform, `both` has Windows too."""
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
def nobody() -> Iterator[str]:
    """Where nobody listens, and nobody else will meanwhile."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{held.getsockname()[1]}"


def test_a_registry_that_is_slow_or_down_lets_pods_in_with_a_warning_within_the_budget(
    plane: ControlPlane, operator: OperatorProcess
) -> None:
    """The API server, too, lets them in where it is not answered, but without a word."""
    use_settings(plane, operator, SETTINGS.replace(str(BUDGET), str(SHORT_BUDGET)))
    with listening({}, is_silent=True) as slow, nobody() as down:
        for name, address in (("slow", slow), ("down", down)):
            created = create(plane, app_pod(name, f"{address}/app:1", **WINDOWS))
            assert created.class_name == ""
            assert "could not be checked" in created.warnings[0]
            assert address in created.object["metadata"]["annotations"]["winpod.dev/unchecked"]

        def seconds_for_the_next() -> float:
            began = time.monotonic()
            path = f"{pods_path('apps')}?dryRun=All"
            asked = plane.request("POST", path, app_pod("next", f"{slow}/other:1"))
            assert asked.status == HTTPStatus.CREATED
            return time.monotonic() - began

        eventually(seconds_for_the_next, lambda took: took < SHORT_BUDGET)
        guessed = create(plane, app_pod("guessed", f"{down}/app:ltsc2019", **WINDOWS))
        assert guessed.class_name == "windows-2019"
        assert "could not be checked" in guessed.warnings[0]


def test_a_pod_is_not_refused_for_what_a_registry_that_is_down_said_once(
    plane: ControlPlane,
) -> None:
    with listening(linux_index()) as address:
        image = f"{address}/linux:1"
        assert f"{image} is for linux" in create(plane, app_pod("told", image, **WINDOWS)).refusal
    created = create(plane, app_pod("told", image, **WINDOWS))
    assert "could not be checked" in created.warnings[0]


def test_who_wants_to_fail_closed_refuses_windows_pods_only(
    plane: ControlPlane, operator: OperatorProcess
) -> None:
    use_settings(plane, operator, f"{SETTINGS[:-1]}, failOpen: false}}")
    with nobody() as address:
        image = f"{address}/app:1"
        assert "could not be checked" in create(plane, app_pod("x", image, **WINDOWS)).refusal
        assert create(plane, app_pod("unsaid", image)).object


def test_a_registry_with_a_password_is_asked_with_the_pods_or_its_accounts_pull_secret(
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
    astray = app_pod("astray", image, imagePullSecrets=elsewhere, **WINDOWS)
    assert create(plane, astray, "--dry-run=server").class_name == ""
    accounts = create(plane, app_pod("accounts", image, serviceAccountName="puller", **WINDOWS))
    assert (accounts.class_name, accounts.warnings) == ("windows-2019", [])
    unsaid = workload("Deployment", "private", image, serviceAccountName="puller", **WINDOWS)
    assert applied(plane, unsaid) == []


def test_a_pod_that_only_has_to_wait_passes_with_a_warning(
    plane: ControlPlane, home: Path, registry: str
) -> None:
    image = push(home, registry, "later:1", "2025")
    plane.apply(runtime_class("windows-later", PROCESS, BUILD_2025))
    try:
        eventually(lambda: not create(plane, app_pod("x", image), "--dry-run=server").refusal)
        created = create(plane, app_pod("later", image))
        assert created.class_name == "windows-later"
        assert "wait for a node that does not exist yet" in created.warnings[0]
        large = push(home, registry, "large:1", "2022")
        asks = app_pod("large", large)
        asks["spec"]["containers"][0]["resources"] = {"requests": {"memory": "9000Gi"}}
        assert "memory: requests 9000Gi" in create(plane, asks).warnings[0]
    finally:
        plane.kubectl("delete", "runtimeclass", "windows-later")
        eventually(lambda: create(plane, app_pod("x", image), "--dry-run=server").refusal)


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


def test_a_class_that_is_being_retired_takes_no_new_pods_and_says_why(
    plane: ControlPlane, home: Path, registry: str
) -> None:
    image = push(home, registry, "retired:1", "2019")
    why = "Windows Server 2019 ends in June: build for 2022."
    plane.kubectl("annotate", "runtimeclass", "windows-2019", f"winpod.dev/retiring={why}")
    try:
        eventually(lambda: create(plane, app_pod("x", image), "--dry-run=server").refusal)
        for name, spec in (("named", {"runtimeClassName": "windows-2019"}), ("unnamed", {})):
            refusal = create(plane, app_pod(name, image, **spec)).refusal
            assert f"RuntimeClass windows-2019 accepts no new pods: {why}" in refusal
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


def applied(plane: ControlPlane, obj: dict[str, Any]) -> list[str]:
    """What `kubectl apply` warns about."""
    command = plane.kubectl_command("apply", "-f", "-")
    done = subprocess.run(command, input=json.dumps(obj), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    said = done.stderr.splitlines()
    return [line.removeprefix("Warning: ") for line in said if line.startswith("Warning: ")]


@pytest.mark.parametrize(
    "kind",
    [
        *("Deployment", "StatefulSet", "DaemonSet", "ReplicaSet"),
        *("ReplicationController", "Job", "CronJob"),
    ],
)
def test_applying_a_workload_whose_pods_would_be_refused_says_so_at_once(
    plane: ControlPlane, home: Path, registry: str, kind: str
) -> None:
    image = push(home, registry, "newer:1", "2025")
    name = f"new-{kind.lower()}"
    (said,) = applied(plane, workload(kind, name, image, **WINDOWS))
    assert said.startswith(f"winpod: pods of this {kind} will be rejected: no node can run")
    again = workload(kind, name, image, **WINDOWS)
    again["metadata"]["labels"] = {"changed": "not-the-pods"}
    assert applied(plane, again) == []


def test_pods_of_a_deployment_get_their_class(
    plane: ControlPlane, home: Path, registry: str
) -> None:
    image = push(home, registry, "story-3:1", "2019", "2022")
    assert applied(plane, workload("Deployment", "plain", image)) == []
    wait = ("rollout", "status", "deployment/plain", "-n", "apps", "--timeout=300s")
    assert "successfully rolled out" in plane.kubectl(*wait)
    (made,) = json.loads(
        plane.kubectl("get", "pods", "-n", "apps", "-l", "app=plain", "-o", "json")
    )["items"]
    assert made["spec"]["runtimeClassName"] == "windows-2022"


def test_where_classes_are_off_pods_get_nodes_and_tolerations(
    plane: ControlPlane, operator: OperatorProcess, home: Path, registry: str
) -> None:
    image = push(home, registry, "selected:1", "2019")
    use_settings(plane, operator, SETTINGS.replace("removeAfterSeconds: 0", "enabled: false"))
    try:
        eventually(lambda: not create(plane, app_pod("x", image), "--dry-run=server").class_name)
        spec = create(plane, app_pod("selected", image)).object["spec"]
        assert spec["nodeSelector"][BUILD] == BUILD_2019
        assert any(one.get("key") == "os" for one in spec["tolerations"])
        assert bound_to(plane, "apps", "selected") == "win-2019"
    finally:
        use_settings(plane, operator, SETTINGS)
        eventually(lambda: {"windows-2019", "windows-2022"} <= classes(plane).keys())


def test_system_namespaces_are_left_alone(plane: ControlPlane, home: Path, registry: str) -> None:
    image = push(home, registry, "newer:1", "2025")
    system = app_pod("system", image, **WINDOWS)
    system["metadata"]["namespace"] = "kube-system"
    created = create(plane, system, "--dry-run=server")
    assert (created.refusal, created.class_name, created.warnings) == ("", "", [])


def test_what_is_no_review_is_answered_with_a_no_and_harms_nobody(
    plane: ControlPlane, operator: OperatorProcess
) -> None:
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


async def test_replicas_that_begin_at_once_share_one_authority(plane: ControlPlane) -> None:
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


def test_two_hundred_pods_at_once_all_get_their_class(
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


def test_pods_are_created_while_the_webhook_is_dead_and_looked_at_when_it_is_back(
    plane: ControlPlane, operator: OperatorProcess, home: Path, registry: str
) -> None:
    image = push(home, registry, "survives:1", "2019")
    operator.kill()
    created = create(plane, app_pod("while-dead", image, **WINDOWS))
    assert (created.refusal, created.class_name) == ("", "")
    plane.kubectl("delete", "secret", "winpod-webhook", "-n", NAMESPACE)
    operator.log.unlink()
    operator.start()
    ask_about_pods(plane, operator.webhook_port)
    eventually(
        lambda: create(plane, app_pod("x", image), "--dry-run=server").class_name == "windows-2019"
    )
