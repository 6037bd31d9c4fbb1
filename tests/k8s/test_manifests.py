"""Manifest parsing: accepted inputs, line numbers, and error messages."""

import io
import json
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from winpod.errors import InvalidInput
from winpod.k8s.manifests import read_manifests

POD = """\
apiVersion: v1
kind: Pod
metadata:
  name: {name}
spec:
  containers:
    - name: app
      image: app:1
"""


def write(folder: Path, text: str, name: str = "app.yaml") -> str:
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, "utf-8")
    return str(file)


def template(kind: str, api: str, path: tuple[str, ...]) -> dict[str, Any]:
    inner: dict[str, Any] = {"spec": {"containers": [{"name": "a", "image": "app:1"}]}}
    for part in reversed(path):
        inner = {part: inner}
    return {"apiVersion": api, "kind": kind, "metadata": {"name": "x"}, **inner}


WORKLOADS = [
    ("Pod", "v1", ()),
    ("Deployment", "apps/v1", ("spec", "template")),
    ("StatefulSet", "apps/v1", ("spec", "template")),
    ("DaemonSet", "apps/v1", ("spec", "template")),
    ("ReplicaSet", "apps/v1", ("spec", "template")),
    ("ReplicationController", "v1", ("spec", "template")),
    ("Job", "batch/v1", ("spec", "template")),
    ("CronJob", "batch/v1", ("spec", "jobTemplate", "spec", "template")),
]


@pytest.mark.parametrize(("kind", "api", "path"), WORKLOADS)
def test_every_kind_of_workload_is_read(
    tmp_path: Path, kind: str, api: str, path: tuple[str, ...]
) -> None:
    file = write(tmp_path, json.dumps(template(kind, api, path)))
    (workload,) = read_manifests([file]).workloads
    assert str(workload) == f"{kind} default/x"
    assert workload.pod.images == ("app:1",)
    assert workload.spec_path == (*path, "spec")
    assert workload.pod.is_daemon == (kind == "DaemonSet")


def test_multi_document_file_keeps_line_numbers(tmp_path: Path) -> None:
    text = "# first\n" + POD.format(name="a") + "---\n# nothing\n---\n" + POD.format(name="b")
    one, two = read_manifests([write(tmp_path, text)]).workloads
    assert (one.origin.line(), two.origin.line()) == (2, 13)
    assert one.origin.line(("spec", "containers", 0, "image")) == 9
    assert two.origin.line(("spec", "containers", 0, "image")) == 20
    assert two.origin.line(("spec", "nodeSelector", "gone")) == 17


def test_list_items_are_read_with_line_numbers(tmp_path: Path) -> None:
    items = [template(*workload) for workload in WORKLOADS]
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": items}, indent=1)
    manifests = read_manifests([write(tmp_path, text, "list.json")]).workloads
    assert [w.kind for w in manifests] == [kind for kind, _, _ in WORKLOADS]
    lines = text.splitlines()
    for workload in manifests:
        image = workload.origin.line((*workload.spec_path, "containers", 0, "image"))
        assert '"image": "app:1"' in lines[image - 1]


def test_typed_list_is_read(tmp_path: Path) -> None:
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}}
    text = json.dumps({"apiVersion": "v1", "kind": "NodeList", "items": [node]})
    assert [n.name for n in read_manifests([write(tmp_path, text)]).nodes] == ["n"]


def test_other_kinds_are_skipped(tmp_path: Path) -> None:
    text = """\
kind: Service
apiVersion: v1
spec: [whatever]
---
kind: Job
apiVersion: batch.volcano.sh/v1alpha1
spec: {tasks: []}
---
kind: ConfigMap
apiVersion: v1
data: {a: 2020-01-01, b: "="}
"""
    manifests = read_manifests([write(tmp_path, text)])
    assert (manifests.skipped, manifests.workloads) == (3, [])


def test_classes_nodes_and_secrets_are_collected(tmp_path: Path) -> None:
    text = """\
apiVersion: node.k8s.io/v1
kind: RuntimeClass
metadata: {name: windows-2019}
handler: runhcs-wcow-process
---
apiVersion: v1
kind: Secret
metadata: {name: pull, namespace: shop}
type: kubernetes.io/dockerconfigjson
"""
    manifests = read_manifests([write(tmp_path, text)])
    assert [c.handler for c in manifests.classes] == ["runhcs-wcow-process"]
    assert manifests.secret("shop", "pull") is not None
    assert manifests.secret("default", "pull") is None


def test_directory_is_read_in_order_and_non_objects_are_skipped(
    tmp_path: Path,
) -> None:
    write(tmp_path, POD.format(name="b"), "b.yml")
    write(tmp_path, POD.format(name="a"), "a/deep.yaml")
    write(tmp_path, "replicas: 3\n", "values.yaml")
    write(tmp_path, "- {status: runs}\n", "expected.yaml")
    write(tmp_path, "kind: Job\n", "of-something-else.yaml")
    write(tmp_path, "not: [yaml", "notes.txt")
    manifests = read_manifests([str(tmp_path)])
    assert [w.name for w in manifests.workloads] == ["a", "b"]


def test_standard_input_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    stdin = io.TextIOWrapper(io.BytesIO(POD.format(name="piped").encode()))
    monkeypatch.setattr("sys.stdin", stdin)
    (workload,) = read_manifests(["-"]).workloads
    assert (workload.name, workload.origin.file) == ("piped", "<stdin>")


def test_concatenated_json_objects_keep_line_numbers(tmp_path: Path) -> None:
    pods = [template("Pod", "v1", ()), template("Pod", "v1", ())]
    text = "\n".join(json.dumps(pod, indent=1) for pod in pods)
    one, two = read_manifests([write(tmp_path, text)]).workloads
    assert (one.origin.line(), two.origin.line()) == (1, 16)
    assert two.origin.line(("spec", "containers")) == 23


@pytest.mark.parametrize("key", ["\N{PARTY POPPER}", "\ud800"])
def test_json_escapes_unknown_to_yaml_keep_line_numbers(tmp_path: Path, key: str) -> None:
    pod = template("Pod", "v1", ()) | {"metadata": {"name": "x", "annotations": {key: key}}}
    text = json.dumps(pod, indent=1)
    (workload,) = read_manifests([write(tmp_path, text)]).workloads
    line = text[: text.index('"containers"')].count("\n") + 1
    assert workload.origin.line(("spec", "containers")) == line


def test_json_unreadable_as_yaml_reports_first_line(tmp_path: Path) -> None:
    pod = template("Pod", "v1", ()) | {"metadata": {"name": "x", "labels": {"k" * 2000: ""}}}
    (workload,) = read_manifests([write(tmp_path, json.dumps(pod, indent=1))]).workloads
    assert workload.origin.line(("spec", "containers")) == 1


def test_last_of_duplicate_keys_wins(tmp_path: Path) -> None:
    text = POD.format(name="a") + "  hostPID: false\n  hostPID: true\n"
    (workload,) = read_manifests([write(tmp_path, text)]).workloads
    assert (workload.spec["hostPID"], workload.origin.line(("spec", "hostPID"))) == (True, 10)


def test_closed_standard_input_is_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", None)
    assert read_manifests(["-"]).workloads == []


def test_dates_are_read_as_strings(tmp_path: Path) -> None:
    text = POD.format(name="a").replace("spec:\n", "spec:\n  nodeSelector: {since: 2020-01-01}\n")
    (workload,) = read_manifests([write(tmp_path, text)]).workloads
    assert workload.pod.node_selector == (("since", "2020-01-01"),)


def test_byte_order_mark_is_accepted(tmp_path: Path) -> None:
    file = tmp_path / "bom.yaml"
    file.write_bytes(b"\xef\xbb\xbf" + POD.format(name="a").encode())
    assert len(read_manifests([str(file)]).workloads) == 1


def test_generate_name_is_accepted(tmp_path: Path) -> None:
    text = POD.format(name="x").replace("name: x", "generateName: x-")
    (workload,) = read_manifests([write(tmp_path, text)]).workloads
    assert workload.name == "x-"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a: [1", "app.yaml:1: this is not YAML:"),
        ("kind: Pod\n\tapiVersion: v1\n", "app.yaml:2: this is not YAML:"),
        ("just text", "app.yaml:1: the object must be a mapping, and is text."),
        ("- 1", "app.yaml:1: the object must be a mapping, and is a list."),
        ("replicas: 3", 'app.yaml:1: the object is not a Kubernetes object: it has no "kind".'),
        ("kind: [Pod]", "app.yaml:1: kind must be text (put it in quotes), and is a list."),
        ("apiVersion: v1\nkind: Pod\n", "app.yaml:1: metadata.name is required."),
        ("apiVersion: v1\nkind: Pod\nmetadata:\n  name: 5\n", "app.yaml:4: metadata.name must be"),
        (
            POD.format(name="a").replace("app:1", "{a: b}"),
            "app.yaml:8: spec.containers[0].image must be text",
        ),
        ("\x01", "app.yaml:1: this is not YAML:"),
        ("a: &a [*a]", "app.yaml:1: the object is not a Kubernetes object"),
        ("a: !!python/object:os.system x", "app.yaml:1: this is not YAML: could not determine"),
        ("{" * 5000, "app.yaml:1: this is neither JSON nor YAML"),
        ("a: 1\nb: " + "[" * 50_000, "app.yaml:2: this is not YAML: it is nested more than 10000"),
        ('{"a":' * 50_000, "app.yaml:1: this is neither JSON nor YAML: it is nested more than"),
        ('{"kind": ' + "9" * 5000 + "}", "app.yaml:1: this is neither JSON nor YAML: Exceeds"),
        ('{"kind": "X"}\ngarbage', "app.yaml:2: this is neither JSON nor YAML"),
        (
            "apiVersion: v1\nkind: Deployment\n",
            'app.yaml:1: apiVersion is "v1", but a Deployment belongs to apps/v1.',
        ),
        (
            "kind: RuntimeClass\napiVersion: extensions/v1beta1\n",
            'app.yaml:2: apiVersion is "extensions/v1beta1", but a RuntimeClass belongs to node',
        ),
    ],
)
def test_error_names_file_and_line(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        read_manifests([write(tmp_path, text)])
    assert sentence in str(caught.value)


def test_non_utf8_file_error_names_line(tmp_path: Path) -> None:
    file = tmp_path / "app.yaml"
    file.write_bytes(b"a: 1\nb: \xff\xfe\n")
    with pytest.raises(InvalidInput, match=r"app.yaml:2: this is not UTF-8 text\."):
        read_manifests([str(file)])


def test_unreadable_source_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"cannot read .*gone.yaml: No such file or directory\."):
        read_manifests([str(tmp_path / "gone.yaml")])
    with pytest.raises(InvalidInput, match=r"contains no .yaml, .yml or .json file\."):
        read_manifests([str(tmp_path)])


@given(st.text() | st.binary())
def test_arbitrary_content_does_not_crash_reader(content: str | bytes) -> None:
    with tempfile.NamedTemporaryFile(suffix=".yaml") as file:
        file.write(content.encode("utf-8", "replace") if isinstance(content, str) else content)
        file.flush()
        with suppress(InvalidInput):
            read_manifests([file.name])
