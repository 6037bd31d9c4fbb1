"""What is told about instances: a reason for each failure, and conditions since when they hold."""

from datetime import UTC, datetime, timedelta

import pytest

from winpod.cluster.custom_resources import Condition, Metadata
from winpod.instances import errors
from winpod.instances.cluster.resource import (
    KIND,
    Spec,
    WindowsInstance,
)
from winpod.instances.operator.telling import condition_of, event_of, reason_of, with_condition
from winpod.instances.rules.steps import Do, Step
from winpod.windows.errors import InvalidInput, WinpodError

START = Step(Do.START_SERVICE, "containerd", "running", "stopped", "")
NOW = datetime(2026, 11, 16, 8, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (errors.Unreachable("x"), "InstanceUnreachable"),
        (errors.LoginRefused("x"), "InstanceLoginRefused"),
        (errors.HostKeyChanged("x"), "InstanceHostKeyChanged"),
        (errors.DowngradeRefused("1.1", "1.0"), "InstanceDowngradeRefused"),
        (errors.InstanceUnfit("x"), "InstanceUnfit"),
        (errors.BadPayload("x"), "InstancePayloadBad"),
        (errors.BadConfiguration("x"), "InstanceSettingsBad"),
        (errors.StepFailed("a", START, "x", ""), "InstanceStepFailed"),
        (errors.ContainerdNotRunning("a", START, "x", "", []), "ContainerdNotRunning"),
        (InvalidInput("x"), "InstanceFailed"),
    ],
)
def test_every_failure_has_a_reason(error: WinpodError, reason: str) -> None:
    assert reason_of(error) == reason


def test_a_condition_keeps_the_time_since_when_it_is_so() -> None:
    first = with_condition([], "Reachable", True, "Answers", "", NOW)
    later = NOW + timedelta(minutes=1)
    same = with_condition(first, "Reachable", True, "Answers", "again", later)
    other = with_condition(same, "Reachable", False, "Dead", "x", later)
    unknown = with_condition(other, "NodeReady", None, "Dead", "", later)
    assert first == [Condition("Reachable", "True", "Answers", "", "2026-11-16T08:00:00Z")]
    assert same[0].last_transition_time == "2026-11-16T08:00:00Z"
    assert other[0].last_transition_time == "2026-11-16T08:01:00Z"
    assert [one.type for one in unknown] == ["NodeReady", "Reachable"]
    assert condition_of(unknown, "NodeReady") == "Unknown"
    assert condition_of(unknown, "Configured") == ""


def test_an_event_is_of_the_instance_s_own_object() -> None:
    instance = WindowsInstance(Metadata(name="a", namespace="n", uid="u"), Spec("10.0.0.5", "me"))
    event = event_of(instance, "InstanceReady", "it is", is_bad=False)
    subject = event.subject
    assert (subject.kind, subject.namespace, subject.name, subject.uid) == (KIND, "n", "a", "u")
    assert (subject.api_version, event.kind) == ("winpod.dev/v1alpha1", "Normal")
