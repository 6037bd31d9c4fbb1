"""Features of containers in a microVM, tested with one pod of several containers."""

import asyncio
import fcntl
import os
import pty
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from operator import not_
from pathlib import Path
from typing import Any

import pytest
from tests.support.cri_node import sandbox_config
from tests.support.e2e.command_line import Winpod
from tests.support.e2e.microvms import begin, call, machines, until_exited, until_said, winpod
from tests.support.e2e.waiting import eventually
from tests.support.e2e.windows_programs import c_program, go_program

from winpod.compute.hypervisor.guest_client import GuestClient
from winpod.compute.hypervisor.guest_silo import guest_cgroup
from winpod.compute.resources import DEFAULT_PIDS
from winpod.cri.proto import api_pb2 as api
from winpod.cri.rpc import RemoteError
from winpod.labels import STDIO_ANNOTATION

__all__ = ["winpod"]

MIB = 1 << 20
HANDLER = "runhcs-wcow-hypervisor-17763"
HOSTS = "C:\\Windows\\System32\\drivers\\etc\\hosts"
MESSAGE = "C:\\dev\\termination-log"
DISK_BYTES = "io.microsoft.container.storage.qos.bandwidthmaximum"
PIPE = r"\\.\pipe\service"
SUBNETS = '[network]\nsubnets = ["10.213.0.0/16", "fd00:213::/64"]\n'
GATEWAY, GATEWAY6 = "10.213.0.1", "fd00:213::1"
NAME_SERVER = """
import socket, struct
asked = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
asked.bind(("0.0.0.0", 53))
while True:
    question, who = asked.recvfrom(512)
    end = question.index(b"\\0", 12) + 1
    known = question[12:end] == b"\\3web\\7default\\7cluster\\5local\\0"
    known = known and question[end : end + 2] == b"\\0\\1"
    record = b"\\xc0\\x0c" + struct.pack(">HHIH", 1, 1, 60, 4) + socket.inet_aton("127.5.5.5")
    head = question[:2] + struct.pack(">HHHHH", 0x8180 if known else 0x8183, 1, known, 0, 0)
    asked.sendto(head + question[12 : end + 4] + (record if known else b""), who)
"""


@dataclass(frozen=True)
class Pod:
    """A pod with an exited container, an interactive one, and a server on port 8080."""

    winpod: Winpod
    folder: Path
    sandbox: str
    addresses: tuple[str, str]
    talker: str
    server: str

    def call(self, request: Any) -> Any:
        return call(self.winpod, request)

    def exec(self, line: str, container: str = "") -> str:
        result = self.winpod("exec", container or self.talker, "cmd", "/c", line)
        return result.stdout + result.stderr

    def logged(self, name: str) -> str:
        return (self.folder / f"logs/{name}.log").read_text()

    def wait_until_logged(self, name: str, text: str) -> None:
        eventually(lambda: self.logged(name), lambda log: text in log)


@pytest.fixture(scope="module")
def image(winpod: Winpod) -> str:
    """Pack an image with the test programs, and one with a single file."""
    config = winpod.home / ".config/winpod/config.toml"
    config.parent.mkdir(parents=True)
    config.write_text(SUBNETS)
    content, files = winpod.home / "content", winpod.home / "files"
    for folder in (content, files):
        folder.mkdir()
    for name in ("hostile", "launched"):
        shutil.copy(c_program(name), content / f"{name}.exe")
    for name in ("talker", "signals", "peer", "writer"):
        shutil.copy(go_program(name=name), content / f"{name}.exe")
    (files / "model.txt").write_text("of another image")
    for tag, directory in (("app", content), ("files", files)):
        name = f"oci:{winpod.home}/images:{tag}"
        packed = winpod(
            "image", "pack", str(directory), "-t", name, "--os-version", "10.0.17763.805"
        )
        assert packed.returncode == 0, packed.stderr
    return f"oci:{winpod.home}/images:app"


@pytest.fixture(scope="module")
def pod(winpod: Winpod, image: str) -> Iterator[Pod]:
    """Run one pod for all tests, because containers start slowly with emulation."""
    folder = winpod.home / "pod"
    (folder / "shared").mkdir(parents=True)
    (folder / "hosts").write_text("127.0.0.1 localhost\n127.9.8.7 db.example db\n")
    (folder / "message").touch()
    assert winpod("ps").returncode == 0
    dns = api.DNSConfig(servers=[GATEWAY], searches=["default.cluster.local"])
    config = sandbox_config("box", log_directory=f"{folder}/logs", dns_config=dns)
    request = api.RunPodSandboxRequest(config=config, runtime_handler=HANDLER)
    app, files = (_pull(winpod, name) for name in (image, image.replace(":app", ":files")))
    with _pipe_server(folder / "service.sock"):
        sandbox = call(winpod, request).pod_sandbox_id
        try:
            yield _start_containers(winpod, app, files, folder, sandbox)
        finally:
            call(winpod, api.RemovePodSandboxRequest(pod_sandbox_id=sandbox))
    assert machines(winpod) == []


def _pull(winpod: Winpod, name: str) -> api.ImageSpec:
    spec = api.ImageSpec(image=name, runtime_handler=HANDLER)
    return api.ImageSpec(image=call(winpod, api.PullImageRequest(image=spec)).image_ref)


def _start_containers(
    winpod: Winpod, image: api.ImageSpec, files: api.ImageSpec, folder: Path, sandbox: str
) -> Pod:
    shared = api.Mount(host_path=f"{folder}/shared", container_path="C:\\shared")
    command = ["cmd", "/c", "echo made before>C:\\shared\\first.txt & echo mine>C:\\own.txt"]
    first = begin(winpod, image, sandbox, "first", command, mounts=[shared])
    until_exited(winpod, first)
    mounts = [
        shared,
        api.Mount(host_path=f"{folder}/hosts", container_path=HOSTS),
        api.Mount(host_path=f"{folder}/message", container_path=MESSAGE),
        api.Mount(host_path=f"{folder}/service.sock", container_path=PIPE),
        api.Mount(image=files, container_path="C:\\files"),
    ]
    options = {"stdin": True, "annotations": {STDIO_ANNOTATION: "stdin"}, "mounts": mounts}
    talker = begin(winpod, image, sandbox, "talker", ["C:\\talker.exe"], **options)
    limits = api.WindowsContainerResources(memory_limit_in_bytes=512 * MIB)
    server = begin(
        *(winpod, image, sandbox, "server", ["C:\\talker.exe", ":8080"]),
        windows=api.WindowsContainerConfig(resources=limits),
        annotations={DISK_BYTES: str(MIB)},
    )
    status = call(winpod, api.PodSandboxStatusRequest(pod_sandbox_id=sandbox)).status.network
    addresses = (status.ip, status.additional_ips[0].ip)
    pod = Pod(winpod, folder, sandbox, addresses, talker, server)
    pod.wait_until_logged("talker", "listening")
    pod.wait_until_logged("server", "serving")
    return pod


@contextmanager
def _pipe_server(path: Path) -> Iterator[None]:
    """Serve a Unix socket that repeats one message per client."""

    def serve() -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            with client:
                client.sendall(b"the host heard " + client.recv(1000))

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        threading.Thread(target=serve, daemon=True).start()
        yield
        listener.shutdown(socket.SHUT_RDWR)


@contextmanager
def _terminal(winpod: Winpod, *arguments: str) -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
    """Run a command in a terminal of 100x30; yield the controlling side and the process."""
    controller, tty = pty.openpty()
    fcntl.ioctl(tty, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
    process = winpod.start(*arguments, stdin=tty, stdout=tty, stderr=tty, start_new_session=True)
    os.close(tty)
    try:
        yield controller, process
    finally:
        os.close(controller)
        process.kill()
        process.wait()


def _read_until(terminal: int, text: str) -> str:
    output = ""
    while text not in output:
        try:
            output += re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", os.read(terminal, 65536).decode())
        except OSError:
            pytest.fail(f"{text!r} is not in {output!r}")
    return output


def _check_resizes(winpod: Winpod, *arguments: str) -> None:
    """Check that the program reports each size; it exits at a width of 132."""
    with _terminal(winpod, *arguments) as (controller, process):
        _read_until(controller, "size 100 30")
        fcntl.ioctl(controller, termios.TIOCSWINSZ, struct.pack("HHHH", 43, 132, 0, 0))
        process.send_signal(signal.SIGWINCH)
        _read_until(controller, "size 132 43")
        assert process.wait(300) == 42


def test_terminal_follows_client_size(winpod: Winpod, image: str) -> None:
    command = ("--isolation", "hypervisor", image, "C:\\launched.exe", "size")
    _check_resizes(winpod, "run", "--rm", "-it", *command)


def test_stop_is_delivered_and_handled(winpod: Winpod, image: str) -> None:
    options = ("-d", "--name", "polite", "--isolation", "hypervisor")
    assert winpod("run", *options, image, "C:\\signals.exe").returncode == 0
    until_said(winpod, "polite", "waiting")
    assert winpod("stop", "-t", "60", "polite").returncode == 0
    assert winpod("logs", "polite").stdout.split("\n")[1:3] == ["heard terminated", "bye"]
    assert "Exited (7)" in winpod("ps", "-a").stdout
    assert winpod("rm", "polite").returncode == 0


def test_containers_share_volumes_but_not_drives(pod: Pod) -> None:
    assert "made before" in pod.exec("type C:\\shared\\first.txt")
    for container in (pod.talker, pod.server):
        assert "mine" not in pod.exec("type C:\\own.txt", container)
    pod.exec("echo x>C:\\left.txt")
    assert "left.txt" not in pod.exec("dir /b C:\\", pod.server)


def test_containers_connect_over_localhost_and_pod_ips(pod: Pod) -> None:
    for host in ("127.0.0.1", pod.addresses[0], f"[{pod.addresses[1]}]"):
        output = pod.exec(f"C:\\peer.exe ask http://{host}:8080/hello")
        assert "/hello from Windows" in output, host


def test_pod_is_reachable_at_both_ips(pod: Pod) -> None:
    inside = ["nsenter", f"--net=/run/netns/{pod.winpod.netns}", "curl", "-sg", "--max-time", "300"]
    for host in (pod.addresses[0], f"[{pod.addresses[1]}]"):
        result = subprocess.run(
            [*inside, f"http://{host}:8080/out"], capture_output=True, text=True, check=False
        )
        assert result.stdout == "/out from Windows", host


def test_program_sees_processors_of_guest(pod: Pod) -> None:
    count = pod.exec("type \\\\?\\unix\\proc\\cpuinfo").count("processor\t:")
    assert pod.exec("echo %NUMBER_OF_PROCESSORS%").strip() == str(count)


def test_names_resolve_with_hosts_file_and_dns(pod: Pod) -> None:
    command = ["nsenter", f"--net=/run/netns/{pod.winpod.netns}", sys.executable, "-c", NAME_SERVER]
    process = subprocess.Popen(command)
    try:
        assert "[127.9.8.7]" in pod.exec("ping -n 1 db.example")
        assert "[127.5.5.5]" in pod.exec("ping -n 1 web")
    finally:
        process.kill()
        process.wait()


def test_termination_message_is_written_to_host_file(pod: Pod) -> None:
    pod.exec(f"echo all went well>{MESSAGE}")
    assert (pod.folder / "message").read_text().strip() == "all went well"


def test_image_volume_is_read_only(pod: Pod) -> None:
    assert "of another image" in pod.exec("type C:\\files\\model.txt & echo x>C:\\files\\new.txt")
    assert "new.txt" not in pod.exec("dir /b C:\\files")


def test_named_pipe_connects_to_host_socket(pod: Pod) -> None:
    result = pod.winpod("exec", pod.talker, "C:\\peer.exe", "ask", "pipe://service")
    assert "the host heard hello" in result.stdout, result


def test_attach_streams_of_container(pod: Pod) -> None:
    attached = pod.winpod.start("attach", pod.talker, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert attached.stdin
    assert attached.stdout
    attached.stdin.write(b"good morning\n")
    attached.stdin.flush()
    assert attached.stdout.readline().strip() == b"heard good morning"
    attached.kill()
    attached.communicate()


def test_exec_has_stdin_and_terminal(pod: Pod) -> None:
    command = ("exec", "-i", pod.talker, "C:\\talker.exe")
    result = pod.winpod(*command, stdin="one\ncry oh no\nexit 9\n")
    assert (result.returncode, result.stdout, result.stderr) == (
        9,
        "listening\nheard one\n",
        "oh no\n",
    )
    _check_resizes(pod.winpod, "exec", "-it", pod.talker, "C:\\launched.exe", "size")


def test_port_forward_reaches_localhost_listener(pod: Pod) -> None:
    command = ("exec", pod.talker, "C:\\talker.exe", "127.0.0.1:8081")
    serving = pod.winpod.start(*command, stdout=subprocess.PIPE)
    forward = pod.winpod.start("port-forward", pod.talker, "18081:8081", stdout=subprocess.PIPE)
    assert serving.stdout
    assert forward.stdout
    try:
        assert serving.stdout.readline().strip() == b"serving"
        assert b"18081" in forward.stdout.readline()
        inside = ["nsenter", f"--net=/run/netns/{pod.winpod.netns}", "curl", "-sS"]
        for path in ("a", "b"):
            result = subprocess.run(
                [*inside, "--max-time", "300", f"http://127.0.0.1:18081/{path}"],
                capture_output=True,
                text=True,
                check=False,
            )
            assert result.stdout == f"/{path} from Windows", result.stderr
    finally:
        for process in (forward, serving):
            process.kill()
            process.communicate()
    sockets = "runtime/sandboxes/*/vm/dial-*"
    eventually(lambda: list(pod.winpod.root.glob(sockets)), not_)


def test_stats_include_guest_and_host_usage(pod: Pod) -> None:
    def pod_stats() -> Any:
        request = api.PodSandboxStatsRequest(pod_sandbox_id=pod.sandbox)
        return pod.call(request).stats.windows

    def written_bytes(windows_stats: Any) -> int:
        found = {stats.attributes.id: stats.writable_layer for stats in windows_stats.containers}
        return int(found[pod.talker].used_bytes.value)

    before = pod_stats()
    (pod.folder / "shared/large").write_bytes(os.urandom(8 * MIB))
    pod.exec("copy C:\\shared\\large C:\\large")
    after = pod_stats()
    used = "usage_core_nano_seconds"
    assert getattr(after.cpu, used).value > getattr(before.cpu, used).value
    assert 4 * MIB < after.memory.working_set_bytes.value < 512 * MIB
    assert 4 < after.process.process_count.value < 60
    assert 7 * MIB < written_bytes(after) - written_bytes(before) < 12 * MIB
    assert after.network.default_interface.name == "eth0"
    assert not after.network.interfaces
    assert after.network.default_interface.rx_bytes.value > 0
    assert after.network.default_interface.tx_bytes.value > 0
    stats = pod.call(api.ContainerStatsRequest(container_id=pod.talker)).stats
    assert stats.cpu.usage_core_nano_seconds.value > 0
    assert stats.memory.working_set_bytes.value > 4 * MIB
    shown = pod.winpod("stats", "--no-stream", pod.talker)
    assert "talker" in shown.stdout, shown


def test_reopened_log_continues_in_new_file(pod: Pod) -> None:
    log = pod.folder / "logs/talker.log"
    log.rename(log.with_suffix(".old"))
    pod.call(api.ReopenContainerLogRequest(container_id=pod.talker))
    attached = pod.winpod.start("attach", pod.talker, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert attached.stdin
    attached.stdin.write(b"a new page\n")
    attached.stdin.flush()
    pod.wait_until_logged("talker", "heard a new page")
    attached.kill()
    attached.communicate()
    assert "a new page" not in log.with_suffix(".old").read_text()


def test_disk_bandwidth_limit_is_enforced(pod: Pod) -> None:
    """Write 2 MiB at 1 MiB/s, and compare with the best of three unlimited runs."""

    def milliseconds(container: str, tries: int) -> list[int]:
        output = pod.exec(" & ".join(["C:\\writer.exe C:\\written.bin 8 256"] * tries), container)
        taken = [int(number) for number in re.findall(r"milliseconds: (\d+)", output)]
        assert len(taken) == tries, output
        return taken

    (limited,), free = milliseconds(pod.server, 1), milliseconds(pod.talker, 3)
    assert limited > 1600
    assert min(free) < limited, free


def test_pids_limit_is_enforced_and_neighbour_is_unaffected(pod: Pod) -> None:
    _limit_pids(pod, pod.server, more=12)
    command = ("exec", pod.server, "C:\\hostile.exe", "children")
    starting = pod.winpod.start(*command, stdout=subprocess.PIPE)
    stdout = starting.stdout
    assert stdout
    try:
        lines = list(iter(lambda: stdout.readline().strip(), b"no more"))
        assert "still here" in pod.exec("echo still here")
    finally:
        starting.kill()
        starting.communicate()
    assert 0 < int(lines[-1].split()[0]) < 12, lines
    eventually(
        lambda: pod.exec("echo still here", pod.server), lambda output: "still here" in output
    )


def _limit_pids(pod: Pod, container: str, more: int) -> None:
    """Lower pids.max in the guest; the runtime is stopped, because only one client can connect."""
    pod.winpod.end_runtime()
    runtime = pod.winpod.root / "runtime"
    guest = GuestClient(runtime / f"sandboxes/{pod.sandbox}/vm/control")
    group = guest_cgroup((runtime / f"containers/{container}/shell/id").read_text())

    async def update() -> None:
        assert int(await guest.request("read", f"{group}/pids.max")) == DEFAULT_PIDS
        now = int(await guest.request("read", f"{group}/pids.current"))
        await guest.request("write", f"{group}/pids.max", str(now + more))
        guest.close()

    asyncio.run(update())


def test_updated_memory_limit_is_enforced(
    pod: Pod,
) -> None:
    def update(megabytes: int) -> None:
        more = api.WindowsContainerResources(memory_limit_in_bytes=megabytes * MIB)
        pod.call(api.UpdateContainerResourcesRequest(container_id=pod.server, windows=more))

    with pytest.raises(RemoteError, match="is less than the container's Windows already uses"):
        update(2)
    update(160)
    pod.winpod("exec", pod.server, "C:\\hostile.exe", "memory")
    pod.call(api.StopContainerRequest(container_id=pod.server, timeout=0))
    status = until_exited(pod.winpod, pod.server)
    assert status.reason == "OOMKilled"
    assert "still here" in pod.exec("echo still here")
