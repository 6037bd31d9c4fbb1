"""All that is played, with containers that are simulated: from manifests to pods and back."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import EXAMPLES
from tests.cli.winpod import winpod
from winpod.cri.config import Config
from winpod.cri.settings import Compute, RuntimeSettings
from winpod.images.pull import pull
from winpod.images.store import Store
from winpod.node.play.nodes import parse_node
from winpod.node.play.objects import Key, check
from winpod.node.play.telling import state, whole
from winpod.node.play.world import Asked, World
from winpod.windows.builds import parse_build
from winpod.windows.errors import InvalidInput
from winpod.windows.handlers import PROCESS

LEGACY, WEB = "registry.example/legacy:1.0", "registry.example/web:1.0"


@pytest.fixture(scope="module")
def layout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One image for 2019, and one for 2022 and 2025."""
    folder = tmp_path_factory.mktemp("play")
    for name, *builds in ((LEGACY, "2019"), (WEB, "2022", "2025")):
        options = [word for build in builds for word in ("--os-version", build)]
        target = f"oci:{folder}/images:{name}"
        ran = winpod("image", "pack", str(EXAMPLES / "app"), "-t", target, *options, home=folder)
        assert ran.code == 0, ran.err
    return folder / "images"


class Playing:
    def __init__(self, world: World, layout: Path) -> None:
        self.world = world
        self.layout = str(layout)

    async def apply(self, *documents: dict[str, Any], nodes: tuple[str, ...] = ()) -> list[str]:
        """As the command does it: images first, then the objects."""
        objects = [check(document, "default") for document in documents]
        asked = Asked(objects, [parse_node(text) for text in nodes], [self.layout])
        pulls = await self.world.pulls(asked)
        with Store(self.world.root) as store:
            for one in pulls:
                name = f"oci:{self.layout}:{one.image}"
                await pull(store, name, PROCESS, parse_build(one.build))
        changes, _ = await self.world.apply(replace(asked, local=tuple(one.image for one in pulls)))
        return [str(change) for change in changes]

    def pods(self) -> dict[str, dict[str, Any]]:
        return {pod["name"]: pod for pod in state(self.world)["pods"]}

    async def until(self, is_so: Callable[[dict[str, dict[str, Any]]], bool]) -> None:
        async with asyncio.timeout(120):
            while not is_so(self.pods()):  # noqa: ASYNC110 - nobody tells of a state
                await asyncio.sleep(0.05)


@asynccontextmanager
async def playing(root: Path, layout: Path) -> AsyncIterator[Playing]:
    config = Config(root, runtime=RuntimeSettings(compute=Compute.SIMULATED))
    world = World(root, config)
    await world.start()
    try:
        yield Playing(world, layout)
    finally:
        await world.stop()


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


async def test_pods_go_to_the_node_of_their_build_and_say_why(tmp_path: Path, layout: Path) -> None:
    async with playing(tmp_path, layout) as played:
        changes = await played.apply(pod("old", LEGACY), pod("new"), nodes=("2019", "2022"))
        assert changes == [
            "node/win-2019 created",
            "node/win-2022 created",
            "pod/old created",
            "pod/new created",
        ]
        await played.until(all_ready(2))
        pods = played.pods()
        assert {name: one["node"] for name, one in pods.items()} == {
            "old": "win-2019",
            "new": "win-2022",
        }
        assert pods["old"]["why"].startswith("image 10.0.17763 fits; not win-2022: ")


async def test_a_pod_that_fits_nowhere_waits_until_a_node_comes(
    tmp_path: Path, layout: Path
) -> None:
    async with playing(tmp_path, layout) as played:
        await played.apply(pod("old", LEGACY), nodes=("2022",))
        await played.until(lambda pods: bool(pods["old"]["against"]))
        waiting = played.pods()["old"]
        assert waiting["state"] == "Pending"
        assert waiting["advice"][0].endswith("--node 2019")
        told = whole(played.world, Key("Pod", "default", "old"))
        assert told is not None
        assert told["events"][-1]["reason"] == "FailedScheduling"
        await played.apply(pod("old", LEGACY), nodes=("2019",))
        await played.until(all_ready(1))


async def test_what_is_applied_again_changes_only_what_is_different(
    tmp_path: Path, layout: Path
) -> None:
    async with playing(tmp_path, layout) as played:
        await played.apply(deployment(2), pod("alone"))
        await played.until(all_ready(3))
        before = {name: one["uid"] for name, one in played.pods().items()}
        assert await played.apply(deployment(2), pod("alone")) == [
            "pod/alone unchanged",
            "deployment.apps/web unchanged",
        ]
        assert await played.apply(deployment(1)) == ["deployment.apps/web configured"]
        await played.until(all_ready(2))
        changed = pod("alone", hostname="other")
        assert await played.apply(changed) == ["pod/alone replaced"]
        await played.until(
            lambda pods: all_ready(2)(pods) and pods["alone"]["uid"] != before["alone"]
        )
        owned = next(name for name in before if name != "alone" and name in played.pods())
        with pytest.raises(InvalidInput, match="belongs to a workload"):
            await played.apply(pod(owned))


def config_map(name: str, **data: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


async def test_what_is_refused_changes_nothing_and_is_in_nobodys_way(
    tmp_path: Path, layout: Path
) -> None:
    async with playing(tmp_path, layout) as played:
        await played.apply(deployment(1), nodes=("2022:web",))
        await played.until(all_ready(1))
        owned = next(iter(played.pods()))
        keys = played.world.records.keys()
        before = [played.world.records.get(key) for key in keys]
        new = [check(one, "default") for one in (config_map("new"), pod("new"))]
        other = [parse_node("2019:web")]
        for refused, words in (
            (Asked(new, other, publish=["8080:web"]), "is 10.0.20348 .*, and runs"),
            (Asked([*new, *other]), "is 10.0.20348 .*, and runs"),
            (Asked(new, [parse_node("2019:b"), parse_node("2022:b")]), "asked for as well"),
            (Asked([*new, check(pod(owned), "default")]), "belongs to a workload"),
            (Asked(new, publish=["8080:web", "no"]), "not a port to publish"),
        ):
            for ask in (played.world.pulls, played.world.apply):
                with pytest.raises(InvalidInput, match=words):
                    await ask(refused)
        assert played.world.records.keys() == keys
        assert [played.world.records.get(key) for key in keys] == before
        assert played.world.records.setting("publish") == []
        assert list(played.world.fleet.nodes) == ["web"]
        assert await played.apply(config_map("new")) == ["configmap/new created"]


async def test_a_node_that_cannot_start_leaves_all_as_it_was(tmp_path: Path, layout: Path) -> None:
    async with playing(tmp_path, layout) as played:
        await played.apply(pod("one"), nodes=("2022",))
        await played.until(all_ready(1))
        keys = played.world.records.keys()
        in_the_way = tmp_path / "nodes/win-2019"
        in_the_way.touch()
        with pytest.raises(OSError, match="win-2019"):
            await played.apply(config_map("new"), nodes=("2019",))
        assert played.world.records.keys() == keys
        assert list(played.world.fleet.nodes) == ["win-2022"]
        in_the_way.unlink()
        assert await played.apply(config_map("new"), nodes=("2019",)) == [
            "node/win-2019 created",
            "configmap/new created",
        ]


async def test_what_is_deleted_is_gone_and_the_nodes_with_it(tmp_path: Path, layout: Path) -> None:
    async with playing(tmp_path, layout) as played:
        await played.apply(CLAIM, deployment(2))
        await played.until(all_ready(2))
        kept = tmp_path / "play/volumes/default_data"
        assert kept.is_dir()
        await played.world.delete(played.world.desired.everything(volumes=False), volumes=False)
        await played.until(lambda pods: not pods and not played.world.fleet.nodes)
        assert played.world.is_idle
        assert kept.is_dir()
        await played.world.delete(played.world.desired.everything(volumes=True), volumes=True)
        await played.until(lambda _: played.world.is_done)
        assert not kept.exists()
        assert played.world.records.keys() == []


CLAIM = {
    "apiVersion": "v1",
    "kind": "PersistentVolumeClaim",
    "metadata": {"name": "data"},
    "spec": {"accessModes": ["ReadWriteOnce"]},
}
CLAIMED = Key("PersistentVolumeClaim", "default", "data")


def pod_with_claim(name: str) -> dict[str, Any]:
    volume = {"name": "data", "persistentVolumeClaim": {"claimName": "data"}}
    return pod(name, volumes=[volume])


async def test_a_claim_that_is_deleted_goes_with_the_last_pod_that_has_it(
    tmp_path: Path, layout: Path
) -> None:
    data = tmp_path / "play/volumes/default_data"
    async with playing(tmp_path, layout) as played:
        await played.apply(CLAIM, pod_with_claim("one"))
        await played.until(all_ready(1))
        uid = played.world.records.document(CLAIMED)["metadata"]["uid"]  # type: ignore[index]
        (data / "note").write_text("of the first")
        told = await played.world.delete([CLAIMED], volumes=True)
        assert [str(change) for change in told] == ["persistentvolumeclaim/data deleted"]
    async with playing(tmp_path, layout) as played:
        await played.until(all_ready(1))
        assert (data / "note").exists()
        assert state(played.world)["claims"] == [
            {"namespace": "default", "name": "data", "state": "Terminating", "pods": ["one"]}
        ]
        changes = await played.apply(CLAIM, pod_with_claim("two"))
        assert changes == ["persistentvolumeclaim/data replaced", "pod/two created"]
        waiting = 'persistentvolumeclaim "data" is being deleted.'
        await played.until(lambda pods: pods["two"]["trouble"] == waiting)
        (data / "late").write_text("while it ends")
        await played.world.delete([Key("Pod", "default", "one")], volumes=False)
        await played.until(all_ready(1))
        await played.until(lambda _: not played.world.claims.aside())
        assert list(data.iterdir()) == []
        new = played.world.records.document(CLAIMED)
        assert new is not None
        assert new["metadata"]["uid"] != uid
        assert new["status"] == {"phase": "Bound"}


async def test_what_claims_had_is_removed_by_whoever_comes_next(
    tmp_path: Path, layout: Path
) -> None:
    left = tmp_path / "play/volumes/.removed/left"
    left.mkdir(parents=True)
    (left / "note").write_text("of a process that was killed")
    async with playing(tmp_path, layout) as played:
        await played.until(lambda _: not left.exists())


async def test_secrets_and_what_claims_have_are_nobody_elses(tmp_path: Path, layout: Path) -> None:
    play = tmp_path / "play"
    (play / "volumes").mkdir(parents=True)
    (play / "volumes").chmod(0o755)
    for name in ("records.db", "records.db-wal", "records.db-shm"):
        (play / name).touch(0o644)
    async with playing(tmp_path, layout) as played:
        await played.apply(CLAIM)
        modes = {path.name: path.stat().st_mode & 0o777 for path in play.iterdir()}
        assert modes["volumes"] == 0o700
        assert {mode for name, mode in modes.items() if "records" in name} == {0o600}
        assert len([name for name in modes if "records" in name]) == 3
        assert play.stat().st_mode & 0o055 == 0o055


async def test_a_process_that_comes_after_goes_on_with_the_same_pods(
    tmp_path: Path, layout: Path
) -> None:
    async with playing(tmp_path, layout) as played:
        await played.apply(deployment(2))
        await played.until(all_ready(2))
        before = {name: one["uid"] for name, one in played.pods().items()}
    async with playing(tmp_path, layout) as played:
        assert {name: one["uid"] for name, one in played.pods().items()} == before
        await played.until(all_ready(2))
        assert {name: one["uid"] for name, one in played.pods().items()} == before


def job(*command: str, **spec: Any) -> dict[str, Any]:
    containers = [{"name": "app", "image": WEB, "command": [*command]}]
    inner = {"containers": containers, "restartPolicy": "Never", "terminationGracePeriodSeconds": 0}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "once"},
        "spec": {"template": {"spec": inner}, **spec},
    }


def condition_of_job(played: Playing) -> str:
    status = played.world.workloads.statuses.get(Key("Job", "default", "once"), {})
    return str(status.get("condition", ""))


async def test_a_job_runs_to_its_end(tmp_path: Path, layout: Path) -> None:
    async with playing(tmp_path, layout) as played:
        await played.apply(job("simulate", "0", "0.1", completions=2))
        await played.until(lambda _: condition_of_job(played) == "Complete")
        assert [one["state"] for one in played.pods().values()] == ["Completed", "Completed"]


async def test_a_job_that_failed_is_not_begun_again_by_the_next_process_either(
    tmp_path: Path, layout: Path
) -> None:
    endless = job("serve", activeDeadlineSeconds=1)
    async with playing(tmp_path, layout) as played:
        await played.apply(endless)
        await played.until(lambda pods: condition_of_job(played) == "Failed" and not pods)
        told = whole(played.world, Key("Job", "default", "once"))
        assert told is not None
        reasons = [event["reason"] for event in told["events"]]
        assert sorted(reasons) == ["DeadlineExceeded", "SuccessfulCreate", "SuccessfulDelete"]
    async with playing(tmp_path, layout) as played:
        await played.until(lambda _: condition_of_job(played) == "Failed")
        changed = {**endless, "spec": {**endless["spec"], "activeDeadlineSeconds": 2}}
        await played.apply(changed)
        async with played.world._turn:
            await played.world._round()
        assert (condition_of_job(played), played.pods()) == ("Failed", {})
        await played.world.delete([Key("Job", "default", "once")], volumes=False)
        await played.apply(endless)
        await played.until(all_ready(1))
