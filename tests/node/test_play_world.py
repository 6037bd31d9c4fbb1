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
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "data"},
        "spec": {"accessModes": ["ReadWriteOnce"]},
    }
    async with playing(tmp_path, layout) as played:
        await played.apply(claim, deployment(2))
        await played.until(all_ready(2))
        kept = tmp_path / "play/volumes/default_data"
        assert kept.is_dir()
        await played.world.delete(played.world.desired.everything(volumes=False), volumes=False)
        await played.until(lambda pods: not pods and not played.world.fleet.nodes)
        assert played.world.is_idle
        assert kept.is_dir()
        await played.world.delete(played.world.desired.everything(volumes=True), volumes=True)
        assert not kept.exists()
        assert played.world.records.keys() == []


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
