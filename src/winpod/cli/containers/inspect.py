"""`winpod inspect`: print the CRI status of containers."""

from __future__ import annotations

import json
from typing import Any

from google.protobuf.json_format import MessageToDict

from winpod.cli.containers.targets import (
    Clients,
    ListedContainer,
    Targets,
    find_container,
    run_with_runtimes,
)
from winpod.cli.options import Root
from winpod.cri.proto import api_pb2 as api


def command(targets: Targets, root: Root = None) -> None:
    """Show details of containers as JSON.

    Field names are those of the CRI, as in crictl: `status` is the container's, `sandbox` the pod
    sandbox's.
    """

    async def inspect(clients: Clients) -> list[dict[str, Any]]:
        found = [await find_container(clients, text) for text in targets]
        return [await _inspect(one) for one in found]

    print(json.dumps(run_with_runtimes(root, inspect), indent=2))


async def _inspect(one: ListedContainer) -> dict[str, Any]:
    container = await one.client.call(
        "ContainerStatus", api.ContainerStatusRequest(container_id=one.id, verbose=True)
    )
    sandbox = await one.client.call(
        "PodSandboxStatus",
        api.PodSandboxStatusRequest(pod_sandbox_id=one.sandbox.id, verbose=True),
    )
    return {
        "name": one.name,
        "status": _to_dict(container.status),
        "info": _parse_info(container.info),
        "sandbox": {"status": _to_dict(sandbox.status), "info": _parse_info(sandbox.info)},
    }


def _to_dict(status: Any) -> dict[str, Any]:
    """Include zero values: an exit code of 0 is significant."""
    return MessageToDict(status, always_print_fields_with_no_presence=True)


def _parse_info(info: Any) -> dict[str, Any]:
    """Decode info values that are JSON."""
    parsed: dict[str, Any] = {}
    for key, text in info.items():
        try:
            parsed[key] = json.loads(text)
        except ValueError:
            parsed[key] = text
    return parsed
