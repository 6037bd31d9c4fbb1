"""Static pods: read from files, named for their node, shown as mirrors."""

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from lightkube.models import core_v1 as v1

from tests.node.known_objects import pod_of, read
from winpod.node.pods import uid_of
from winpod.node.static_pods import (
    MIRROR,
    StaticPods,
    is_mirror,
    is_static,
    mirror_of,
    read_static_pod,
)
from winpod.windows.errors import InvalidInput

NOW = datetime(2024, 5, 1, 12, tzinfo=UTC)
WEB = """
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  containers: [{name: app, image: "app:1"}]
"""


def test_a_static_pod_is_named_for_its_node_and_known_by_what_it_says() -> None:
    pod = read_static_pod(WEB, "web.yaml", "win-1", NOW)
    again = read_static_pod(WEB, "web.yaml", "win-1", NOW.replace(year=2025))
    other = read_static_pod(WEB.replace("app:1", "app:2"), "web.yaml", "win-1", NOW)
    assert pod.metadata
    assert pod.spec
    assert (pod.metadata.namespace, pod.metadata.name) == ("default", "web-win-1")
    assert pod.spec.nodeName == "win-1"
    assert uid_of(pod) == uid_of(again) != uid_of(other)
    assert is_static(pod)
    assert not is_static(pod_of({}))


@pytest.mark.parametrize("text", ["[", "kind: Service", "kind: Pod", "kind: Pod\nspec: 3", ""])
def test_what_is_no_pod_is_told_with_its_file(text: str) -> None:
    with pytest.raises(InvalidInput, match=r"web\.yaml is no pod"):
        read_static_pod(text, "web.yaml", "win-1", NOW)


DATED = """
kind: Pod
metadata: {name: dated, creationTimestamp: 2024-05-01T12:00:00Z, annotations: {since: "1"}}
spec: {containers: [{name: app, image: "app:1"}]}
"""
ODD = {
    "day.yaml": "kind: Pod\nmetadata: {name: day, labels: {since: 2024-13-45}}",
    "keys.yaml": "kind: Pod\nmetadata: {name: keys}\nspec: {containers: []}\nmore: {1: a, b: c}",
    "self.yaml": "kind: Pod\nmetadata: {name: self}\nspec: {containers: []}\nmore: &x [*x]",
    "bytes.yaml": "kind: Pod\nmetadata: {name: b}\nspec: {containers: []}\n? !!binary aaaa\n: 1",
}


def test_a_date_without_quotes_is_part_of_what_a_pod_says() -> None:
    pod = read_static_pod(DATED, "web.yaml", "win-1", NOW)
    other = read_static_pod(DATED.replace("05-01", "05-02"), "web.yaml", "win-1", NOW)
    assert uid_of(pod) != uid_of(other)


def test_odd_files_keep_no_other_from_being_read(tmp_path: Path, caplog: Any) -> None:
    for name, text in ODD.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "latin.yaml").write_bytes(b"\xe9")
    (tmp_path / "dated.yaml").write_text(DATED)
    static = StaticPods(tmp_path, "win-1", lambda _, __: None)
    static.look()
    names = [pod.metadata and pod.metadata.name for pod in static.pods.values()]
    assert names == ["dated-win-1"]
    assert all(name in caplog.text for name in (*ODD, "latin.yaml"))


def test_pods_of_a_directory_that_cannot_be_read_stay(tmp_path: Path, caplog: Any) -> None:
    folder = tmp_path / "manifests"
    folder.mkdir()
    (folder / "web.yaml").write_text(WEB)
    static = StaticPods(folder, "win-1", lambda _, __: None)
    static.look()
    folder.rename(tmp_path / "elsewhere")
    folder.touch()
    static.look()
    assert len(static.pods) == 1
    assert "cannot be read" in caplog.text


def test_a_mirror_shows_the_pod_and_belongs_to_the_node() -> None:
    pod = read_static_pod(WEB, "web.yaml", "win-1", NOW)
    node = read(v1.Node, {"metadata": {"name": "win-1", "uid": "node-uid"}})
    mirror = mirror_of(pod, node)
    assert mirror.metadata
    assert mirror.metadata.annotations
    assert mirror.metadata.uid is None
    assert mirror.metadata.annotations[MIRROR] == uid_of(pod)
    assert mirror.metadata.ownerReferences
    assert mirror.metadata.ownerReferences[0].uid == "node-uid"
    assert mirror.spec == pod.spec
    assert is_mirror(mirror)
    assert not is_static(mirror)
    assert uid_of(pod)


def test_the_directory_tells_of_files_that_come_change_and_go(tmp_path: Path) -> None:
    told: list[set[str]] = []
    static = StaticPods(tmp_path, "win-1", lambda _, pods: told.append(set(pods)))
    static.look()
    assert told == []
    file = tmp_path / "web.yaml"
    file.write_text(WEB)
    (tmp_path / "broken.yaml").write_text("[")
    (tmp_path / "notes.txt").write_text(WEB)
    static.look()
    static.look()
    assert len(told) == 1
    assert len(told[0]) == 1
    file.write_text(WEB.replace("app:1", "app:2"))
    os.utime(file, ns=(1, 1))
    static.look()
    assert told[1] != told[0]
    file.unlink()
    static.look()
    assert told[2] == set()
