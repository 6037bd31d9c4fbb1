"""The controllers of play, driven round by round: what they make is made ready, as a node does."""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from lightkube.models import core_v1 as v1

from winpod.node.play.controllers import Around, next_for
from winpod.node.play.cron import parse_schedule
from winpod.node.play.templates import Steps, name_of
from winpod.windows.errors import InvalidInput

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


class Round:
    """A workload and its pods. `step` does what the controller says, and no more."""

    def __init__(self, document: dict[str, Any], nodes: tuple[str, ...] = ()) -> None:
        self.document = document
        self.nodes = nodes
        self.now = NOW
        self.pods: dict[str, v1.Pod] = {}
        self.last = Steps()
        self.status: Mapping[str, Any] = {}

    def step(self) -> Steps:
        around = Around(self.now, taken=list(self.pods), nodes=self.nodes, status=self.status)
        self.last = next_for(self.document, list(self.pods.values()), around)
        self.status = self.last.status or {}
        for pod in self.last.delete:
            del self.pods[name_of(pod)]
        for pod in self.last.create:
            assert pod.metadata is not None
            assert name_of(pod) not in self.pods
            pod.metadata.uid = str(uuid4())
            pod.metadata.creationTimestamp = self.now
            self.pods[name_of(pod)] = pod
        return self.last

    def make(
        self, *names: str, phase: str = "Running", ready: bool = True, restarts: int = 0
    ) -> None:
        for name in names or self.pods:
            conditions = [
                v1.PodCondition(
                    type="Ready", status=str(ready and phase == "Running"), lastTransitionTime=NOW
                )
            ]
            ended = v1.ContainerStateTerminated(exitCode=1, finishedAt=self.now)
            status = v1.ContainerStatus(
                name="app",
                image="app",
                imageID="",
                ready=ready,
                restartCount=restarts,
                state=v1.ContainerState(terminated=ended if phase == "Failed" else None),
            )
            self.pods[name].status = v1.PodStatus(
                phase=phase, conditions=conditions, containerStatuses=[status]
            )

    def images(self) -> list[str]:
        specs = [pod.spec for pod in self.pods.values()]
        return sorted(spec.containers[0].image or "" for spec in specs if spec)

    def set_image(self, image: str) -> None:
        self.document["spec"]["template"]["spec"]["containers"][0]["image"] = image


def workload(kind: str, **spec: Any) -> dict[str, Any]:
    group = "batch/v1" if kind == "Job" else "apps/v1"
    policy = {"restartPolicy": "Never"} if kind == "Job" else {}
    template = {
        "metadata": {"labels": {"app": "web"}},
        "spec": {"containers": [{"name": "app", "image": "app:1"}], **policy},
    }
    selector = {} if kind == "Job" else {"selector": {"matchLabels": {"app": "web"}}}
    return {
        "apiVersion": group,
        "kind": kind,
        "metadata": {"name": "web", "namespace": "shop", "uid": "u", "creationTimestamp": None},
        "spec": {"template": template, **selector, **spec},
    }


def test_a_deployment_has_as_many_pods_as_it_asks_for() -> None:
    played = Round(workload("Deployment", replicas=3))
    assert len(played.step().create) == 3
    assert played.step() == Steps(status=played.last.status)
    name = next(iter(played.pods))
    assert name.startswith("web-")
    assert len(name.split("-")) == 3
    played.make()
    played.document["spec"]["replicas"] = 1
    assert len(played.step().delete) == 2
    played.make(*played.pods, phase="Failed")
    assert len(played.step().create) == 1


def test_a_rolling_update_never_goes_below_what_is_to_be_available() -> None:
    played = Round(workload("Deployment", replicas=4))
    played.step()
    played.make()
    played.set_image("app:2")
    rounds = 0
    while played.images() != ["app:2"] * 4 or played.last.delete or played.last.create:
        played.step()
        ready = [p for p in played.pods.values() if p.status and p.status.phase == "Running"]
        assert len(ready) >= 3
        assert len(played.pods) <= 5
        played.make()
        rounds += 1
        assert rounds < 20


def test_an_update_that_does_not_become_ready_leaves_the_old_pods() -> None:
    played = Round(workload("Deployment", replicas=2))
    played.step()
    played.make()
    played.set_image("bad:1")
    for _ in range(5):
        played.step()
    assert played.images().count("app:1") == 2
    played.set_image("app:1")
    for _ in range(3):
        played.step()
    assert played.images() == ["app:1", "app:1"]


def test_recreate_waits_until_the_old_ones_are_gone() -> None:
    played = Round(workload("Deployment", replicas=2, strategy={"type": "Recreate"}))
    played.step()
    played.make()
    played.set_image("app:2")
    steps = played.step()
    assert (len(steps.delete), len(steps.create)) == (2, 0)
    assert len(played.step().create) == 2


def test_a_replica_set_replaces_what_has_ended() -> None:
    played = Round(workload("ReplicaSet", replicas=2))
    played.step()
    first = next(iter(played.pods))
    played.make(first, phase="Failed")
    steps = played.step()
    assert [name_of(pod) for pod in steps.delete] == [first]
    assert len(steps.create) == 1


def claims(name: str) -> list[dict[str, Any]]:
    return [{"metadata": {"name": name}, "spec": {"accessModes": ["ReadWriteOnce"]}}]


def test_a_stateful_set_goes_in_order_and_keeps_its_claims() -> None:
    document = workload(
        "StatefulSet", replicas=3, serviceName="web", volumeClaimTemplates=claims("data")
    )
    played = Round(document)
    for number in range(3):
        steps = played.step()
        assert [name_of(pod) for pod in steps.create] == [f"web-{number}"]
        assert [c.metadata.name for c in steps.claims if c.metadata] == [f"data-web-{number}"]
        assert not played.step().create
        played.make(f"web-{number}")
    spec = played.pods["web-1"].spec
    assert spec is not None
    assert spec.volumes is not None
    assert (spec.hostname, spec.subdomain) == ("web-1", "web")
    claim = spec.volumes[0].persistentVolumeClaim
    assert claim is not None
    assert claim.claimName == "data-web-1"
    played.set_image("app:2")
    order = []
    for _ in range(12):
        order += [name_of(pod) for pod in played.step().delete]
        played.make()
    assert order == ["web-2", "web-1", "web-0"]
    assert played.images() == ["app:2"] * 3
    document["spec"]["replicas"] = 1
    gone = [[name_of(pod) for pod in played.step().delete] for _ in range(3)]
    assert gone == [["web-2"], ["web-1"], []]


def test_a_parallel_stateful_set_comes_at_once() -> None:
    played = Round(workload("StatefulSet", replicas=3, podManagementPolicy="Parallel"))
    assert len(played.step().create) == 3


def test_a_daemon_set_has_one_pod_on_each_node() -> None:
    played = Round(workload("DaemonSet"), nodes=("a", "b"))
    steps = played.step()
    assert [pod.spec.nodeName for pod in steps.create if pod.spec] == ["a", "b"]
    played.make()
    played.set_image("app:2")
    gone = []
    for _ in range(6):
        gone.append(len(played.step().delete))
        played.make()
    assert max(gone) == 1
    assert played.images() == ["app:2", "app:2"]
    played.nodes = ("b",)
    assert [pod.spec.nodeName for pod in played.step().delete if pod.spec] == ["a"]


def test_a_job_ends_when_enough_pods_have() -> None:
    played = Round(workload("Job", completions=3, parallelism=2))
    assert len(played.step().create) == 2
    first, second = list(played.pods)
    played.make(first, phase="Succeeded")
    assert len(played.step().create) == 1
    played.make(second, phase="Succeeded")
    assert not played.step().create
    played.make(*played.pods, phase="Succeeded")
    steps = played.step()
    assert not steps.create
    assert steps.status is not None
    assert steps.status["condition"] == "Complete"


def test_a_job_waits_longer_after_each_failure_and_gives_up() -> None:
    played = Round(workload("Job", backoffLimit=1))
    played.step()
    played.make(phase="Failed")
    steps = played.step()
    assert not steps.create
    assert steps.again_at == NOW + timedelta(seconds=10)
    played.now = NOW + timedelta(seconds=11)
    assert len(played.step().create) == 1
    played.make(phase="Failed")
    steps = played.step()
    assert steps.status is not None
    assert (steps.status["condition"], steps.status["reason"]) == (
        "Failed",
        "BackoffLimitExceeded",
    )


def test_a_job_past_its_deadline_has_failed_for_good() -> None:
    played = Round(workload("Job", activeDeadlineSeconds=60))
    played.step()
    played.make()
    played.now = NOW + timedelta(seconds=60)
    played.step()
    assert (played.status["condition"], played.status["reason"]) == ("Failed", "DeadlineExceeded")
    assert not played.pods
    assert not played.step().create
    assert played.status["reason"] == "DeadlineExceeded"


def test_a_job_whose_pod_restarted_too_often_has_failed_for_good() -> None:
    job = workload("Job", backoffLimit=2)
    job["spec"]["template"]["spec"]["restartPolicy"] = "OnFailure"
    played = Round(job)
    played.step()
    played.make(restarts=2)
    assert not played.step().delete
    played.make(restarts=3)
    played.step()
    assert not played.pods
    assert not played.step().create
    assert played.status["reason"] == "BackoffLimitExceeded"


def test_a_job_that_is_complete_stays_so_without_its_pods() -> None:
    played = Round(workload("Job"))
    played.step()
    played.make(phase="Succeeded")
    played.step()
    played.pods.clear()
    assert not played.step().create
    assert (played.status["condition"], played.status["succeeded"]) == ("Complete", 1)


def test_an_indexed_job_tells_each_pod_its_number() -> None:
    played = Round(workload("Job", completions=2, parallelism=2, completionMode="Indexed"))
    created = played.step().create
    variables = [
        [(v.name, v.value) for v in pod.spec.containers[0].env or ()] for pod in created if pod.spec
    ]
    assert variables == [[("JOB_COMPLETION_INDEX", "0")], [("JOB_COMPLETION_INDEX", "1")]]
    assert [pod.spec.hostname for pod in created if pod.spec] == ["web-0", "web-1"]


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("*/15 * * * *", "2026-03-01 12:15"),
        ("0 0 * * *", "2026-03-02 00:00"),
        ("30 8 * * mon-fri", "2026-03-02 08:30"),
        ("0 12 13 * fri", "2026-03-06 12:00"),
        ("@monthly", "2026-04-01 00:00"),
        ("5 4 29 2 *", "2028-02-29 04:05"),
        ("0 9 * * 7", "2026-03-08 09:00"),
    ],
)
def test_schedules_mean_what_cron_means(schedule: str, expected: str) -> None:
    found = parse_schedule(schedule).after(NOW)
    assert found is not None
    assert f"{found:%Y-%m-%d %H:%M}" == expected


@pytest.mark.parametrize("schedule", ["", "* * * *", "61 * * * *", "a * * * *", "*/0 * * * *"])
def test_what_is_no_schedule_is_refused(schedule: str) -> None:
    with pytest.raises(InvalidInput):
        parse_schedule(schedule)


def cron_job(**spec: Any) -> dict[str, Any]:
    job = workload("Job")
    return {
        "apiVersion": "batch/v1",
        "kind": "CronJob",
        "metadata": {**job["metadata"], "creationTimestamp": "2026-03-01T11:58:30Z"},
        "spec": {"schedule": "* * * * *", "jobTemplate": {"spec": job["spec"]}, **spec},
    }


def test_a_cron_job_makes_the_latest_of_what_was_missed() -> None:
    steps = next_for(cron_job(), [], Around(NOW + timedelta(seconds=1)))
    minutes = int(NOW.timestamp()) // 60
    assert [job.metadata.name for job in steps.jobs] == [f"web-{minutes}"]
    assert steps.again_at == NOW + timedelta(minutes=1)
    assert steps.status is not None
    again = next_for(cron_job(), [], Around(NOW + timedelta(seconds=2), status=steps.status))
    assert not again.jobs


def test_a_cron_job_forbids_a_second_one_and_keeps_few_old_ones() -> None:
    def job(number: int) -> dict[str, Any]:
        made = workload("Job")
        return {**made, "metadata": {**made["metadata"], "name": f"web-{number}"}}

    running: Callable[..., Steps] = lambda **spec: next_for(  # noqa: E731
        cron_job(**spec), [], Around(NOW, jobs=[job(1)])
    )
    assert running().jobs
    assert not running(concurrencyPolicy="Forbid").jobs
    assert running(concurrencyPolicy="Replace").remove_jobs == ("web-1",)
    done = {f"web-{n}": {"condition": "Complete"} for n in range(5)}
    steps = next_for(
        cron_job(suspend=True), [], Around(NOW, jobs=[job(n) for n in range(5)], statuses=done)
    )
    assert steps.remove_jobs == ("web-0", "web-1")
