"""kubectl against a node of a real control plane, with real Windows programs in its pods."""

import asyncio
import os
import re
import ssl
from collections.abc import Iterable
from pathlib import Path

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.e2e.controlplane import ControlPlane
from tests.support.e2e.api_node import LOOPBACK, PATIENCE, TALKER, ApiNode, node, programs
from tests.support.e2e.terminals import terminal
from tests.support.registries import home, registry

from winpod.kubelet.logs.rotation import LogRotation
from winpod.kubelet.metrics import KubeletMetrics
from winpod.kubelet.runtime_client import RuntimeClient

__all__ = ["home", "node", "programs", "registry"]


async def test_logs_honour_the_options_of_kubectl(node: ApiNode) -> None:
    script = "echo one& echo two& echo three 1>&2& ping -n 4 127.0.0.1 >nul& echo four& exit 3"
    await node.start("web", "cmd", "/s", "/c", script, restartPolicy="OnFailure")
    followed = await node.kubectl("logs", "web", "--follow")
    assert is_in_order(line.strip() for line in followed.splitlines())
    async with asyncio.timeout(PATIENCE):
        while (await node.run("logs", "web", "--previous")).code:  # noqa: ASYNC110
            await asyncio.sleep(0.5)
    before = await node.kubectl("logs", "web", "--previous", "--tail", "2", "--timestamps")
    lines = [line.split(" ", 1) for line in before.splitlines()]
    assert {line[1].strip() for line in lines} == {"three", "four"}
    assert all(line[0].endswith("Z") and "T" in line[0] for line in lines)
    assert await node.kubectl("logs", "web", "--previous", "--limit-bytes", "3") == "one"
    assert "one" in await node.kubectl("logs", "web", "--previous", "--since", "1h")
    unknown = await node.run("logs", "web", "-c", "other")
    assert "container other is not valid for pod web" in unknown.err


def is_in_order(lines: Iterable[str]) -> bool:
    """Whether stdout is in order; stderr may come anywhere in between."""
    stdout = list(lines)
    stdout.remove("three")
    return stdout == ["one", "two", "four"]


async def test_log_is_followed_across_rotations(node: ApiNode) -> None:
    await node.start("web", restartPolicy="Never")
    await node.until_said("web", "listening")
    async with (
        node.running("logs", "--follow", "web") as following,
        node.running("attach", "-i", "web") as attached,
        asyncio.timeout(PATIENCE),
    ):
        assert following.stdout
        assert attached.stdin
        assert await following.stdout.readline() == b"listening\n"
        for word in ("one", "two", "three"):
            attached.stdin.write(f"{word}\n".encode())
            assert await following.stdout.readline() == f"heard {word}\n".encode()
            await LogRotation(
                RuntimeClient(node.runtime, KubeletMetrics()), max_bytes=10
            ).rotate_all()
        attached.stdin.write(b"exit 0\n")
        assert await following.wait() == 0
    assert "one" not in await node.kubectl("logs", "web")


async def test_exec_has_input_terminal_and_exit_code(node: ApiNode) -> None:
    await node.start("web")
    result = await node.run("exec", "web", "--", "cmd", "/c", "echo out& echo err 1>&2& exit 7")
    assert (result.code, result.out.strip(), "err" in result.err) == (7, "out", True)
    output = await node.kubectl("exec", "-i", "web", "--", TALKER, stdin=b"hello\n")
    assert output == "listening\nheard hello\nno more input\n"
    async with (
        asyncio.timeout(PATIENCE),
        terminal() as (screen, tty),
        node.running("exec", "-it", "web", "--", "cmd", terminal=tty) as process,
    ):
        await screen.until("C:\\>")
        screen.type("ver\r")
        await screen.until("Microsoft Windows 10.0.20348")
        screen.type("exit\r")
        assert await process.wait() == 0


async def test_files_are_copied_in_and_out(node: ApiNode, tmp_path: Path) -> None:
    await node.start("web")
    source, target = tmp_path / "letter", tmp_path / "back"
    write(source, os.urandom(3 << 20))
    await node.kubectl("cp", str(source), "web:/letter")
    listed = await node.kubectl("exec", "web", "--", "cmd", "/c", "dir C:\\letter")
    assert "3,145,728" in listed.replace(".", ",")
    await node.kubectl("cp", "web:/letter", str(target))
    assert read(target) == read(source)
    missing = ("cp", "web:/nothing", str(tmp_path / "nothing"))
    await node.until_complains("tar: nothing: File not found", *missing)


async def test_directories_are_copied_in_and_out(node: ApiNode, tmp_path: Path) -> None:
    await node.start("web")
    folder = tmp_path / "Straße"
    write(folder / ("deep" * 30) / ("name" * 40) / "日本 one.txt", b"one")
    write(folder / "none", b"")
    (folder / "empty").mkdir()
    await node.kubectl("cp", "--no-preserve", str(folder), "web:C:/users/Straße")
    for name in ("/users/Straße", "users\\Straße"):
        target = tmp_path / name.replace("\\", "-").replace("/", "_")
        await node.kubectl("cp", f"web:{name}", str(target))
        assert tree_in(target) == tree_in(folder)
    with_drive = ("cp", "web:C:/users/Straße", str(tmp_path / "with-drive"))
    await node.until_complains("kubectl cp needs paths without one", *with_drive)


def write(file: Path, data: bytes) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(data)


def read(file: Path) -> bytes:
    return file.read_bytes()


def tree_in(folder: Path) -> dict[Path, bytes | None]:
    found = {path.relative_to(folder): path for path in folder.rglob("*")}
    return {name: None if path.is_dir() else path.read_bytes() for name, path in found.items()}


async def test_attach_and_port_forward(node: ApiNode) -> None:
    await node.start("web", restartPolicy="Never")
    await node.until_said("web", "listening")
    async with node.running("attach", "-i", "web") as process, asyncio.timeout(PATIENCE):
        assert process.stdin
        assert process.stdout
        process.stdin.write(b"hello\n")
        assert await process.stdout.readline() == b"heard hello\n"
        process.stdin.write(b"exit 0\n")
        assert await process.wait() == 0
    await node.start("server", TALKER, f"{LOOPBACK}:8080")
    await node.until_said("server", "serving")
    forward = ("port-forward", "pod/server", ":8080", "--address", LOOPBACK)
    async with node.running(*forward) as process, asyncio.timeout(PATIENCE):
        assert process.stdout
        line = (await process.stdout.readline()).decode()
        listening = re.search(rf"Forwarding from {LOOPBACK}:(\d+) -> 8080", line)
        assert listening, line
        port = listening[1]
        async with aiohttp.ClientSession() as http:
            for path in ("/one", "/two"):
                async with http.get(f"http://{LOOPBACK}:{port}{path}") as response:
                    assert await response.text() == f"{path} from Windows"


async def test_usage_is_reported_as_metrics_server_reads_it(node: ApiNode) -> None:
    await node.start("web")
    admin = as_user(node.plane, "admin", "system:masters")
    async with aiohttp.ClientSession(node.url, connector=aiohttp.TCPConnector(ssl=admin)) as http:
        async with http.get("/metrics/resource") as response:
            text = await response.text()
        async with http.get("/stats/summary") as response:
            summary = await response.json()
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.labels.get("container", "app") == "app":
                found[sample.name] = sample.value
    for name in ("node", "pod", "container"):
        assert found[f"{name}_cpu_usage_seconds_total"] > 0
        assert found[f"{name}_memory_working_set_bytes"] > 1 << 20
    assert found["container_start_time_seconds"] > 0
    (pod,) = summary["pods"]
    assert pod["podRef"]["name"] == "web"
    assert pod["containers"][0]["memory"]["usageBytes"] > 1 << 20
    assert pod["process_stats"]["process_count"] > 0
    assert {volume["name"].rpartition("-")[0] for volume in pod["volume"]} == {"kube-api-access"}


async def test_requests_are_authorized_by_the_api_server(node: ApiNode) -> None:
    plane, trust = node.plane, ssl.create_default_context(cafile=str(node.plane.authority))
    await node.kubectl("create", "serviceaccount", "scraper")
    await node.kubectl("create", "clusterrole", node.name, "--verb=get", "--resource=nodes/metrics")
    account = f"--serviceaccount={node.name}:scraper"
    await node.kubectl(
        "create", "clusterrolebinding", node.name, f"--clusterrole={node.name}", account
    )
    token = (await node.kubectl("create", "token", "scraper")).strip()
    can_i = ("auth", "can-i", "get", "nodes", "--subresource=metrics")
    impersonate = f"--as=system:serviceaccount:{node.name}:scraper"
    async with asyncio.timeout(PATIENCE):
        while (await node.run(*can_i, impersonate)).code:  # noqa: ASYNC110
            await asyncio.sleep(0.2)
    async with aiohttp.ClientSession() as http:

        async def status(path: str, context: ssl.SSLContext = trust, **headers: str) -> int:
            async with http.get(node.url + path, ssl=context, headers=headers) as response:
                return response.status

        assert await status("/metrics") == 401
        assert await status("/metrics", Authorization="Bearer nonsense") == 401
        assert await status("/metrics", Authorization=f"Bearer {token}") == 200
        assert await status("/pods", Authorization=f"Bearer {token}") == 403
        assert await status("/pods", context=as_user(plane, "admin", "system:masters")) == 200
        assert await status("/pods", context=as_user(plane, "nobody")) == 403
        with pytest.raises(aiohttp.ClientError):
            await status("/pods", context=ssl.create_default_context())


def as_user(plane: ControlPlane, user: str, *groups: str) -> ssl.SSLContext:
    client = plane.client_certificate(user, *groups)
    context = ssl.create_default_context(cafile=str(plane.authority))
    context.load_cert_chain(client.certificate, client.key)
    return context
