"""`winpod runtime --compute simulated` as a process."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from ipaddress import ip_network
from pathlib import Path

import pytest

from tests.support.cri_node import create, run_sandbox, start, status
from tests.support.pushed_images import push
from winpod.cri.proto import api_pb2 as api
from winpod.cri.rpc import CriClient, RemoteError
from winpod.errors import Unavailable
from winpod.network.attachments import Attachment
from winpod.network.errors import NoCniConfig, PortNotListening
from winpod.network.simulated import SimulatedSandboxNetwork

PODS = 100


@asynccontextmanager
async def simulation(root: Path, home: Path, end: signal.Signals) -> AsyncIterator[CriClient]:
    """Run the command as a process."""
    target = root / "cri.sock"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "winpod", "runtime", "--compute", "simulated"),
        *("--root", str(root / "root"), "--socket", str(target)),
        env={**os.environ, "HOME": str(home)},
        stderr=asyncio.subprocess.DEVNULL,
    )
    client = CriClient(f"unix:{target}")
    try:
        await wait_ready(client)
        yield client
    finally:
        await client.close()
        process.send_signal(end)
        await process.wait()


async def wait_ready(client: CriClient) -> None:
    async with asyncio.timeout(300):
        while True:
            try:
                await client.call("Version", api.VersionRequest())
            except (Unavailable, RemoteError):  # not listening, or still recovering
                await asyncio.sleep(0.1)
            else:
                return


async def test_hundred_simulated_pods_run_and_end_with_the_process(
    tmp_path: Path, home: Path, registry: str
) -> None:
    name = await push(home, f"{registry}/app:1", "2022")

    async def pod(client: CriClient, number: int) -> str:
        sandbox = await run_sandbox(client, f"pod-{number}")
        container = await create(client, sandbox, name)
        await start(client, container)
        return container

    async with simulation(tmp_path, home, signal.SIGKILL) as client:
        await client.call("PullImage", api.PullImageRequest(image=api.ImageSpec(image=name)))
        containers = await asyncio.gather(*(pod(client, number) for number in range(PODS)))
        stats = await client.call("ListPodSandboxStats", api.ListPodSandboxStatsRequest())
        assert len(stats.stats) == PODS
        assert (await status(client, containers[0])).state == api.CONTAINER_RUNNING
        runtime_status = await client.call("Status", api.StatusRequest(verbose=True))
        assert '"simulated"' in runtime_status.info["compute"]
    async with simulation(tmp_path, home, signal.SIGTERM) as client:
        seen = await asyncio.gather(*(status(client, container) for container in containers))
        assert {one.state for one in seen} == {api.CONTAINER_EXITED}
        assert {(one.exit_code, one.reason) for one in seen} == {(255, "Unknown")}


async def test_simulated_pods_have_unique_addresses_until_exhausted() -> None:
    networks = SimulatedSandboxNetwork([ip_network("10.0.0.0/28"), ip_network("fd00::/64")])
    names = [f"{number:064x}" for number in range(0, 26, 2)]
    attached = [await networks.connect(Attachment(name)) for name in names]
    addresses = {one.addresses for one in attached}
    assert len(addresses) == len(names) == 13
    assert {len(pair) for pair in addresses} == {2}
    assert not {"10.0.0.0", "10.0.0.1", "10.0.0.15"} & {first for first, _ in addresses}
    with pytest.raises(NoCniConfig, match="All 13 addresses"):
        await networks.connect(Attachment("f" * 64))
    await networks.disconnect(names[0])
    again = await networks.connect(Attachment("f" * 64))
    assert again.addresses == attached[0].addresses
    with pytest.raises(PortNotListening, match="it is simulated"):
        await networks.dial(names[1], 80)
