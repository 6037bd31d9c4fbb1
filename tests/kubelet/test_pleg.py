"""The PLEG's cache of what the runtime reports."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from google.protobuf.message import Message

from winpod.cri.proto import api_pb2 as api
from winpod.cri.rpc import CriClient
from winpod.kubelet.cri_convert import POD_UID_LABEL
from winpod.kubelet.metrics import KubeletMetrics
from winpod.kubelet.pleg import Pleg
from winpod.kubelet.runtime_client import RuntimeClient

SANDBOX = api.PodSandboxStatus(id="sandbox", labels={POD_UID_LABEL: "uid-web"})


class EventStream(CriClient):
    """A client that reports the given events, and the sandbox with no containers on a relist."""

    def __init__(self, *events: api.ContainerEventResponse) -> None:
        self._events = events

    async def call(self, name: str, request: Message) -> Any:
        del request
        if name == "ListPodSandbox":
            listed = api.PodSandbox(id=SANDBOX.id, labels=SANDBOX.labels)
            return api.ListPodSandboxResponse(items=[listed])
        if name == "PodSandboxStatus":
            return api.PodSandboxStatusResponse(status=SANDBOX)
        return api.ListContainersResponse()

    async def stream(self, name: str, request: Message) -> AsyncIterator[Any]:
        del name, request
        for event in self._events:
            yield event
        await asyncio.Event().wait()


def event(at: int, *containers: str) -> api.ContainerEventResponse:
    exited = [api.ContainerStatus(id=id_, state=api.CONTAINER_EXITED) for id_ in containers]
    return api.ContainerEventResponse(
        created_at=at, pod_sandbox_status=SANDBOX, containers_statuses=exited
    )


async def test_termination_messages_of_removed_containers_are_dropped() -> None:
    changes: list[str] = []
    done = asyncio.Event()

    def on_change(uid: str) -> None:
        changes.append(uid)
        if len(changes) == 3:
            done.set()

    client = EventStream(event(1, "first"), event(2, "first", "second"), event(3, "second"))
    pleg = Pleg(RuntimeClient(client, KubeletMetrics()), on_change)
    pleg.start()
    try:
        async with asyncio.timeout(30):
            await done.wait()
        assert list(pleg._termination_messages) == ["second"]
    finally:
        await pleg.stop()
