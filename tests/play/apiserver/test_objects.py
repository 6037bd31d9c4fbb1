"""Validation of play manifests and its error messages."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from winpod.errors import InvalidInput
from winpod.field_reader import InvalidField
from winpod.k8s.manifests import InvalidManifest
from winpod.play.apiserver.objects import (
    KINDS,
    ObjectKey,
    find_kind,
    key_of,
    read_manifest_files,
    template_of,
)
from winpod.play.apiserver.validation import BY_KIND, EACH, POD, ValidationRule, check_values
from winpod.play.nodes import parse_node
from winpod.play.proxy.service_proxy import PublishedPort, parse_published_port

DEPLOYMENT = """\
apiVersion: apps/v1
kind: Deployment
metadata:
  name: web
spec:
  replicas: 2
  selector:
    matchLabels: {app: web}
  template:
    metadata:
      labels: {app: web}
    spec:
      containers:
        - name: web
          image: web:1
          resources:
            limits: {cpu: 1, memory: 1Gi}
"""
CLASS = "apiVersion: node.k8s.io/v1\nkind: RuntimeClass\nmetadata: {name: a}\nhandler: docker\n"


def read(directory: Path, text: str) -> list[dict[str, Any]]:
    path = directory / "app.yaml"
    path.write_text(text)
    return read_manifest_files([str(path)])


def test_objects_are_sorted_by_kind_and_get_a_namespace(tmp_path: Path) -> None:
    objects = read(tmp_path, f"{DEPLOYMENT}---\n{CLASS}")
    assert [str(key_of(document)) for document in objects] == [
        "runtimeclass.node.k8s.io/a",
        "deployment.apps/web",
    ]
    assert key_of(objects[1]) == ObjectKey("Deployment", "default", "web")
    template = template_of(objects[1])
    assert template is not None
    limits = template["spec"]["containers"][0]["resources"]["limits"]
    assert limits == {"cpu": "1", "memory": "1Gi"}


def test_list_is_expanded(tmp_path: Path) -> None:
    items = [yaml.safe_load(DEPLOYMENT), yaml.safe_load(CLASS)]
    text = yaml.safe_dump({"apiVersion": "v1", "kind": "List", "items": items})
    assert len(read(tmp_path, text)) == 2


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        ("replicas: 2", "replicas: many", 6, "spec.replicas is invalid: expected `int | null`"),
        ("replicas: 2", "replics: 2", 6, "spec.replics is not a field of this kind"),
        ("image: web:1", "iamge: web:1", 15, "containers[0].iamge is not a field"),
        ("name: web\nspec", "name: Web!\nspec", 4, 'is "Web!", which is not a lowercase DNS name'),
        ("labels: {app: web}", "labels: {app: other}", 8, "selects app=web, which is not a label"),
        ("apps/v1", "extensions/v1beta1", 1, "apiVersion of a Deployment is apps/v1"),
        ("kind: Deployment", "kind: Ingress", 2, "is Ingress, which needs a cluster"),
        ("    spec:\n      con", "    spec:\n      restartPolicy: Never\n      con", 13, "Always"),
    ],
)
def test_manifest_error_has_file_and_line(
    tmp_path: Path, old: str, new: str, line: int, message: str
) -> None:
    with pytest.raises(InvalidManifest) as error:
        read(tmp_path, DEPLOYMENT.replace(old, new))
    assert f"app.yaml:{line}: " in str(error.value)
    assert message in str(error.value)


CRON_JOB = """\
apiVersion: batch/v1
kind: CronJob
metadata: {name: nightly}
spec:
  schedule: "every day"
  jobTemplate:
    spec:
      template:
        spec:
          restartPolicy: Never
          containers: [{name: a, image: a:1}]
"""
SECRET = """\
apiVersion: v1
kind: Secret
metadata: {name: login}
data:
  user: aGVsbG8=
  password: hunter2!
"""


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        (SECRET, 6, "data.password is not base64."),
        (
            SECRET.replace("Secret", "ConfigMap").replace("\ndata:", "\nbinaryData:"),
            6,
            "binaryData.password is not base64.",
        ),
        (CRON_JOB, 5, 'spec.schedule is invalid: "every day" is not a cron schedule. Write five'),
        ("apiVersion: v1\nkind: Service\nmetadata: {name: web}\n", 1, "spec is required."),
        (CLASS.replace("handler: docker", "handler: ''"), 4, "handler is required."),
    ],
)
def test_rejected_value_has_file_and_line(
    tmp_path: Path, text: str, line: int, message: str
) -> None:
    with pytest.raises(InvalidManifest) as error:
        read(tmp_path, text)
    assert f"app.yaml:{line}: {message}" in str(error.value)


ROWS = [(kind.name, row) for kind in KINDS for row in BY_KIND.get(kind.name, ())]


@pytest.mark.parametrize(
    ("kind", "row"),
    [*ROWS, *(("Pod", row) for row in POD)],
    ids=lambda one: one if isinstance(one, str) else ".".join(map(str, one.path)),
)
def test_invalid_example_of_every_rule_is_rejected_at_its_path(
    kind: str, row: ValidationRule
) -> None:
    document: Any = row.invalid_example
    for part, inner in reversed([*zip(row.path, (*row.path[1:], ""), strict=True)]):
        in_list = part == EACH and (inner != "" or row.path[-2] == "accessModes")
        document = [document] if in_list else {"key" if part == EACH else part: document}
    document.setdefault("spec", {})
    with pytest.raises(InvalidField) as error:
        check_values(kind, () if kind == "Pod" else None, document)
    path = [str(part) for part in error.value.path]
    pattern = [EACH if part in ("key", "0") else part for part in path]
    assert pattern == [str(part) for part in row.path]


def test_valid_values_are_accepted(tmp_path: Path) -> None:
    good = CRON_JOB.replace('"every day"', '"@daily"\n  timeZone: Europe/Berlin')
    secret = SECRET.replace("hunter2!", '"aGVs\\nbG8="')
    rolling = "replicas: 2\n  strategy: {rollingUpdate: {maxSurge: 25%, maxUnavailable: 0}}"
    deployment = DEPLOYMENT.replace("replicas: 2", rolling)
    assert len(read(tmp_path, "---\n".join((good, secret, deployment)))) == 3


def test_duplicate_object_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(InvalidManifest, match=r"deployment\.apps/web is defined twice"):
        read(tmp_path, f"{DEPLOYMENT}---\n{DEPLOYMENT}")


def test_kinds_have_kubectl_names() -> None:
    kubectl_names = (
        "deploy",
        "deployments",
        "svc",
        "sts",
        "po",
        "cronjob",
        "pvc",
        "deployment.apps",
    )
    names = [kind.name for kubectl_name in kubectl_names if (kind := find_kind(kubectl_name))]
    assert names == [
        "Deployment",
        "Deployment",
        "Service",
        "StatefulSet",
        "Pod",
        "CronJob",
        "PersistentVolumeClaim",
        "Deployment",
    ]
    assert find_kind("ingress") is None


def test_short_forms_of_nodes_and_published_ports() -> None:
    assert parse_node("2019")["metadata"]["name"] == "win-2019"
    named = parse_node("2022:web")
    assert named["metadata"]["name"] == "web"
    assert named["status"]["nodeInfo"]["kernelVersion"] == "10.0.20348"
    assert parse_published_port("8080:web") == PublishedPort(8080, "Service", "web")
    assert parse_published_port("8080:deploy/web:80") == PublishedPort(
        8080, "Deployment", "web", 80
    )
    for text in ("web", "0:web", "8080:", "8080:what/web", "8080:web:http"):
        with pytest.raises(InvalidInput):
            parse_published_port(text)
