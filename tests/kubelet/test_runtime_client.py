"""The runtime client: timeouts, metrics and logs of calls."""

import asyncio
import logging
from typing import Any

import grpc
import pytest
from google.protobuf.message import Message

from winpod.cri.proto import api_pb2 as api
from winpod.cri.rpc import CriClient, RemoteError
from winpod.errors import Unavailable
from winpod.kubelet.metrics import KubeletMetrics
from winpod.kubelet.runtime_client import RuntimeClient


class ScriptedClient(CriClient):
    """Fails calls with `error`; without one, never answers."""

    def __init__(self, error: Exception | None = None) -> None:
        self._error = error
        self.called = asyncio.Event()

    async def call(self, name: str, request: Message) -> Any:
        del name, request
        self.called.set()
        if self._error:
            raise self._error
        await asyncio.Event().wait()


def samples(metrics: KubeletMetrics, name: str) -> dict[str, float]:
    return {
        sample.labels["operation_type"]: sample.value
        for family in metrics.families()
        for sample in family.samples
        if sample.name == name
    }


def counts(metrics: KubeletMetrics) -> tuple[dict[str, float], dict[str, float]]:
    return (
        samples(metrics, "kubelet_runtime_operations_duration_seconds_count"),
        samples(metrics, "kubelet_runtime_operations_errors_total"),
    )


async def test_timed_out_call_is_unavailable_counted_and_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    metrics = KubeletMetrics()
    runtime = RuntimeClient(ScriptedClient(), metrics)
    with pytest.raises(Unavailable, match=r"did not answer RunPodSandbox in 0\.01 s"):
        await runtime.call("RunPodSandbox", api.RunPodSandboxRequest(), 0.01)
    assert counts(metrics) == ({"run_podsandbox": 1}, {"run_podsandbox": 1})
    assert "RunPodSandbox failed after" in caplog.text


async def test_cancelled_call_is_counted_as_failed() -> None:
    metrics, client = KubeletMetrics(), ScriptedClient()
    runtime = RuntimeClient(client, metrics)
    call = asyncio.create_task(runtime.call("PullImage", api.PullImageRequest(), None))
    await client.called.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert counts(metrics) == ({"pull_image": 1}, {"pull_image": 1})


@pytest.mark.parametrize(
    ("error", "level"),
    [
        (RemoteError(grpc.StatusCode.UNKNOWN, "no space"), logging.INFO),
        (RemoteError(grpc.StatusCode.NOT_FOUND, "gone"), logging.DEBUG),
        (Unavailable("the runtime does not answer."), logging.DEBUG),
    ],
)
async def test_failed_call_is_logged_without_its_request(
    error: Exception, level: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "winpod.kubelet.runtime_client")
    runtime = RuntimeClient(ScriptedClient(error), KubeletMetrics())
    request = api.PullImageRequest(auth=api.AuthConfig(password="hunter2"))
    with pytest.raises(type(error)):
        await runtime.call("PullImage", request)
    (record,) = caplog.records
    assert record.levelno == level
    assert str(error) in record.getMessage()
    assert "hunter2" not in caplog.text
