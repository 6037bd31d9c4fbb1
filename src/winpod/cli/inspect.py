"""`winpod inspect`: all that the runtime tells about containers."""

from __future__ import annotations

import json
from typing import Any

from google.protobuf.json_format import MessageToDict

from winpod.cli.containers import Clients, Listed, Targets, find_container, with_runtimes
from winpod.cli.options import Root
from winpod.cri.proto import api_pb2 as api


def command(targets: Targets, root: Root = None) -> None:
    """Tell all that is known about containers, as JSON.

    The words are the CRI's, as crictl has them: `status` is the container's, `sandbox` the pod's.
    """

    async def inspect(clients: Clients) -> list[dict[str, Any]]:
        found = [await find_container(clients, text) for text in targets]
        return [await _told(one) for one in found]

    print(json.dumps(with_runtimes(root, inspect), indent=2))


async def _told(one: Listed) -> dict[str, Any]:
    container = await one.client.call(
        "ContainerStatus", api.ContainerStatusRequest(container_id=one.id, verbose=True)
    )
    sandbox = await one.client.call(
        "PodSandboxStatus",
        api.PodSandboxStatusRequest(pod_sandbox_id=one.sandbox.id, verbose=True),
    )
    return {
        "name": one.name,
        "status": _words(container.status),
        "info": _read(container.info),
        "sandbox": {"status": _words(sandbox.status), "info": _read(sandbox.info)},
    }


def _words(status: Any) -> dict[str, Any]:
    """Zeros too: a code of 0 is an answer."""
    return MessageToDict(status, always_print_fields_with_no_presence=True)


def _read(info: Any) -> dict[str, Any]:
    """Values that are JSON themselves are part of the answer's."""
    read: dict[str, Any] = {}
    for key, text in info.items():
        try:
            read[key] = json.loads(text)
        except ValueError:
            read[key] = text
    return read
