"""Manifests for play: what is taken, what is refused, and in which words."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from winpod.node.manifests import BadManifest
from winpod.node.play.nodes import parse_node
from winpod.node.play.objects import KINDS, Key, key_of, kind_of_word, read_files, template_of
from winpod.node.play.publishing import Publication, parse_publication
from winpod.node.play.values import BY_KIND, EACH, POD, Row, check_values
from winpod.windows.errors import InvalidInput
from winpod.windows.reading import InvalidField

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


def read(folder: Path, text: str) -> list[dict[str, Any]]:
    file = folder / "app.yaml"
    file.write_text(text)
    return read_files([str(file)])


def test_objects_come_in_the_order_to_make_them_and_in_a_namespace(tmp_path: Path) -> None:
    found = read(tmp_path, f"{DEPLOYMENT}---\n{CLASS}")
    assert [str(key_of(document)) for document in found] == [
        "runtimeclass.node.k8s.io/a",
        "deployment.apps/web",
    ]
    assert key_of(found[1]) == Key("Deployment", "default", "web")
    template = template_of(found[1])
    assert template is not None
    limits = template["spec"]["containers"][0]["resources"]["limits"]
    assert limits == {"cpu": "1", "memory": "1Gi"}


def test_a_list_is_its_items(tmp_path: Path) -> None:
    items = [yaml.safe_load(DEPLOYMENT), yaml.safe_load(CLASS)]
    text = yaml.safe_dump({"apiVersion": "v1", "kind": "List", "items": items})
    assert len(read(tmp_path, text)) == 2


@pytest.mark.parametrize(
    ("old", "new", "line", "sentence"),
    [
        ("replicas: 2", "replicas: many", 6, "spec.replicas is wrong: expected `int | null`"),
        ("replicas: 2", "replics: 2", 6, "spec.replics is not a field of this kind"),
        ("image: web:1", "iamge: web:1", 15, "containers[0].iamge is not a field"),
        ("name: web\nspec", "name: Web!\nspec", 4, 'is "Web!", which is no lowercase DNS name'),
        ("labels: {app: web}", "labels: {app: other}", 8, "selects app=web, which the template"),
        ("apps/v1", "extensions/v1beta1", 1, "a Deployment is of apps/v1"),
        ("kind: Deployment", "kind: Ingress", 2, "is Ingress, which needs a cluster"),
        ("    spec:\n      con", "    spec:\n      restartPolicy: Never\n      con", 13, "Always"),
    ],
)
def test_a_mistake_is_told_with_its_line(
    tmp_path: Path, old: str, new: str, line: int, sentence: str
) -> None:
    with pytest.raises(BadManifest) as told:
        read(tmp_path, DEPLOYMENT.replace(old, new))
    assert f"app.yaml:{line}: " in str(told.value)
    assert sentence in str(told.value)


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
    ("text", "line", "sentence"),
    [
        (SECRET, 6, "data.password is not base64."),
        (
            SECRET.replace("Secret", "ConfigMap").replace("\ndata:", "\nbinaryData:"),
            6,
            "binaryData.password is not base64.",
        ),
        (CRON_JOB, 5, 'spec.schedule is wrong: "every day" is not a schedule. Write five fields:'),
        ("apiVersion: v1\nkind: Service\nmetadata: {name: web}\n", 1, "spec is required."),
        (CLASS.replace("handler: docker", "handler: ''"), 4, "handler is required."),
    ],
)
def test_a_value_that_an_api_server_refuses_is_told_with_its_line(
    tmp_path: Path, text: str, line: int, sentence: str
) -> None:
    with pytest.raises(BadManifest) as told:
        read(tmp_path, text)
    assert f"app.yaml:{line}: {sentence}" in str(told.value)


ROWS = [(kind.name, row) for kind in KINDS for row in BY_KIND.get(kind.name, ())]


@pytest.mark.parametrize(
    ("kind", "row"),
    [*ROWS, *(("Pod", row) for row in POD)],
    ids=lambda one: one if isinstance(one, str) else ".".join(map(str, one.path)),
)
def test_every_wrong_value_of_the_table_is_found_where_it_is(kind: str, row: Row) -> None:
    document: Any = row.wrong
    for part, inner in reversed([*zip(row.path, (*row.path[1:], ""), strict=True)]):
        in_list = part == EACH and (inner != "" or row.path[-2] == "accessModes")
        document = [document] if in_list else {"key" if part == EACH else part: document}
    document.setdefault("spec", {})
    with pytest.raises(InvalidField) as told:
        check_values(kind, () if kind == "Pod" else None, document)
    found = [str(part) for part in told.value.path]
    places = [EACH if part in ("key", "0") else part for part in found]
    assert places == [str(part) for part in row.path]


def test_values_that_are_as_they_should_be_are_taken(tmp_path: Path) -> None:
    good = CRON_JOB.replace('"every day"', '"@daily"\n  timeZone: Europe/Berlin')
    secret = SECRET.replace("hunter2!", '"aGVs\\nbG8="')
    rolling = "replicas: 2\n  strategy: {rollingUpdate: {maxSurge: 25%, maxUnavailable: 0}}"
    deployment = DEPLOYMENT.replace("replicas: 2", rolling)
    assert len(read(tmp_path, "---\n".join((good, secret, deployment)))) == 3


def test_an_object_is_written_once(tmp_path: Path) -> None:
    with pytest.raises(BadManifest, match=r"deployment\.apps/web is written twice"):
        read(tmp_path, f"{DEPLOYMENT}---\n{DEPLOYMENT}")


def test_kinds_have_the_names_that_kubectl_knows() -> None:
    words = ("deploy", "deployments", "svc", "sts", "po", "cronjob", "pvc", "deployment.apps")
    names = [kind.name for word in words if (kind := kind_of_word(word))]
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
    assert kind_of_word("ingress") is None


def test_nodes_and_ports_are_written_shortly() -> None:
    assert parse_node("2019")["metadata"]["name"] == "win-2019"
    named = parse_node("2022:web")
    assert named["metadata"]["name"] == "web"
    assert named["status"]["nodeInfo"]["kernelVersion"] == "10.0.20348"
    assert parse_publication("8080:web") == Publication(8080, "Service", "web")
    assert parse_publication("8080:deploy/web:80") == Publication(8080, "Deployment", "web", 80)
    for text in ("web", "0:web", "8080:", "8080:what/web", "8080:web:http"):
        with pytest.raises(InvalidInput):
            parse_publication(text)
