"""What requests to the node's API mean: who asks, for what, and of which container."""

from datetime import UTC, datetime
from typing import Any

import pytest
from lightkube.models import core_v1 as v1

from tests.node.known_objects import pod_of, read
from winpod.node.engine import PodFound
from winpod.node.seen import ContainerSeen, PodSeen, SandboxSeen, State
from winpod.node.server_auth import User, Wish, user_of_certificate, wish_of
from winpod.node.server_logs import Wanted, container_to_read, wanted
from winpod.windows.errors import InvalidInput

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("method", "path", "verb", "subresources"),
    [
        ("GET", "/stats/summary", "get", ("stats",)),
        ("GET", "/metrics", "get", ("metrics",)),
        ("GET", "/metrics/resource", "get", ("metrics",)),
        ("GET", "/metricsother", "get", ("proxy",)),
        ("GET", "/logs/some.log", "get", ("log",)),
        ("GET", "/containerLogs/shop/web/app", "get", ("proxy",)),
        ("GET", "/exec/shop/web/app", "get", ("proxy",)),
        ("POST", "/exec/shop/web/app", "create", ("proxy",)),
        ("POST", "/checkpoint/shop/web/app", "create", ("checkpoint",)),
        ("GET", "/pods", "get", ("pods", "proxy")),
        ("GET", "/runningpods/", "get", ("pods", "proxy")),
        ("GET", "/healthz", "get", ("healthz", "proxy")),
        ("GET", "/configz", "get", ("configz", "proxy")),
        ("HEAD", "/anything", "", ("proxy",)),
    ],
)
def test_a_path_is_a_part_of_the_node_as_kubelet_maps_it(
    method: str, path: str, verb: str, subresources: tuple[str, ...]
) -> None:
    assert wish_of(method, path) == Wish(verb, subresources)


def test_a_certificate_tells_its_user_and_groups() -> None:
    subject = ((("organizationName", "ops"),), (("organizationName", "dev"),))
    named = {"subject": (*subject, (("commonName", "jane"),))}
    assert user_of_certificate(named) == User("jane", ("ops", "dev", "system:authenticated"))
    assert user_of_certificate({"subject": subject}) is None


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({}, Wanted()),
        ({"tailLines": "0"}, Wanted(last=0)),
        ({"tailLines": "all"}, Wanted()),
        ({"sinceSeconds": "60"}, Wanted(since="2026-01-31T11:59:00.000000")),
        ({"sinceTime": "2026-01-31T10:00:00Z"}, Wanted(since="2026-01-31T10:00:00.000000")),
        ({"stream": "Stderr", "limitBytes": "5"}, Wanted(stream="stderr", limit=5)),
        ({"stream": "All", "tailLines": "3"}, Wanted(last=3)),
    ],
)
def test_what_of_a_log_is_wanted(query: dict[str, str], expected: Wanted) -> None:
    assert wanted(query, NOON) == expected


@pytest.mark.parametrize(
    "query",
    [
        {"tailLines": "-1"},
        {"tailLines": "many"},
        {"limitBytes": "0"},
        {"sinceSeconds": "0"},
        {"sinceSeconds": "1", "sinceTime": "2026-01-31T10:00:00Z"},
        {"sinceTime": "yesterday"},
        {"stream": "stdin"},
        {"stream": "Stdout", "tailLines": "3"},
    ],
)
def test_what_cannot_be_wanted_of_a_log_is_refused(query: dict[str, str]) -> None:
    with pytest.raises(InvalidInput):
        wanted(query, NOON)


def found(kind: str = "containerStatuses", **status: Any) -> PodFound:
    """A pod whose containers `new` and `old` were both seen."""
    seen = [
        ContainerSeen(id=id_, name="app", state=State.EXITED, created_at=NOON)
        for id_ in ("old", "new")
    ]
    sandbox = SandboxSeen(id="s", attempt=0, is_ready=True, created_at=NOON, containers=tuple(seen))
    told = {"name": "app", "image": "", "imageID": "", "ready": False, "restartCount": 0, **status}
    return PodFound(pod_of({}), read(v1.PodStatus, {kind: [told]}), PodSeen((sandbox,)))


RUNNING: dict[str, Any] = {"containerID": "winpod://new", "state": {"running": {}}}
OLD = {"terminated": {"exitCode": 1, "containerID": "winpod://old"}}


def waiting(reason: str) -> dict[str, Any]:
    return {"state": {"waiting": {"reason": reason}}}


@pytest.mark.parametrize(
    ("status", "previous", "expected"),
    [
        (RUNNING, False, "new"),
        ({**RUNNING, "lastState": OLD}, True, "old"),
        ({"state": {"terminated": {"exitCode": 0, "containerID": "winpod://new"}}}, False, "new"),
        ({**waiting("CrashLoopBackOff"), "lastState": OLD}, False, "old"),
        ({"state": {"terminated": {"exitCode": 128}}, "lastState": OLD}, False, "old"),
    ],
)
def test_the_log_of_the_container_that_ran_last_is_meant(
    status: dict[str, Any], previous: bool, expected: str
) -> None:
    for kind in ("containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses"):
        assert container_to_read(found(kind, **status), "web", "app", previous).id == expected


@pytest.mark.parametrize(
    ("status", "previous", "sentence"),
    [
        (RUNNING, True, 'previous terminated container "app" in pod "web" not found'),
        (waiting("ContainerCreating"), False, "is waiting to start: ContainerCreating"),
        (waiting("ErrImagePull"), False, "is waiting to start: image can't be pulled"),
        (waiting("ImagePullBackOff"), False, "trying and failing to pull image"),
        ({"state": {"terminated": {"exitCode": 128}}}, False, "is terminated"),
        ({"name": "other"}, False, 'container "app" in pod "web" is not available'),
        ({"containerID": "winpod://gone", "state": {"running": {}}}, False, "was removed"),
    ],
)
def test_why_there_is_no_log_is_said(status: dict[str, Any], previous: bool, sentence: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        container_to_read(found(**status), "web", "app", previous)
    assert sentence in str(refused.value)
