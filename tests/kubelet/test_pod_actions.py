from typing import Any

import pytest

from tests.support.runtime_pods import container, hash_of, pod_of, runtime_pod, sandbox
from winpod.kubelet.pod_actions import KillReason, PodActions, compute_pod_actions
from winpod.kubelet.prober.results import ContainerHealth, ProbeResult
from winpod.kubelet.runtime_status import RuntimePod, to_runtime_pod

FIRST = {"name": "first"}
SIDE = {"name": "side", "restartPolicy": "Always"}
THIRD = {"name": "third"}


def actions_of(pod: Any, current: RuntimePod, **health: ContainerHealth) -> PodActions:
    by_id = {one.id: health[one.name] for one in current.containers() if one.name in health}
    return compute_pod_actions(pod, current, by_id, cpus=4)


def starts(actions: PodActions) -> list[str]:
    return [one.name for one in actions.starts]


def test_new_pod_gets_sandbox_and_containers() -> None:
    actions = actions_of(pod_of({"name": "a"}, {"name": "b"}), RuntimePod())
    assert (actions.make_sandbox, actions.attempt, actions.kill_pod) == (True, 0, False)
    assert starts(actions) == ["a", "b"]


def test_running_containers_need_no_action() -> None:
    assert actions_of(pod_of(), runtime_pod(container("app"))) == PodActions()


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
def test_unsuitable_sandbox_is_replaced(sandboxes: Any, spec: Any) -> None:
    actions = actions_of(pod_of(**spec), to_runtime_pod(sandboxes))
    assert actions.make_sandbox
    assert actions.kill_pod
    assert actions.attempt == len(sandboxes)


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
def test_restart_policy_decides_about_restart(policy: str, code: int, again: bool) -> None:
    pod = pod_of({"name": "app"}, {"name": "other"}, restartPolicy=policy)
    actions = actions_of(
        pod, runtime_pod(container("app", "exited", exit_code=code), container("other"))
    )
    assert starts(actions) == (["app"] if again else [])
    assert not actions.kill_pod


def test_container_rules_override_pod_policy() -> None:
    rule = {"action": "Restart", "exitCodes": {"operator": "In", "values": [42]}}
    app = {"name": "app", "restartPolicy": "Never", "restartPolicyRules": [rule]}
    pod = pod_of(app, {"name": "other"}, restartPolicy="Always")
    for code, again in ((42, ["app"]), (1, [])):
        current = runtime_pod(container("app", "exited", exit_code=code), container("other"))
        assert starts(actions_of(pod, current)) == again


def test_pod_with_nothing_to_run_is_killed() -> None:
    pod = pod_of(restartPolicy="Never", initContainers=[SIDE])
    current = runtime_pod(container("side", age=20), container("app", "exited"))
    assert actions_of(pod, current) == PodActions(kill_pod=True)


def test_lost_sandbox_is_not_replaced_for_run_once_pod() -> None:
    current = runtime_pod(container("app", "exited", exit_code=1), is_ready=False)
    assert actions_of(pod_of(restartPolicy="Never"), current) == PodActions(kill_pod=True)
    current = runtime_pod(container("app", "exited", exit_code=0), is_ready=False)
    assert actions_of(pod_of(restartPolicy="OnFailure"), current) == PodActions(kill_pod=True)


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
def test_init_actions_run_in_order_and_keep_sidecars(containers: Any, then: list[str]) -> None:
    actions = actions_of(pod_of(initContainers=[FIRST, SIDE, THIRD]), runtime_pod(*containers))
    assert starts(actions) == then


def test_next_container_waits_for_sidecar_start() -> None:
    side = {**SIDE, "startupProbe": {"exec": {"command": ["ok"]}}}
    pod, current = pod_of(initContainers=[side]), runtime_pod(container("side"))
    assert starts(actions_of(pod, current, side=ContainerHealth(startup=ProbeResult.UNKNOWN))) == []
    assert starts(actions_of(pod, current, side=ContainerHealth())) == ["app"]
    failed = actions_of(pod, current, side=ContainerHealth(startup=ProbeResult.FAILURE))
    assert starts(failed) == ["side"]
    assert failed.kills[0].reason is KillReason.STARTUP_PROBE


def test_failed_init_container_kills_pod_without_restart() -> None:
    pod = pod_of(initContainers=[FIRST], restartPolicy="Never")
    assert actions_of(pod, runtime_pod(container("first", "exited", exit_code=1))) == PodActions(
        kill_pod=True
    )


def test_init_containers_run_again_in_a_new_sandbox() -> None:
    old = sandbox(container("first", "exited", 30), container("app", "exited"), is_ready=False)
    pod = pod_of(initContainers=[FIRST])
    restarted = actions_of(pod, to_runtime_pod([old]))
    assert (restarted.attempt, starts(restarted)) == (1, ["first"])
    assert starts(actions_of(pod, to_runtime_pod([old, sandbox(attempt=1)]))) == ["first"]
    done = sandbox(container("first", "exited", 3), attempt=1)
    assert starts(actions_of(pod, to_runtime_pod([old, done]))) == ["app"]


@pytest.mark.parametrize(
    ("health", "reason", "message"),
    [
        (
            ContainerHealth(liveness=ProbeResult.FAILURE),
            KillReason.LIVENESS_PROBE,
            "failed liveness probe",
        ),
        (
            ContainerHealth(startup=ProbeResult.FAILURE),
            KillReason.STARTUP_PROBE,
            "failed startup probe",
        ),
    ],
)
def test_container_failing_probe_is_killed_and_restarted(
    health: ContainerHealth, reason: KillReason, message: str
) -> None:
    actions = actions_of(pod_of(), runtime_pod(container("app")), app=health)
    assert (actions.kills[0].message, actions.kills[0].reason) == (
        f"Container app {message}, will be restarted",
        reason,
    )
    assert starts(actions) == ["app"]
    never = actions_of(
        pod_of({"name": "app"}, {"name": "b"}, restartPolicy="Never"),
        runtime_pod(container("app"), container("b")),
        app=health,
    )
    assert starts(never) == []
    assert never.kills[0].message == f"Container app {message}"


def test_changed_image_replaces_container() -> None:
    pod = pod_of(restartPolicy="Never")
    assert actions_of(pod, runtime_pod(container("app", hash=hash_of(pod, "app")))) == PodActions()
    actions = actions_of(pod, runtime_pod(container("app", hash="other")))
    assert actions.kills[0].message == "Container app definition changed, will be restarted"
    assert starts(actions) == ["app"]


def test_container_in_unknown_state_is_killed_before_restart() -> None:
    actions = actions_of(pod_of(), runtime_pod(container("app", "unknown")))
    assert [kill.container.name for kill in actions.kills] == ["app"]
    assert starts(actions) == ["app"]


def test_ephemeral_containers_start_once_before_init_completes() -> None:
    pod = pod_of(initContainers=[FIRST], ephemeralContainers=[{"name": "debug"}])
    assert starts(actions_of(pod, runtime_pod(container("first")))) == ["debug"]
    current = runtime_pod(container("first"), container("debug", "exited", exit_code=1))
    assert starts(actions_of(pod, current)) == []


def test_changed_limits_resize_in_place_or_restart() -> None:
    limits = {"cpu": "2", "memory": "64Mi"}
    sized = {"name": "app", "resources": {"limits": limits}}
    current = runtime_pod(container("app", cpu_maximum=2500, memory_bytes=64 << 20))
    actions = actions_of(pod_of(sized), current)
    assert [resize.container.name for resize in actions.resizes] == ["app"]
    policy = {"resourceName": "cpu", "restartPolicy": "RestartContainer"}
    restarting = actions_of(pod_of({**sized, "resizePolicy": [policy]}), current)
    assert starts(restarting) == ["app"]
    assert not restarting.resizes
    same = runtime_pod(container("app", cpu_maximum=5000, memory_bytes=64 << 20))
    assert actions_of(pod_of(sized), same) == PodActions()


def test_triggering_container_is_reset_last() -> None:
    rule = {"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [42]}}
    asking = {"name": "app", "restartPolicy": "Never", "restartPolicyRules": [rule]}
    pod = pod_of(asking, {"name": "other"}, initContainers=[FIRST, SIDE])
    others = (container("first", "exited"), container("side"), container("other"))
    actions = actions_of(pod, runtime_pod(container("app", "exited", exit_code=42), *others))
    assert [one.name for one in actions.resets] == ["other", "first", "side", "app"]
    assert actions == PodActions(resets=actions.resets)
    assert (
        actions_of(pod, runtime_pod(container("app", "exited", exit_code=1), *others))
        == PodActions()
    )
    assert starts(actions_of(pod, runtime_pod())) == ["first"]
