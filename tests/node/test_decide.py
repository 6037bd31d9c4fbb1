from typing import Any

import pytest

from tests.node.seen_pods import container, hash_of, pod_of, sandbox, seen
from winpod.node.decide import KillReason, Plan, decide
from winpod.node.health import Health, Result
from winpod.node.seen import PodSeen, pod_seen

FIRST = {"name": "first"}
SIDE = {"name": "side", "restartPolicy": "Always"}
THIRD = {"name": "third"}


def plan_of(pod: Any, has: PodSeen, **health: Health) -> Plan:
    by_id = {one.id: health[one.name] for one in has.containers() if one.name in health}
    return decide(pod, has, by_id, cpus=4)


def starts(plan: Plan) -> list[str]:
    return [one.name for one in plan.starts]


def test_a_new_pod_gets_a_sandbox_and_its_containers() -> None:
    plan = plan_of(pod_of({"name": "a"}, {"name": "b"}), PodSeen())
    assert (plan.make_sandbox, plan.attempt, plan.end_pod) == (True, 0, False)
    assert starts(plan) == ["a", "b"]


def test_what_runs_is_left_alone() -> None:
    assert plan_of(pod_of(), seen(container("app"))) == Plan()


@pytest.mark.parametrize(
    ("sandboxes", "spec"),
    [
        ([sandbox(is_ready=False)], {}),
        ([sandbox(ips=())], {}),
        ([sandbox(host_network=True)], {}),
        ([sandbox()], {"hostNetwork": True}),
        ([sandbox(), sandbox(attempt=1)], {}),
    ],
    ids=["not ready", "no address", "of the host", "not of the host", "two"],
)
def test_a_sandbox_that_does_not_fit_is_replaced(sandboxes: Any, spec: Any) -> None:
    plan = plan_of(pod_of(**spec), pod_seen(sandboxes))
    assert plan.make_sandbox
    assert plan.end_pod
    assert plan.attempt == len(sandboxes)


@pytest.mark.parametrize(
    ("policy", "code", "again"),
    [
        ("Always", 0, True),
        ("Always", 1, True),
        ("OnFailure", 0, False),
        ("OnFailure", 1, True),
        ("Never", 0, False),
        ("Never", 1, False),
    ],
)
def test_the_restart_policy_decides_whether_what_ended_runs_again(
    policy: str, code: int, again: bool
) -> None:
    pod = pod_of({"name": "app"}, {"name": "other"}, restartPolicy=policy)
    plan = plan_of(pod, seen(container("app", "exited", exit_code=code), container("other")))
    assert starts(plan) == (["app"] if again else [])
    assert not plan.end_pod


def test_rules_of_a_container_go_before_the_policy_of_the_pod() -> None:
    rule = {"action": "Restart", "exitCodes": {"operator": "In", "values": [42]}}
    app = {"name": "app", "restartPolicy": "Never", "restartPolicyRules": [rule]}
    pod = pod_of(app, {"name": "other"}, restartPolicy="Always")
    for code, again in ((42, ["app"]), (1, [])):
        has = seen(container("app", "exited", exit_code=code), container("other"))
        assert starts(plan_of(pod, has)) == again


def test_a_pod_with_nothing_left_to_run_ends() -> None:
    pod = pod_of(restartPolicy="Never", initContainers=[SIDE])
    has = seen(container("side", age=20), container("app", "exited"))
    assert plan_of(pod, has) == Plan(end_pod=True)


def test_a_lost_sandbox_is_not_replaced_for_what_runs_once() -> None:
    has = seen(container("app", "exited", exit_code=1), is_ready=False)
    assert plan_of(pod_of(restartPolicy="Never"), has) == Plan(end_pod=True)
    has = seen(container("app", "exited", exit_code=0), is_ready=False)
    assert plan_of(pod_of(restartPolicy="OnFailure"), has) == Plan(end_pod=True)


INIT_STEPS = [
    ([], ["first"]),
    ([container("first")], []),
    ([container("first", "exited")], ["side"]),
    ([container("first", "exited", exit_code=1)], ["first"]),
    ([container("first", "created")], ["first"]),
    ([container("first", "exited", 30), container("side", age=20)], ["third"]),
    (
        [
            container("first", "exited", 30),
            container("side", age=20),
            container("third", "exited"),
        ],
        ["app"],
    ),
    (
        [
            container("first", "exited", 30),
            container("side", "exited", 20),
            container("third", age=10),
        ],
        ["side"],
    ),
    ([container("side", "exited", 20), container("app", age=5)], ["side"]),
    ([container("app", age=5)], ["side"]),
]


@pytest.mark.parametrize(("containers", "then"), INIT_STEPS)
def test_init_containers_run_in_order_and_sidecars_stay(containers: Any, then: list[str]) -> None:
    plan = plan_of(pod_of(initContainers=[FIRST, SIDE, THIRD]), seen(*containers))
    assert starts(plan) == then


def test_the_next_container_waits_until_a_sidecar_has_started() -> None:
    side = {**SIDE, "startupProbe": {"exec": {"command": ["ok"]}}}
    pod, has = pod_of(initContainers=[side]), seen(container("side"))
    assert starts(plan_of(pod, has, side=Health(startup=Result.UNKNOWN))) == []
    assert starts(plan_of(pod, has, side=Health())) == ["app"]
    failed = plan_of(pod, has, side=Health(startup=Result.FAILURE))
    assert starts(failed) == ["side"]
    assert failed.kills[0].reason is KillReason.STARTUP_PROBE


def test_an_init_container_that_failed_ends_a_pod_that_never_restarts() -> None:
    pod = pod_of(initContainers=[FIRST], restartPolicy="Never")
    assert plan_of(pod, seen(container("first", "exited", exit_code=1))) == Plan(end_pod=True)


def test_init_containers_run_again_in_a_new_sandbox() -> None:
    old = sandbox(container("first", "exited", 30), container("app", "exited"), is_ready=False)
    pod = pod_of(initContainers=[FIRST])
    anew = plan_of(pod, pod_seen([old]))
    assert (anew.attempt, starts(anew)) == (1, ["first"])
    assert starts(plan_of(pod, pod_seen([old, sandbox(attempt=1)]))) == ["first"]
    done = sandbox(container("first", "exited", 3), attempt=1)
    assert starts(plan_of(pod, pod_seen([old, done]))) == ["app"]


@pytest.mark.parametrize(
    ("health", "reason", "words"),
    [
        (Health(liveness=Result.FAILURE), KillReason.LIVENESS_PROBE, "failed liveness probe"),
        (Health(startup=Result.FAILURE), KillReason.STARTUP_PROBE, "failed startup probe"),
    ],
)
def test_a_container_that_failed_its_probe_is_ended_and_started(
    health: Health, reason: KillReason, words: str
) -> None:
    plan = plan_of(pod_of(), seen(container("app")), app=health)
    assert (plan.kills[0].message, plan.kills[0].reason) == (
        f"Container app {words}, will be restarted",
        reason,
    )
    assert starts(plan) == ["app"]
    never = plan_of(
        pod_of({"name": "app"}, {"name": "b"}, restartPolicy="Never"),
        seen(container("app"), container("b")),
        app=health,
    )
    assert starts(never) == []
    assert never.kills[0].message == f"Container app {words}"


def test_a_new_image_replaces_a_container_and_the_same_does_not() -> None:
    pod = pod_of(restartPolicy="Never")
    assert plan_of(pod, seen(container("app", hash=hash_of(pod, "app")))) == Plan()
    plan = plan_of(pod, seen(container("app", hash="other")))
    assert plan.kills[0].message == "Container app definition changed, will be restarted"
    assert starts(plan) == ["app"]


def test_a_container_in_an_unknown_state_is_ended_before_it_is_started() -> None:
    plan = plan_of(pod_of(), seen(container("app", "unknown")))
    assert [kill.container.name for kill in plan.kills] == ["app"]
    assert starts(plan) == ["app"]


def test_ephemeral_containers_start_once_even_before_the_others() -> None:
    pod = pod_of(initContainers=[FIRST], ephemeralContainers=[{"name": "debug"}])
    assert starts(plan_of(pod, seen(container("first")))) == ["debug"]
    has = seen(container("first"), container("debug", "exited", exit_code=1))
    assert starts(plan_of(pod, has)) == []


def test_new_limits_are_set_in_place_or_by_a_restart() -> None:
    limits = {"cpu": "2", "memory": "64Mi"}
    sized = {"name": "app", "resources": {"limits": limits}}
    has = seen(container("app", cpu_maximum=2500, memory_bytes=64 << 20))
    plan = plan_of(pod_of(sized), has)
    assert [resize.container.name for resize in plan.resizes] == ["app"]
    policy = {"resourceName": "cpu", "restartPolicy": "RestartContainer"}
    restarting = plan_of(pod_of({**sized, "resizePolicy": [policy]}), has)
    assert starts(restarting) == ["app"]
    assert not restarting.resizes
    same = seen(container("app", cpu_maximum=5000, memory_bytes=64 << 20))
    assert plan_of(pod_of(sized), same) == Plan()


def test_all_containers_go_before_the_one_that_asks_for_it() -> None:
    rule = {"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [42]}}
    asking = {"name": "app", "restartPolicy": "Never", "restartPolicyRules": [rule]}
    pod = pod_of(asking, {"name": "other"}, initContainers=[FIRST, SIDE])
    others = (container("first", "exited"), container("side"), container("other"))
    plan = plan_of(pod, seen(container("app", "exited", exit_code=42), *others))
    assert [one.name for one in plan.resets] == ["other", "first", "side", "app"]
    assert plan == Plan(resets=plan.resets)
    assert plan_of(pod, seen(container("app", "exited", exit_code=1), *others)) == Plan()
    assert starts(plan_of(pod, seen())) == ["first"]
