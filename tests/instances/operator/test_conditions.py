"""Reasons of failures, transition times of conditions, and event subjects."""

from datetime import UTC, datetime, timedelta

import pytest

from winpod.errors import InvalidInput, WinpodError
from winpod.instances import errors
from winpod.instances.cluster.resource import KIND, InstanceSpec, WindowsInstance
from winpod.instances.operator.conditions import (
    find_condition,
    instance_event,
    reason_of,
    with_condition,
)
from winpod.instances.planner.steps import Step, StepKind
from winpod.k8s.objects import Condition, ObjectMeta

START = Step(StepKind.START_SERVICE, "containerd", "running", "stopped", "")
NOW = datetime(2026, 11, 16, 8, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (errors.InstanceUnreachable("x"), "InstanceUnreachable"),
        (errors.LoginRefused("x"), "InstanceLoginRefused"),
        (errors.HostKeyChanged("x"), "InstanceHostKeyChanged"),
        (errors.DowngradeRefused("1.1", "1.0"), "InstanceDowngradeRefused"),
        (errors.InstanceUnsuitable("x"), "InstanceUnfit"),
        (errors.InvalidPayload("x"), "InstancePayloadBad"),
        (errors.InvalidConfiguration("x"), "InstanceSettingsBad"),
        (errors.StepFailed("a", START, "x", ""), "InstanceStepFailed"),
        (errors.ContainerdNotRunning("a", START, "x", "", []), "ContainerdNotRunning"),
        (InvalidInput("x"), "InstanceFailed"),
    ],
)
def test_every_failure_has_a_reason(error: WinpodError, reason: str) -> None:
    assert reason_of(error) == reason


def test_condition_keeps_its_transition_time() -> None:
    first = with_condition([], "Reachable", True, "Answers", "", NOW)
    later = NOW + timedelta(minutes=1)
    same = with_condition(first, "Reachable", True, "Answers", "again", later)
    other = with_condition(same, "Reachable", False, "Dead", "x", later)
    unknown = with_condition(other, "NodeReady", None, "Dead", "", later)
    assert first == [Condition("Reachable", "True", "Answers", "", "2026-11-16T08:00:00Z")]
    assert same[0].last_transition_time == "2026-11-16T08:00:00Z"
    assert other[0].last_transition_time == "2026-11-16T08:01:00Z"
    assert [one.type for one in unknown] == ["NodeReady", "Reachable"]
    assert find_condition(unknown, "NodeReady") == "Unknown"
    assert find_condition(unknown, "Configured") == ""


def test_event_refers_to_the_instance_object() -> None:
    instance = WindowsInstance(
        ObjectMeta(name="a", namespace="n", uid="u"), InstanceSpec("10.0.0.5", "me")
    )
    event = instance_event(instance, "InstanceReady", "it is", is_bad=False)
    subject = event.subject
    assert (subject.kind, subject.namespace, subject.name, subject.uid) == (KIND, "n", "a", "u")
    assert (subject.api_version, event.kind) == ("winpod.dev/v1alpha1", "Normal")
