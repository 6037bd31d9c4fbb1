"""The control plane with simulated containers, from manifests to pods and back."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import EXAMPLES
from tests.support.winpod_cli import winpod
from winpod.config import ComputeKind, Config, RuntimeSettings
from winpod.errors import InvalidInput
from winpod.play.apiserver.objects import ObjectKey, validate_object
from winpod.play.control_plane import ApplyRequest, ControlPlane
from winpod.play.nodes import parse_node
from winpod.play.views import object_view, state_view

LEGACY, WEB = "registry.example/legacy:1.0", "registry.example/web:1.0"


@pytest.fixture(scope="module")
def layout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One image for 2019, and one for 2022 and 2025."""
    directory = tmp_path_factory.mktemp("play")
    for name, *builds in ((LEGACY, "2019"), (WEB, "2022", "2025")):
        options = [option for build in builds for option in ("--os-version", build)]
        target = f"oci:{directory}/images:{name}"
        result = winpod(
            "image", "pack", str(EXAMPLES / "app"), "-t", target, *options, home=directory
        )
        assert result.code == 0, result.err
    return directory / "images"


class PlaySession:
    def __init__(self, control_plane: ControlPlane, layout: Path) -> None:
        self.control_plane = control_plane
        self.layout = str(layout)

    async def apply(self, *documents: dict[str, Any], nodes: tuple[str, ...] = ()) -> list[str]:
        """Pull images and apply objects, as the command does."""
        objects = [validate_object(document, "default") for document in documents]
        request = ApplyRequest(objects, [parse_node(text) for text in nodes], [self.layout])
        changes, _ = await self.control_plane.apply(request)
        return [str(change) for change in changes]

    def pods(self) -> dict[str, dict[str, Any]]:
        return {pod["name"]: pod for pod in state_view(self.control_plane)["pods"]}

    async def until(self, predicate: Callable[[dict[str, dict[str, Any]]], bool]) -> None:
        async with asyncio.timeout(120):
            while not predicate(self.pods()):  # noqa: ASYNC110 - there is no event for a state
                await asyncio.sleep(0.05)


@asynccontextmanager
async def play_session(root: Path, layout: Path) -> AsyncIterator[PlaySession]:
    config = Config(root, runtime=RuntimeSettings(compute=ComputeKind.SIMULATED))
    control_plane = ControlPlane(root, config)
    await control_plane.start()
    try:
        yield PlaySession(control_plane, layout)
    finally:
        await control_plane.stop()


def pod(name: str, image: str = WEB, **spec: Any) -> dict[str, Any]:
    containers = [{"name": "app", "image": image, "command": ["serve"]}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": "web"}},
        "spec": {"containers": containers, "terminationGracePeriodSeconds": 0, **spec},
    }


def deployment(replicas: int) -> dict[str, Any]:
    labels = {"app": "web"}
    template = {"metadata": {"labels": labels}, "spec": pod("x")["spec"]}
    spec = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web"},
        "spec": spec,
    }


def all_ready(count: int) -> Callable[[dict[str, dict[str, Any]]], bool]:
    return lambda pods: len(pods) == count and all(pod["isReady"] for pod in pods.values())


async def test_pods_are_bound_to_the_node_of_their_build_with_a_reason(
    tmp_path: Path, layout: Path
) -> None:
    async with play_session(tmp_path, layout) as session:
        changes = await session.apply(pod("old", LEGACY), pod("new"), nodes=("2019", "2022"))
        assert changes == [
            "node/win-2019 created",
            "node/win-2022 created",
            "pod/old created",
            "pod/new created",
        ]
        await session.until(all_ready(2))
        pods = session.pods()
        assert {name: one["node"] for name, one in pods.items()} == {
            "old": "win-2019",
            "new": "win-2022",
        }
        assert pods["old"]["why"].startswith("image 10.0.17763 fits; not win-2022: ")


async def test_unschedulable_pod_is_bound_once_a_fitting_node_is_added(
    tmp_path: Path, layout: Path
) -> None:
    async with play_session(tmp_path, layout) as session:
        await session.apply(pod("old", LEGACY), nodes=("2022",))
        await session.until(lambda pods: bool(pods["old"]["against"]))
        waiting = session.pods()["old"]
        assert waiting["state"] == "Pending"
        assert waiting["advice"][0].endswith("--node 2019")
        view = object_view(session.control_plane, ObjectKey("Pod", "default", "old"))
        assert view is not None
        assert view["events"][-1]["reason"] == "FailedScheduling"
        await session.apply(pod("old", LEGACY), nodes=("2019",))
        await session.until(all_ready(1))


async def test_reapply_changes_only_what_differs(tmp_path: Path, layout: Path) -> None:
    async with play_session(tmp_path, layout) as session:
        await session.apply(deployment(2), pod("alone"))
        await session.until(all_ready(3))
        before = {name: one["uid"] for name, one in session.pods().items()}
        assert await session.apply(deployment(2), pod("alone")) == [
            "pod/alone unchanged",
            "deployment.apps/web unchanged",
        ]
        assert await session.apply(deployment(1)) == ["deployment.apps/web configured"]
        await session.until(all_ready(2))
        changed = pod("alone", hostname="other")
        assert await session.apply(changed) == ["pod/alone replaced"]
        await session.until(
            lambda pods: all_ready(2)(pods) and pods["alone"]["uid"] != before["alone"]
        )
        owned = next(name for name in before if name != "alone" and name in session.pods())
        with pytest.raises(InvalidInput, match="is owned by a workload"):
            await session.apply(pod(owned))


def config_map(name: str, **data: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


async def test_rejected_apply_changes_nothing(tmp_path: Path, layout: Path) -> None:
    async with play_session(tmp_path, layout) as session:
        await session.apply(deployment(1), nodes=("2022:web",))
        await session.until(all_ready(1))
        owned = next(iter(session.pods()))
        keys = session.control_plane.records.keys()
        before = [session.control_plane.records.get(key) for key in keys]
        new = [validate_object(one, "default") for one in (config_map("new"), pod("new"))]
        other = [parse_node("2019:web")]
        for request, message in (
            (ApplyRequest(new, other, publish=["8080:web"]), "of 10.0.20348 .* is already running"),
            (ApplyRequest([*new, *other]), "of 10.0.20348 .* is already running"),
            (ApplyRequest(new, [parse_node("2019:b"), parse_node("2022:b")]), "is requested twice"),
            (
                ApplyRequest([*new, validate_object(pod(owned), "default")]),
                "is owned by a workload",
            ),
            (ApplyRequest(new, publish=["8080:web", "no"]), "not a port to publish"),
        ):
            with pytest.raises(InvalidInput, match=message):
                await session.control_plane.apply(request)
        assert session.control_plane.records.keys() == keys
        assert [session.control_plane.records.get(key) for key in keys] == before
        assert session.control_plane.records.setting("publish") == []
        assert list(session.control_plane.fleet.nodes) == ["web"]
        assert await session.apply(config_map("new")) == ["configmap/new created"]


async def test_failed_node_start_leaves_state_unchanged(tmp_path: Path, layout: Path) -> None:
    async with play_session(tmp_path, layout) as session:
        await session.apply(pod("one"), nodes=("2022",))
        await session.until(all_ready(1))
        keys = session.control_plane.records.keys()
        obstacle = tmp_path / "nodes/win-2019"
        obstacle.touch()
        with pytest.raises(OSError, match="win-2019"):
            await session.apply(config_map("new"), nodes=("2019",))
        assert session.control_plane.records.keys() == keys
        assert list(session.control_plane.fleet.nodes) == ["win-2022"]
        obstacle.unlink()
        assert await session.apply(config_map("new"), nodes=("2019",)) == [
            "node/win-2019 created",
            "configmap/new created",
        ]


async def test_delete_removes_objects_and_idle_nodes(tmp_path: Path, layout: Path) -> None:
    async with play_session(tmp_path, layout) as session:
        await session.apply(CLAIM, deployment(2))
        await session.until(all_ready(2))
        kept = tmp_path / "play/volumes/default_data"
        assert kept.is_dir()
        await session.control_plane.delete(
            session.control_plane.desired.applied_keys(volumes=False), volumes=False
        )
        await session.until(lambda pods: not pods and not session.control_plane.fleet.nodes)
        assert session.control_plane.is_idle
        assert kept.is_dir()
        await session.control_plane.delete(
            session.control_plane.desired.applied_keys(volumes=True), volumes=True
        )
        await session.until(lambda _: session.control_plane.is_done)
        assert not kept.exists()
        assert session.control_plane.records.keys() == []


CLAIM = {
    "apiVersion": "v1",
    "kind": "PersistentVolumeClaim",
    "metadata": {"name": "data"},
    "spec": {"accessModes": ["ReadWriteOnce"]},
}
CLAIMED = ObjectKey("PersistentVolumeClaim", "default", "data")


def pod_with_claim(name: str) -> dict[str, Any]:
    volume = {"name": "data", "persistentVolumeClaim": {"claimName": "data"}}
    return pod(name, volumes=[volume])


async def test_deleted_claim_is_removed_with_its_last_pod(tmp_path: Path, layout: Path) -> None:
    data = tmp_path / "play/volumes/default_data"
    async with play_session(tmp_path, layout) as session:
        await session.apply(CLAIM, pod_with_claim("one"))
        await session.until(all_ready(1))
        uid = session.control_plane.records.document(CLAIMED)["metadata"]["uid"]  # type: ignore[index]
        (data / "note").write_text("of the first")
        deleted = await session.control_plane.delete([CLAIMED], volumes=True)
        assert [str(change) for change in deleted] == ["persistentvolumeclaim/data deleted"]
    async with play_session(tmp_path, layout) as session:
        await session.until(all_ready(1))
        assert (data / "note").exists()
        assert state_view(session.control_plane)["claims"] == [
            {"namespace": "default", "name": "data", "state": "Terminating", "pods": ["one"]}
        ]
        changes = await session.apply(CLAIM, pod_with_claim("two"))
        assert changes == ["persistentvolumeclaim/data replaced", "pod/two created"]
        waiting = 'persistentvolumeclaim "data" is being deleted.'
        await session.until(lambda pods: pods["two"]["trouble"] == waiting)
        (data / "late").write_text("while it ends")
        await session.control_plane.delete([ObjectKey("Pod", "default", "one")], volumes=False)
        await session.until(all_ready(1))
        await session.until(lambda _: not session.control_plane.claims.released_directories())
        assert list(data.iterdir()) == []
        new = session.control_plane.records.document(CLAIMED)
        assert new is not None
        assert new["metadata"]["uid"] != uid
        assert new["status"] == {"phase": "Bound"}


async def test_leftover_volume_directories_are_deleted_on_start(
    tmp_path: Path, layout: Path
) -> None:
    left = tmp_path / "play/volumes/.removed/left"
    left.mkdir(parents=True)
    (left / "note").write_text("of a process that was killed")
    async with play_session(tmp_path, layout) as session:
        await session.until(lambda _: not left.exists())


async def test_store_and_volumes_are_private_to_the_owner(tmp_path: Path, layout: Path) -> None:
    play = tmp_path / "play"
    (play / "volumes").mkdir(parents=True)
    (play / "volumes").chmod(0o755)
    for name in ("records.db", "records.db-wal", "records.db-shm"):
        (play / name).touch(0o644)
    async with play_session(tmp_path, layout) as session:
        await session.apply(CLAIM)
        modes = {path.name: path.stat().st_mode & 0o777 for path in play.iterdir()}
        assert modes["volumes"] == 0o700
        assert {mode for name, mode in modes.items() if "records" in name} == {0o600}
        assert len([name for name in modes if "records" in name]) == 3
        assert play.stat().st_mode & 0o055 == 0o055


async def test_restarted_control_plane_keeps_pods(tmp_path: Path, layout: Path) -> None:
    async with play_session(tmp_path, layout) as session:
        await session.apply(deployment(2))
        await session.until(all_ready(2))
        before = {name: one["uid"] for name, one in session.pods().items()}
    async with play_session(tmp_path, layout) as session:
        assert {name: one["uid"] for name, one in session.pods().items()} == before
        await session.until(all_ready(2))
        assert {name: one["uid"] for name, one in session.pods().items()} == before


def job(*command: str, **spec: Any) -> dict[str, Any]:
    containers = [{"name": "app", "image": WEB, "command": [*command]}]
    inner = {"containers": containers, "restartPolicy": "Never", "terminationGracePeriodSeconds": 0}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "once"},
        "spec": {"template": {"spec": inner}, **spec},
    }


def condition_of_job(session: PlaySession) -> str:
    status = session.control_plane.workloads.statuses.get(ObjectKey("Job", "default", "once"), {})
    return str(status.get("condition", ""))


async def test_job_runs_to_completion(tmp_path: Path, layout: Path) -> None:
    async with play_session(tmp_path, layout) as session:
        await session.apply(job("simulate", "0", "0.1", completions=2))
        await session.until(lambda _: condition_of_job(session) == "Complete")
        assert [one["state"] for one in session.pods().values()] == ["Completed", "Completed"]


async def test_failed_job_is_not_restarted_by_next_process(tmp_path: Path, layout: Path) -> None:
    endless = job("serve", activeDeadlineSeconds=1)
    async with play_session(tmp_path, layout) as session:
        await session.apply(endless)
        await session.until(lambda pods: condition_of_job(session) == "Failed" and not pods)
        view = object_view(session.control_plane, ObjectKey("Job", "default", "once"))
        assert view is not None
        reasons = [event["reason"] for event in view["events"]]
        assert sorted(reasons) == ["DeadlineExceeded", "SuccessfulCreate", "SuccessfulDelete"]
    async with play_session(tmp_path, layout) as session:
        await session.until(lambda _: condition_of_job(session) == "Failed")
        changed = {**endless, "spec": {**endless["spec"], "activeDeadlineSeconds": 2}}
        await session.apply(changed)
        async with session.control_plane._lock:
            await session.control_plane._sync()
        assert (condition_of_job(session), session.pods()) == ("Failed", {})
        await session.control_plane.delete([ObjectKey("Job", "default", "once")], volumes=False)
        await session.apply(endless)
        await session.until(all_ready(1))


async def test_apply_plans_again_if_nodes_change_during_the_pulls(
    tmp_path: Path, layout: Path
) -> None:
    async with play_session(tmp_path, layout) as session:
        await session.apply(pod("one"), nodes=("2022",))
        await session.until(all_ready(1))
        lines: list[str] = []

        def report(line: dict[str, Any]) -> None:
            if not lines:
                session.control_plane.records.remove(ObjectKey("Node", "", "win-2022"))
            lines.append(line["type"])

        request = ApplyRequest([validate_object(pod("two"), "default")])
        changes, notes = await session.control_plane.apply(request, report)
        assert [str(change) for change in changes] == ["node/win-2022 created", "pod/two created"]
        assert notes[0].startswith("one node, ")
        assert lines == ["validated", "validated"]


async def test_cancelled_apply_changes_nothing(tmp_path: Path, layout: Path) -> None:
    async with play_session(tmp_path, layout) as session:
        request = ApplyRequest([validate_object(pod("one"), "default")], layouts=[str(layout)])
        validated = asyncio.Event()
        applying = asyncio.create_task(
            session.control_plane.apply(request, lambda _: validated.set())
        )
        await validated.wait()
        applying.cancel()
        with pytest.raises(asyncio.CancelledError):
            await applying
        records = session.control_plane.records
        assert (records.keys(), records.setting("layouts")) == ([], [])
        assert session.control_plane.fleet.nodes == {}
