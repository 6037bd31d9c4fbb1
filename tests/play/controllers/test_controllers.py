"""Workload controllers, driven step by step; the test makes pods ready, as a kubelet does."""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest

from winpod.errors import InvalidInput
from winpod.k8s.models import core_v1 as v1
from winpod.play.controllers.manager import ControllerContext, reconcile
from winpod.play.cron_schedule import parse_schedule
from winpod.play.pod_template import ControllerActions, name_of

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


class ControllerHarness:
    """A workload and its pods. `step` carries out the controller's actions once."""

    def __init__(self, document: dict[str, Any], nodes: tuple[str, ...] = ()) -> None:
        self.document = document
        self.nodes = nodes
        self.now = NOW
        self.pods: dict[str, v1.Pod] = {}
        self.last = ControllerActions()
        self.status: Mapping[str, Any] = {}

    def step(self) -> ControllerActions:
        context = ControllerContext(
            self.now, taken=list(self.pods), nodes=self.nodes, status=self.status
        )
        self.last = reconcile(self.document, list(self.pods.values()), context)
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

    def set_pods(
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


def test_deployment_keeps_its_replica_count() -> None:
    harness = ControllerHarness(workload("Deployment", replicas=3))
    assert len(harness.step().create) == 3
    assert harness.step() == ControllerActions(status=harness.last.status)
    name = next(iter(harness.pods))
    assert name.startswith("web-")
    assert len(name.split("-")) == 3
    harness.set_pods()
    harness.document["spec"]["replicas"] = 1
    assert len(harness.step().delete) == 2
    harness.set_pods(*harness.pods, phase="Failed")
    assert len(harness.step().create) == 1


def test_rolling_update_respects_surge_and_max_unavailable() -> None:
    harness = ControllerHarness(workload("Deployment", replicas=4))
    harness.step()
    harness.set_pods()
    harness.set_image("app:2")
    rounds = 0
    while harness.images() != ["app:2"] * 4 or harness.last.delete or harness.last.create:
        harness.step()
        ready = [p for p in harness.pods.values() if p.status and p.status.phase == "Running"]
        assert len(ready) >= 3
        assert len(harness.pods) <= 5
        harness.set_pods()
        rounds += 1
        assert rounds < 20


def test_update_that_never_becomes_ready_keeps_old_pods() -> None:
    harness = ControllerHarness(workload("Deployment", replicas=2))
    harness.step()
    harness.set_pods()
    harness.set_image("bad:1")
    for _ in range(5):
        harness.step()
    assert harness.images().count("app:1") == 2
    harness.set_image("app:1")
    for _ in range(3):
        harness.step()
    assert harness.images() == ["app:1", "app:1"]


def test_recreate_waits_for_old_pods_to_go() -> None:
    harness = ControllerHarness(workload("Deployment", replicas=2, strategy={"type": "Recreate"}))
    harness.step()
    harness.set_pods()
    harness.set_image("app:2")
    actions = harness.step()
    assert (len(actions.delete), len(actions.create)) == (2, 0)
    assert len(harness.step().create) == 2


def test_replicaset_replaces_terminated_pods() -> None:
    harness = ControllerHarness(workload("ReplicaSet", replicas=2))
    harness.step()
    first = next(iter(harness.pods))
    harness.set_pods(first, phase="Failed")
    actions = harness.step()
    assert [name_of(pod) for pod in actions.delete] == [first]
    assert len(actions.create) == 1


def claims(name: str) -> list[dict[str, Any]]:
    return [{"metadata": {"name": name}, "spec": {"accessModes": ["ReadWriteOnce"]}}]


def test_statefulset_is_ordered_and_has_claims_per_pod() -> None:
    document = workload(
        "StatefulSet", replicas=3, serviceName="web", volumeClaimTemplates=claims("data")
    )
    harness = ControllerHarness(document)
    for number in range(3):
        actions = harness.step()
        assert [name_of(pod) for pod in actions.create] == [f"web-{number}"]
        assert [c.metadata.name for c in actions.claims if c.metadata] == [f"data-web-{number}"]
        assert not harness.step().create
        harness.set_pods(f"web-{number}")
    spec = harness.pods["web-1"].spec
    assert spec is not None
    assert spec.volumes is not None
    assert (spec.hostname, spec.subdomain) == ("web-1", "web")
    claim = spec.volumes[0].persistentVolumeClaim
    assert claim is not None
    assert claim.claimName == "data-web-1"
    harness.set_image("app:2")
    order = []
    for _ in range(12):
        order += [name_of(pod) for pod in harness.step().delete]
        harness.set_pods()
    assert order == ["web-2", "web-1", "web-0"]
    assert harness.images() == ["app:2"] * 3
    document["spec"]["replicas"] = 1
    gone = [[name_of(pod) for pod in harness.step().delete] for _ in range(3)]
    assert gone == [["web-2"], ["web-1"], []]


def test_parallel_statefulset_creates_all_pods_at_once() -> None:
    harness = ControllerHarness(workload("StatefulSet", replicas=3, podManagementPolicy="Parallel"))
    assert len(harness.step().create) == 3


def test_daemonset_has_one_pod_per_node() -> None:
    harness = ControllerHarness(workload("DaemonSet"), nodes=("a", "b"))
    actions = harness.step()
    assert [pod.spec.nodeName for pod in actions.create if pod.spec] == ["a", "b"]
    harness.set_pods()
    harness.set_image("app:2")
    gone = []
    for _ in range(6):
        gone.append(len(harness.step().delete))
        harness.set_pods()
    assert max(gone) == 1
    assert harness.images() == ["app:2", "app:2"]
    harness.nodes = ("b",)
    assert [pod.spec.nodeName for pod in harness.step().delete if pod.spec] == ["a"]


def test_job_completes_after_enough_successes() -> None:
    harness = ControllerHarness(workload("Job", completions=3, parallelism=2))
    assert len(harness.step().create) == 2
    first, second = list(harness.pods)
    harness.set_pods(first, phase="Succeeded")
    assert len(harness.step().create) == 1
    harness.set_pods(second, phase="Succeeded")
    assert not harness.step().create
    harness.set_pods(*harness.pods, phase="Succeeded")
    actions = harness.step()
    assert not actions.create
    assert actions.status is not None
    assert actions.status["condition"] == "Complete"


def test_job_backs_off_and_fails_at_the_limit() -> None:
    harness = ControllerHarness(workload("Job", backoffLimit=1))
    harness.step()
    harness.set_pods(phase="Failed")
    actions = harness.step()
    assert not actions.create
    assert actions.requeue_at == NOW + timedelta(seconds=10)
    harness.now = NOW + timedelta(seconds=11)
    assert len(harness.step().create) == 1
    harness.set_pods(phase="Failed")
    actions = harness.step()
    assert actions.status is not None
    assert (actions.status["condition"], actions.status["reason"]) == (
        "Failed",
        "BackoffLimitExceeded",
    )


def test_job_past_its_deadline_stays_failed() -> None:
    harness = ControllerHarness(workload("Job", activeDeadlineSeconds=60))
    harness.step()
    harness.set_pods()
    harness.now = NOW + timedelta(seconds=60)
    harness.step()
    assert (harness.status["condition"], harness.status["reason"]) == ("Failed", "DeadlineExceeded")
    assert not harness.pods
    assert not harness.step().create
    assert harness.status["reason"] == "DeadlineExceeded"


def test_job_with_too_many_container_restarts_stays_failed() -> None:
    job = workload("Job", backoffLimit=2)
    job["spec"]["template"]["spec"]["restartPolicy"] = "OnFailure"
    harness = ControllerHarness(job)
    harness.step()
    harness.set_pods(restarts=2)
    assert not harness.step().delete
    harness.set_pods(restarts=3)
    harness.step()
    assert not harness.pods
    assert not harness.step().create
    assert harness.status["reason"] == "BackoffLimitExceeded"


def test_complete_job_stays_complete_without_its_pods() -> None:
    harness = ControllerHarness(workload("Job"))
    harness.step()
    harness.set_pods(phase="Succeeded")
    harness.step()
    harness.pods.clear()
    assert not harness.step().create
    assert (harness.status["condition"], harness.status["succeeded"]) == ("Complete", 1)


def test_indexed_job_sets_completion_index() -> None:
    harness = ControllerHarness(
        workload("Job", completions=2, parallelism=2, completionMode="Indexed")
    )
    created = harness.step().create
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
def test_schedule_matches_cron(schedule: str, expected: str) -> None:
    found = parse_schedule(schedule).after(NOW)
    assert found is not None
    assert f"{found:%Y-%m-%d %H:%M}" == expected


@pytest.mark.parametrize("schedule", ["", "* * * *", "61 * * * *", "a * * * *", "*/0 * * * *"])
def test_invalid_schedule_is_rejected(schedule: str) -> None:
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


def test_cronjob_starts_only_the_latest_missed_job() -> None:
    actions = reconcile(cron_job(), [], ControllerContext(NOW + timedelta(seconds=1)))
    minutes = int(NOW.timestamp()) // 60
    assert [job.metadata.name for job in actions.jobs] == [f"web-{minutes}"]
    assert actions.requeue_at == NOW + timedelta(minutes=1)
    assert actions.status is not None
    again = reconcile(
        cron_job(), [], ControllerContext(NOW + timedelta(seconds=2), status=actions.status)
    )
    assert not again.jobs


def test_cronjob_honours_concurrency_policy_and_history_limits() -> None:
    def job(number: int) -> dict[str, Any]:
        made = workload("Job")
        return {**made, "metadata": {**made["metadata"], "name": f"web-{number}"}}

    running: Callable[..., ControllerActions] = lambda **spec: reconcile(  # noqa: E731
        cron_job(**spec), [], ControllerContext(NOW, jobs=[job(1)])
    )
    assert running().jobs
    assert not running(concurrencyPolicy="Forbid").jobs
    assert running(concurrencyPolicy="Replace").remove_jobs == ("web-1",)
    done = {f"web-{n}": {"condition": "Complete"} for n in range(5)}
    actions = reconcile(
        cron_job(suspend=True),
        [],
        ControllerContext(NOW, jobs=[job(n) for n in range(5)], statuses=done),
    )
    assert actions.remove_jobs == ("web-0", "web-1")
