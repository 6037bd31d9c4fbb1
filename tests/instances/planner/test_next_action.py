"""Next action in every possible situation, and what must never happen in any of them."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from winpod.instances import paths
from winpod.instances.planner.next_action import (
    Action,
    ObservedInstance,
    ObservedNode,
    disturbs_pods,
    next_action,
)
from winpod.instances.planner.rollout import RolloutSlot
from winpod.instances.planner.steps import Step, StepKind

PUT = Step(StepKind.PUT_FILE, r"C:\k\bin\kubelet.exe", "", "", "")
START = Step(StepKind.START_SERVICE, "containerd", "", "", "")
STEPS = ((), (START,), (START, PUT))
NODES = (
    None,
    *(
        ObservedNode("win", ready, cordoned, runtime, stranger)
        for ready, cordoned, runtime, stranger in product(
            (True, False), (True, False), ("containerd://2.1", "docker://20.10", ""), ("", "no")
        )
    ),
)
FLAGS = (True, False)


def instances() -> Iterator[ObservedInstance]:
    turns = (RolloutSlot(True), RolloutSlot(False, "a changes"))
    for rest in product(STEPS, NODES, (0, 2), turns, FLAGS, FLAGS, FLAGS, FLAGS):
        yield ObservedInstance(*rest)


def is_in_use(instance: ObservedInstance) -> bool:
    """Whether its steps disturb the pods of a node that has been ready."""
    return instance.node is not None and not instance.is_joining and disturbs_pods(instance.steps)


def test_pods_are_disturbed_only_on_a_drained_node_with_a_slot() -> None:
    for instance in instances():
        action = next_action(instance).action
        if action is Action.APPLY and is_in_use(instance) and instance.node:
            assert instance.node.is_cordoned, instance
            assert not instance.pods, instance
            assert instance.turn.is_granted, instance
        if action is Action.REMOVE and instance.node and not instance.node.mismatch:
            assert instance.node.is_cordoned, instance
            assert not instance.pods, instance


def test_without_a_slot_only_harmless_steps_start() -> None:
    for instance in instances():
        if instance.turn.is_granted or instance.is_deleting:
            continue
        action = next_action(instance).action
        assert action not in (Action.CORDON, Action.DRAIN, Action.REPLACE), instance
        if action is Action.APPLY:
            assert not is_in_use(instance), instance


def test_no_action_only_for_a_ready_schedulable_containerd_node() -> None:
    for instance in instances():
        if next_action(instance).action is Action.NONE:
            assert instance.node, instance
            assert instance.node.is_ready, instance
            assert instance.node.runtime.startswith("containerd://"), instance
            assert not instance.steps, instance
            assert not instance.is_cordoned_by_us, instance


def test_only_own_cordon_is_lifted_and_only_at_the_end() -> None:
    for instance in instances():
        if next_action(instance).action is Action.UNCORDON:
            assert instance.is_cordoned_by_us, instance
            assert not instance.steps, instance
            assert not instance.is_deleting, instance


def test_machine_that_is_a_node_is_replaced_never_changed() -> None:
    for instance in instances():
        action = next_action(instance).action
        if instance.is_machine:
            assert action not in (Action.CORDON, Action.DRAIN, Action.REMOVE, Action.DELETE_NODE), (
                instance
            )
            if action is Action.REPLACE:
                assert instance.turn.is_granted, instance
        else:
            assert action is not Action.REPLACE, instance


def test_foreign_node_is_never_touched() -> None:
    for instance in instances():
        if instance.node and instance.node.mismatch:
            action = next_action(instance).action
            assert action in (
                (Action.REMOVE, Action.RELEASE) if instance.is_deleting else (Action.REFUSE,)
            ), instance


def test_instance_is_released_only_when_clean_and_without_node() -> None:
    for instance in instances():
        if next_action(instance).action is Action.RELEASE and not instance.is_machine:
            assert not instance.steps, instance
            assert instance.node is None or instance.node.mismatch, instance


def test_waiting_has_a_reason() -> None:
    for instance in instances():
        decision = next_action(instance)
        if decision.action in (Action.WAIT, Action.REFUSE, Action.WAIT_FOR_NODE, Action.DRAIN):
            assert decision.why, instance


def actions_of(instance: ObservedInstance) -> list[Action]:
    """Return the sequence of actions, assuming that each succeeds."""
    actions = []
    while True:
        action = next_action(instance).action
        actions.append(action)
        if action is Action.CORDON and instance.node:
            instance = replace(
                instance,
                node=replace(instance.node, is_cordoned=True),
                is_cordoned_by_us=True,
                pods=3,
            )
        elif action is Action.DRAIN:
            instance = replace(instance, pods=0)
        elif action is Action.APPLY:
            instance = replace(instance, steps=())
        elif action is Action.WAIT_FOR_NODE:
            cordoned = instance.node is not None and instance.node.is_cordoned
            instance = replace(
                instance, node=ObservedNode("win", True, cordoned, "containerd://2.1")
            )
        elif action is Action.UNCORDON and instance.node:
            instance = replace(
                instance, node=replace(instance.node, is_cordoned=False), is_cordoned_by_us=False
            )
        elif action is Action.REMOVE:
            instance = replace(instance, steps=())
        elif action is Action.DELETE_NODE:
            instance = replace(instance, node=None)
        else:
            return actions


def test_action_sequences_of_join_migration_and_removal() -> None:
    docker = ObservedNode("win", True, False, "docker://20.10")
    changed = [
        Action.CORDON,
        Action.DRAIN,
        Action.APPLY,
        Action.WAIT_FOR_NODE,
        Action.UNCORDON,
        Action.NONE,
    ]
    assert actions_of(ObservedInstance((PUT,))) == [Action.APPLY, Action.WAIT_FOR_NODE, Action.NONE]
    assert actions_of(ObservedInstance((PUT,), docker, turn=RolloutSlot(True))) == changed
    leaving = ObservedInstance((PUT,), docker, is_deleting=True)
    last = [Action.REMOVE, Action.DELETE_NODE, Action.RELEASE]
    assert actions_of(leaving) == [Action.CORDON, Action.DRAIN, *last]


def test_every_sequence_terminates() -> None:
    for instance in instances():
        assert len(actions_of(instance)) <= 7, instance


def test_starting_a_service_and_renewing_a_token_need_no_drain() -> None:
    token = replace(PUT, target=paths.BOOTSTRAP_KUBECONFIG)
    assert not disturbs_pods((START, token))
    assert disturbs_pods((START, PUT))
