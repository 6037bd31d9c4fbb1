"""Pod in a microVM, compared with process isolation, a cold boot and the boot of the bare kernel.

The cold boot is that of the same guest; the bare kernel is the lower limit. They alternate, and the
result is the median of the rounds. The memory of a pod in addition to its container is the overhead
that its RuntimeClass should state.

    WINPOD_ALLOW_EMULATION=1 unshare --net python -m benchmarks.hypervisor
"""

from __future__ import annotations

import asyncio
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path

from tests.support.e2e.microvms import link_kit
from tests.support.e2e.windows_programs import cache

from benchmarks.cri_servers import GROUPS, Server, winpod
from benchmarks.runtime import LINE, STEPS, Pod, remove_pods, until_up
from winpod.compute.agent.client import AgentClient, Program
from winpod.compute.hypervisor.accelerator import ALLOW, Accelerator, find_accelerator
from winpod.compute.hypervisor.assets import HypervisorAssets, build_assets
from winpod.compute.hypervisor.guest_silo import start_agent_link
from winpod.compute.hypervisor.qemu import WARM
from winpod.compute.hypervisor.template import Template, boot_guest, start_template_silo
from winpod.cri.proto import api_pb2 as api
from winpod.cri.rpc import CriClient
from winpod.images.base.builder import build_base
from winpod.windows.handlers import HYPERVISOR_HANDLER

ROUNDS = 5
CLONE, PROCESS = "microVM, cloned from the template", "process isolation, warm pool"
COLD, KERNEL = "microVM, booted", "bare kernel, booted to its first process"


async def one_pod(server: Server, client: CriClient) -> tuple[float, dict[str, float], int]:
    """Return the seconds to the first line, those of the steps, and the memory overhead."""
    server.until_warm()
    pod = Pod(server, client)
    started = time.perf_counter()
    await pod.run()
    line = time.perf_counter() - started
    await asyncio.sleep(2)
    request = api.ContainerStatsRequest(container_id=pod.container)
    stats = (await client.call("ContainerStats", request)).stats
    group = GROUPS / f"memory/winpod/vm-{pod.sandbox}/memory.usage_in_bytes"
    used = int(group.read_text()) if group.exists() else 0
    overhead = used - stats.memory.working_set_bytes.value if used else 0
    await pod.stop()
    await pod.remove()
    return line, pod.seconds, overhead


async def cold_boot(template: Template) -> tuple[float, float]:
    """Return the seconds to the guest's first process, and to a Windows program's first line."""
    with tempfile.TemporaryDirectory(prefix="winpod-cold-") as name:
        folder = Path(name)
        started = time.perf_counter()
        async with boot_guest(template, folder) as guest:
            kernel = time.perf_counter() - started
            await start_template_silo(guest, with_32bit=False)
            link = await start_agent_link(folder, WARM, folder / "agent.sock")
            agent = AgentClient(folder / "agent.sock")
            await agent.ping()
            output = (await agent.run(Program("cmd /c echo ready"))).output
            line = time.perf_counter() - started
            link.kill()
            await link.wait()
    if b"ready" not in output:
        raise RuntimeError(f"unexpected output of the guest: {output!r}")
    return kernel, line


async def compare(
    servers: dict[str, Server], kit: HypervisorAssets, accelerator: Accelerator
) -> None:
    lines: dict[str, list[float]] = {name: [] for name in (PROCESS, CLONE, COLD, KERNEL)}
    steps: list[dict[str, float]] = []
    overhead: list[int] = []
    async with AsyncExitStack() as stack:
        clients = {name: CriClient(f"unix:{server.socket}") for name, server in servers.items()}
        for name, client in clients.items():
            stack.push_async_callback(client.close)
            await until_up(servers[name], client)
            stack.push_async_callback(remove_pods, client)
        await one_pod(servers[CLONE], clients[CLONE])  # creates the template
        (kept,) = (servers[CLONE].folder / "root/templates").glob("[!.]*")
        template = Template(kept, kit, accelerator)
        for _ in range(ROUNDS):
            for name, server in servers.items():
                line, parts, more = await one_pod(server, clients[name])
                lines[name].append(line)
                if name == CLONE:
                    steps.append(parts)
                    overhead.append(more)
            kernel, cold = await cold_boot(template)
            lines[KERNEL].append(kernel)
            lines[COLD].append(cold)
    report({name: statistics.median(times) for name, times in lines.items()})
    for step in STEPS:
        print(f"  {step:<42}{statistics.median(one[step] for one in steps):>9.2f} s")
    print(f"memory in addition to the container: {statistics.median(overhead) / (1 << 20):.0f} MiB")


def report(medians: dict[str, float]) -> None:
    clone = medians[CLONE]
    print(f"{LINE:<44}{'seconds':>9}{'clone, relative':>16}")
    for name, seconds in medians.items():
        print(f"{name:<44}{seconds:>9.2f}{clone / seconds:>14.2f} x")
    print(f"clone minus bare kernel: {clone - medians[KERNEL]:+.2f} s", flush=True)


def main() -> None:
    if [name for _, name in socket.if_nameindex()] != ["lo"]:
        sys.exit("run it in a new network namespace: unshare --net python -m benchmarks.hypervisor")
    found = find_accelerator(allow_emulation=os.environ.get(ALLOW) == "1")
    if found.unavailable_reason:
        sys.exit(found.unavailable_reason)
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    root = cache() / "root"
    base, kit = build_base(root), build_assets(root)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="winpod-benchmark-")))
        process = stack.enter_context(winpod(PROCESS, base, 2, 1, folder / "process"))
        guest = stack.enter_context(winpod(CLONE, base, 0, 2, folder / "guest"))
        link_kit(folder / "guest/root")
        guest.handler = HYPERVISOR_HANDLER.name
        print(f"{found.accelerator}; load at the start: {os.getloadavg()[0]:.1f}")
        asyncio.run(compare({PROCESS: process, CLONE: guest}, kit, found.accelerator))
        print(f"load at the end: {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
