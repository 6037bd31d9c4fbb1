"""Static pods: parsing, names, and mirror pods."""

import asyncio
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.support.known_objects import pod_of, read
from tests.support.memory_api import MemoryApi
from winpod.errors import InvalidInput
from winpod.k8s.client import ApiError
from winpod.k8s.models import core_v1 as v1
from winpod.k8s.pods import uid_of
from winpod.kubelet import static_pods
from winpod.kubelet.static_pods import (
    MirrorPods,
    StaticPods,
    is_mirror_pod,
    is_static,
    mirror_pod,
    read_static_pod,
)
from winpod.labels import CONFIG_MIRROR_ANNOTATION

NOW = datetime(2024, 5, 1, 12, tzinfo=UTC)
WEB = """
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  containers: [{name: app, image: "app:1"}]
"""


def test_static_pod_name_has_node_and_uid_is_content_hash() -> None:
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
def test_invalid_manifest_is_reported_with_file(text: str) -> None:
    with pytest.raises(InvalidInput, match=r"web\.yaml is not a valid pod manifest"):
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


def test_unquoted_date_is_part_of_hash() -> None:
    pod = read_static_pod(DATED, "web.yaml", "win-1", NOW)
    other = read_static_pod(DATED.replace("05-01", "05-02"), "web.yaml", "win-1", NOW)
    assert uid_of(pod) != uid_of(other)


def test_invalid_files_do_not_affect_others(tmp_path: Path, caplog: Any) -> None:
    for name, text in ODD.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "latin.yaml").write_bytes(b"\xe9")
    (tmp_path / "dated.yaml").write_text(DATED)
    static = StaticPods(tmp_path, "win-1", lambda _, __: None)
    static.scan()
    names = [pod.metadata and pod.metadata.name for pod in static.pods.values()]
    assert names == ["dated-win-1"]
    assert all(name in caplog.text for name in (*ODD, "latin.yaml"))


def test_unreadable_directory_keeps_pods(tmp_path: Path, caplog: Any) -> None:
    folder = tmp_path / "manifests"
    folder.mkdir()
    (folder / "web.yaml").write_text(WEB)
    static = StaticPods(folder, "win-1", lambda _, __: None)
    static.scan()
    folder.rename(tmp_path / "elsewhere")
    folder.touch()
    static.scan()
    assert len(static.pods) == 1
    assert "Failed to read manifest directory" in caplog.text


def test_mirror_pod_copies_pod_and_is_owned_by_node() -> None:
    pod = read_static_pod(WEB, "web.yaml", "win-1", NOW)
    node = read(v1.Node, {"metadata": {"name": "win-1", "uid": "node-uid"}})
    mirror = mirror_pod(pod, node)
    assert mirror.metadata
    assert mirror.metadata.annotations
    assert mirror.metadata.uid is None
    assert mirror.metadata.annotations[CONFIG_MIRROR_ANNOTATION] == uid_of(pod)
    assert mirror.metadata.ownerReferences
    assert mirror.metadata.ownerReferences[0].uid == "node-uid"
    assert mirror.spec == pod.spec
    assert is_mirror_pod(mirror)
    assert not is_static(mirror)
    assert uid_of(pod)


def test_scan_reports_added_changed_and_removed_files(tmp_path: Path) -> None:
    changes: list[set[str]] = []
    static = StaticPods(tmp_path, "win-1", lambda _, pods: changes.append(set(pods)))
    static.scan()
    assert changes == []
    file = tmp_path / "web.yaml"
    file.write_text(WEB)
    (tmp_path / "broken.yaml").write_text("[")
    (tmp_path / "notes.txt").write_text(WEB)
    static.scan()
    static.scan()
    assert len(changes) == 1
    assert len(changes[0]) == 1
    file.write_text(WEB.replace("app:1", "app:2"))
    os.utime(file, ns=(1, 1))
    static.scan()
    assert changes[1] != changes[0]
    file.unlink()
    static.scan()
    assert changes[2] == set()


async def test_rejected_mirror_pod_is_retried_and_does_not_affect_others(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(static_pods, "_RETRY_SECONDS", 0.05)
    server = MemoryApi()
    other = WEB.replace("name: web", "name: other, namespace: shop")
    pods = [read_static_pod(text, "web.yaml", "win-1", NOW) for text in (WEB, other)]
    path = "/api/v1/namespaces/default/pods"
    server.refuse(path, ApiError(403, "Forbidden", "exceeded quota"), times=3)
    created: asyncio.Queue[str] = asyncio.Queue()
    mirrors = MirrorPods(server, created.put_nowait)
    mirrors.set_static_pods({uid_of(pod): pod for pod in pods})
    mirrors.set_node(read(v1.Node, {"metadata": {"name": "win-1", "uid": "node-uid"}}))
    mirrors.on_list([])
    running = asyncio.create_task(mirrors.run())
    try:
        async with asyncio.timeout(30):
            order = [await created.get(), await created.get()]
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert order == [uid_of(pods[1]), uid_of(pods[0])]
    assert caplog.text.count("Failed to sync mirror pod default/web-win-1") == 1
