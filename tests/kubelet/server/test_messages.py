"""Kubelet API requests: attributes, users, log options and container selection."""

from datetime import UTC, datetime
from typing import Any

import pytest

from tests.support.known_objects import pod_of, read
from winpod.errors import InvalidInput
from winpod.k8s.auth import RequestAttributes, UserInfo, request_attributes, user_of_certificate
from winpod.k8s.models import core_v1 as v1
from winpod.kubelet.kubelet import PodEntry
from winpod.kubelet.runtime_status import (
    ContainerState,
    RuntimeContainer,
    RuntimePod,
    RuntimeSandbox,
)
from winpod.kubelet.server.container_logs import LogOptions, parse_log_options, select_container

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
def test_paths_map_to_node_subresources(
    method: str, path: str, verb: str, subresources: tuple[str, ...]
) -> None:
    assert request_attributes(method, path) == RequestAttributes(verb, subresources)


def test_client_certificate_has_user_and_groups() -> None:
    subject = ((("organizationName", "ops"),), (("organizationName", "dev"),))
    named = {"subject": (*subject, (("commonName", "jane"),))}
    assert user_of_certificate(named) == UserInfo("jane", ("ops", "dev", "system:authenticated"))
    assert user_of_certificate({"subject": subject}) is None


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({}, LogOptions()),
        ({"tailLines": "0"}, LogOptions(last=0)),
        ({"tailLines": "all"}, LogOptions()),
        ({"sinceSeconds": "60"}, LogOptions(since="2026-01-31T11:59:00.000000")),
        ({"sinceTime": "2026-01-31T10:00:00Z"}, LogOptions(since="2026-01-31T10:00:00.000000")),
        ({"stream": "Stderr", "limitBytes": "5"}, LogOptions(stream="stderr", limit=5)),
        ({"stream": "All", "tailLines": "3"}, LogOptions(last=3)),
    ],
)
def test_log_options_are_parsed(query: dict[str, str], expected: LogOptions) -> None:
    assert parse_log_options(query, NOON) == expected


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
def test_invalid_log_options_are_rejected(query: dict[str, str]) -> None:
    with pytest.raises(InvalidInput):
        parse_log_options(query, NOON)


def entry_of(kind: str = "containerStatuses", **status: Any) -> PodEntry:
    """Return a pod with the runtime containers `old` and `new`."""
    containers = [
        RuntimeContainer(id=id_, name="app", state=ContainerState.EXITED, created_at=NOON)
        for id_ in ("old", "new")
    ]
    sandbox = RuntimeSandbox(
        id="s", attempt=0, is_ready=True, created_at=NOON, containers=tuple(containers)
    )
    container_status = {
        "name": "app",
        "image": "",
        "imageID": "",
        "ready": False,
        "restartCount": 0,
        **status,
    }
    return PodEntry(
        pod_of({}), read(v1.PodStatus, {kind: [container_status]}), RuntimePod((sandbox,))
    )


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
def test_log_of_last_container_is_selected(
    status: dict[str, Any], previous: bool, expected: str
) -> None:
    for kind in ("containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses"):
        assert select_container(entry_of(kind, **status), "web", "app", previous).id == expected


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
def test_missing_log_error_gives_reason(
    status: dict[str, Any], previous: bool, sentence: str
) -> None:
    with pytest.raises(InvalidInput) as refused:
        select_container(entry_of(**status), "web", "app", previous)
    assert sentence in str(refused.value)
