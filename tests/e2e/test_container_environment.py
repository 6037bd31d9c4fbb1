"""Environment of a Windows program in a container: build, names, users, mounts and disk."""

import asyncio
import os
import shutil
import socket
import struct
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.cri_node import run_sandbox, start
from tests.support.e2e import windows_programs
from tests.support.e2e.runtime_node import Node, create_with, ended, pulled, run, said
from tests.support.pushed_images import push
from tests.support.registries import home, registry
from tests.support.registry_layers import layer
from tests.support.silos import change_registry

from winpod.compute.agent.client import Program
from winpod.compute.guest_identity import registry_changes
from winpod.compute.silo_pool import SiloPool
from winpod.cri.proto import api_pb2 as api
from winpod.cri.rpc import CriClient, RemoteError
from winpod.images.base.builder import Base
from winpod.images.winreg.wine_registry import RegistryValue
from winpod.windows.builds import parse_build

__all__ = ["home", "registry"]

HOSTS = "C:\\Windows\\System32\\drivers\\etc\\hosts"
VERSION = "HKLM\\Software\\Microsoft\\Windows NT\\CurrentVersion"


@pytest.fixture(params=(0, 1), ids=("cold", "warm"))
async def node(base: Base, tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Node]:
    """Run a node with and without a silo that was booted in advance."""
    node = Node(tmp_path, base, request.param, host="2025")
    yield node
    async with node as client:
        listed = await client.call("ListPodSandbox", api.ListPodSandboxRequest())
        for item in listed.items:
            request_ = api.RemovePodSandboxRequest(pod_sandbox_id=item.id)
            await client.call("RemovePodSandbox", request_)


async def run_in_cmd(
    node: Node, client: CriClient, home: Path, registry: str, line: str, **more: Any
) -> str:
    """Run a command line of cmd in a new container; return its stdout."""
    await node.until_warm()
    image = await pulled(client, home, registry)
    _, log = await run(client, image, node.root, "cmd", "/c", line, **more)
    return said(log, "stdout")


async def test_container_sees_build_of_image(node: Node, home: Path, registry: str) -> None:
    async with node as client:
        await node.until_warm()
        image = await pulled(client, home, registry)
        _, log = await run(client, image, node.root, "reg", "query", VERSION)
        assert "10.0.20348" in await run_in_cmd(node, client, home, registry, "ver", name="b")
    fields = [line.split(None, 2) for line in said(log, "stdout").splitlines()]
    values = {line[0]: line[2] for line in fields if len(line) == 3}
    assert values["CurrentBuildNumber"] == "20348"
    assert int(values["UBR"], 16) == 2113
    assert values["ProductName"] == "Windows Server 2022 Datacenter"


async def test_prebooted_silo_gets_registry_of_image(base: Base, tmp_path: Path) -> None:
    """Check values and the environment of new programs."""
    environment = r"ControlSet001\Control\Session Manager\Environment"
    image_layer = layer(
        tmp_path / "layer",
        System_Delta={environment: {"FROM_IMAGE": RegistryValue.text("yes")}},
        Software_Delta={r"Vendor\Tool": {"Level": RegistryValue.dword(7)}},
    )
    host, build = parse_build("2025"), parse_build("10.0.20348.1")
    pool = SiloPool(tmp_path / "root", base, host, 1)
    try:
        silo = await pool.boot(tmp_path / "root/containers/a/shell")
        await change_registry(
            silo.agent, registry_changes(base.prefix, host, build, (image_layer,))
        )
        result = await silo.agent.run(Program("cmd /c echo %FROM_IMAGE% & ver"))
        query = await silo.agent.run(Program(r"reg query HKLM\Software\Vendor\Tool"))
    finally:
        await pool.destroy(tmp_path / "root/containers/a/shell")
        await pool.stop()
    assert b"yes" in result.output
    assert b"10.0.20348" in result.output
    assert b"0x7" in query.output


async def test_concurrent_boots_are_limited_to_two_per_processor(
    base: Base, tmp_path: Path
) -> None:
    pool, limit = SiloPool(tmp_path / "root", base, parse_build("2025")), 2 * (os.cpu_count() or 1)
    directories = [tmp_path / f"root/containers/{number}/shell" for number in range(limit + 2)]
    boots = [asyncio.create_task(pool.boot(directory)) for directory in directories]
    in_progress = set()
    while not all(boot.done() for boot in boots):
        started, done = sum(map(Path.exists, directories)), sum(boot.done() for boot in boots)
        in_progress.add(started - done)
        await asyncio.sleep(0.01)
    silos = [boot.result() for boot in boots]
    running = [silo.pid is not None for silo in silos]
    for directory in directories:
        await pool.destroy(directory)
    assert all(running)
    assert max(in_progress) == limit


async def test_computer_name_is_pod_hostname(node: Node, home: Path, registry: str) -> None:
    async with node as client:
        line = "hostname & echo %COMPUTERNAME%"
        output = await run_in_cmd(node, client, home, registry, line, name="a-rather-long-name")
    assert output.split() == ["A-RATHER-LONG-N", "A-RATHER-LONG-N"]


async def test_names_resolve_with_hosts_file(
    node: Node, home: Path, registry: str, tmp_path: Path
) -> None:
    (tmp_path / "hosts").write_text("127.0.0.1 localhost\n127.9.8.7 db.example db\n")
    mount = api.Mount(host_path=f"{tmp_path}/hosts", container_path=HOSTS)
    async with node as client:
        line = f"type {HOSTS} & ping -n 1 db.example"
        output = await run_in_cmd(node, client, home, registry, line, mounts=[mount])
    assert "127.9.8.7 db.example db" in output
    assert "[127.9.8.7]" in output


def dns_answer(question: bytes, address: str) -> bytes:
    """Return a DNS response that knows only web.default.cluster.local."""
    head, rest = question[:12], question[12:]
    end = rest.index(b"\0") + 1
    name, kind = rest[:end], struct.unpack(">H", rest[end : end + 2])[0]
    known = name == b"\x03web\x07default\x07cluster\x05local\x00" and kind == 1
    flags = 0x8180 if name.startswith(b"\x03web\x07default") else 0x8183
    counts = struct.pack(">HHHHH", flags, 1, int(known), 0, 0)
    record = b"\xc0\x0c" + struct.pack(">HHIH", 1, 1, 60, 4) + socket.inet_aton(address)
    return head[:2] + counts + rest[: end + 4] + (record if known else b"")


async def test_names_resolve_with_pod_dns_and_search_domains(
    node: Node, home: Path, registry: str
) -> None:
    async with node as client:
        image = await pulled(client, home, registry)
        await node.until_warm()
        dns = api.DNSConfig(servers=["127.0.0.2"], searches=["default.cluster.local"])
        sandbox = await run_sandbox(
            client, "asking", dns_config=dns, log_directory=f"{node.root}/l"
        )
        server = node.networks.namespaces.run_in(
            sandbox, lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        )
        server.bind(("127.0.0.2", 53))
        server.setblocking(False)
        loop = asyncio.get_running_loop()
        questions = []

        async def serve() -> None:
            while True:
                question, address = await loop.sock_recvfrom(server, 512)
                questions.append(question)
                await loop.sock_sendto(server, dns_answer(question, "127.5.5.5"), address)

        serving = asyncio.create_task(serve())
        try:
            command = ("cmd", "/c", "ping -n 1 web")
            container = await create_with(client, sandbox, image, command, "a", {"log_path": "a"})
            await start(client, container)
            await ended(client, container)
        finally:
            serving.cancel()
            server.close()
    assert "[127.5.5.5]" in said((node.root / "l/a").read_text(), "stdout")
    assert all(b"\x03web" in question for question in questions), "the boot sends no queries"


async def test_container_user_cannot_write_administrator_files(
    node: Node, home: Path, registry: str
) -> None:
    security = api.WindowsContainerSecurityContext(run_as_username="ContainerUser")
    windows = api.WindowsContainerConfig(security_context=security)
    line = (
        "echo %USERNAME% %USERPROFILE% & echo mine>%USERPROFILE%\\a.txt && echo wrote mine"
        " & echo theirs>C:\\Windows\\a.txt || echo refused"
    )
    async with node as client:
        output = await run_in_cmd(node, client, home, registry, line, windows=windows)
    assert "ContainerUser C:\\Users\\ContainerUser" in output
    assert "wrote mine" in output
    assert "refused" in output


async def test_read_only_mount_is_not_writable(
    node: Node, home: Path, registry: str, tmp_path: Path
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/a.txt").write_text("as it was\n")
    mounts = [
        api.Mount(host_path=f"{tmp_path}/data", container_path="C:\\Data", readonly=True),
        api.Mount(host_path=f"{tmp_path}/data/a.txt", container_path="C:\\one.txt", readonly=True),
    ]
    line = "type C:\\data\\a.txt & echo x>C:\\data\\b.txt & echo x>C:\\one.txt & type C:\\one.txt"
    async with node as client:
        output = await run_in_cmd(node, client, home, registry, line, mounts=mounts)
    assert output.count("as it was") == 2
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["a.txt"]


async def test_files_written_to_mount_belong_to_its_owner(
    node: Node, home: Path, registry: str, tmp_path: Path
) -> None:
    (tmp_path / "data").mkdir()
    message = tmp_path / "termination-message"
    message.touch()
    mounts = [
        api.Mount(host_path=f"{tmp_path}/data", container_path="C:\\data"),
        api.Mount(host_path=f"{message}", container_path="C:\\dev\\termination-log"),
    ]
    line = "echo kept>C:\\data\\a.txt & echo because>C:\\dev\\termination-log"
    async with node as client:
        await run_in_cmd(node, client, home, registry, line, mounts=mounts)
    assert (tmp_path / "data/a.txt").read_text().strip() == "kept"
    assert (tmp_path / "data/a.txt").stat().st_uid == os.getuid()
    assert message.read_text().strip() == "because"


async def test_image_volume_is_mounted_with_and_without_sub_path(
    node: Node, home: Path, registry: str
) -> None:
    async with node as client:
        data = await push(home, f"{registry}/data:1", "10.0.20348.2113")
        await client.call("PullImage", api.PullImageRequest(image=api.ImageSpec(image=data)))
        mounts = [
            api.Mount(container_path="C:\\whole", image=api.ImageSpec(image=data)),
            api.Mount(
                container_path="C:\\part.txt",
                image=api.ImageSpec(image=data),
                image_sub_path="app.txt",
            ),
        ]
        line = "type C:\\whole\\app.txt & type C:\\part.txt & echo x>C:\\whole\\x || echo refused"
        output = await run_in_cmd(node, client, home, registry, line, mounts=mounts)
        missing = api.Mount(container_path="C:\\x", image=api.ImageSpec(image="none:1"))
        with pytest.raises(RemoteError, match="ImageVolumeMountFailed"):
            await run_in_cmd(node, client, home, registry, "ver", name="b", mounts=[missing])
    assert output.startswith("appapp")
    assert "refused" in output


async def test_mount_through_symlink_cannot_leave_drive(
    node: Node, home: Path, registry: str, tmp_path: Path
) -> None:
    """Mount points are created inside the drive, regardless of symlinks."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "volume").mkdir()
    (tmp_path / "volume/link").symlink_to(tmp_path / "outside")
    mounts = [
        api.Mount(host_path=f"{tmp_path}/volume", container_path="C:\\volume"),
        api.Mount(host_path=f"{tmp_path}", container_path="C:\\volume\\link\\inner"),
    ]
    async with node as client:
        with pytest.raises((RemoteError, TimeoutError)):
            await run_in_cmd(node, client, home, registry, "ver", mounts=mounts)
    assert list((tmp_path / "outside").iterdir()) == []


async def test_scratch_disk_has_requested_size(node: Node, home: Path, registry: str) -> None:
    resources = api.WindowsContainerResources(rootfs_size_in_bytes=32 << 20)
    windows = api.WindowsContainerConfig(resources=resources)
    line = "for /L %i in (1,1,8) do copy C:\\windows\\system32\\shell32.dll C:\\big%i.dll >nul"
    async with node as client:
        await run_in_cmd(node, client, home, registry, line, windows=windows)
        await run_in_cmd(node, client, home, registry, line, name="b")
        disks = [path / "shell/disk/upper" for path in node.root.glob("containers/*")]
        written = sorted(sum(p.stat().st_size for p in disk.glob("big*")) for disk in disks)
    one_copy = (node.base.drive_c / "windows/system32/shell32.dll").stat().st_size
    assert written[0] < 32 << 20
    assert written[1] == 8 * one_copy


@pytest.fixture(scope="module")
def writer() -> Path:
    return windows_programs.go_program(name="writer")


async def test_disk_bandwidth_limit_is_enforced(
    writer: Path, node: Node, home: Path, registry: str
) -> None:
    """Write 8 MB at 4 MB/s, measured by the writer; only the minimum is checked."""
    limit = {"io.microsoft.container.storage.qos.bandwidthmaximum": str(4 << 20)}
    (home / "content").mkdir()
    shutil.copy(writer, home / "content/writer.exe")
    command = ("C:\\writer.exe", "C:\\large", "8", "1024")
    async with node as client:
        await node.until_warm()
        image = await pulled(client, home, registry)
        _, log = await run(client, image, node.root, *command, annotations=limit)
    label, _, milliseconds = said(log, "stdout").strip().partition(": ")
    assert label == "milliseconds"
    assert int(milliseconds) > 0.8 * 2000
