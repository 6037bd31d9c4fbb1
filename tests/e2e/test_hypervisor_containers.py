"""What containers are promised holds in a microVM too: one pod of several, looked at all around."""

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
    """Of a container that has ended, one that is talked to, and one that serves on port 8080."""

    winpod: Winpod
    folder: Path
    sandbox: str
    addresses: tuple[str, str]
    talker: str
    server: str

    def call(self, request: Any) -> Any:
        return call(self.winpod, request)

    def exec(self, line: str, container: str = "") -> str:
        ran = self.winpod("exec", container or self.talker, "cmd", "/c", line)
        return ran.stdout + ran.stderr

    def logged(self, name: str) -> str:
        return (self.folder / f"logs/{name}.log").read_text()

    def until_logged(self, name: str, words: str) -> None:
        eventually(lambda: self.logged(name), lambda log: words in log)


@pytest.fixture(scope="module")
def image(winpod: Winpod) -> str:
    """Of the tests' programs; and one beside it with a file only."""
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
    for tag, place in (("app", content), ("files", files)):
        name = f"oci:{winpod.home}/images:{tag}"
        packed = winpod("image", "pack", str(place), "-t", name, "--os-version", "10.0.17763.805")
        assert packed.returncode == 0, packed.stderr
    return f"oci:{winpod.home}/images:app"


@pytest.fixture(scope="module")
def pod(winpod: Winpod, image: str) -> Iterator[Pod]:
    """One for all tests, because each container boots a Windows in an emulated machine."""
    folder = winpod.home / "pod"
    (folder / "shared").mkdir(parents=True)
    (folder / "hosts").write_text("127.0.0.1 localhost\n127.9.8.7 db.example db\n")
    (folder / "message").touch()
    assert winpod("ps").returncode == 0
    dns = api.DNSConfig(servers=[GATEWAY], searches=["default.cluster.local"])
    config = sandbox_config("box", log_directory=f"{folder}/logs", dns_config=dns)
    request = api.RunPodSandboxRequest(config=config, runtime_handler=HANDLER)
    app, files = (_pull(winpod, name) for name in (image, image.replace(":app", ":files")))
    with _serving_pipe(folder / "service.sock"):
        sandbox = call(winpod, request).pod_sandbox_id
        try:
            yield _fill(winpod, app, files, folder, sandbox)
        finally:
            call(winpod, api.RemovePodSandboxRequest(pod_sandbox_id=sandbox))
    assert machines(winpod) == []


def _pull(winpod: Winpod, name: str) -> api.ImageSpec:
    spec = api.ImageSpec(image=name, runtime_handler=HANDLER)
    return api.ImageSpec(image=call(winpod, api.PullImageRequest(image=spec)).image_ref)


def _fill(
    winpod: Winpod, image: api.ImageSpec, files: api.ImageSpec, folder: Path, sandbox: str
) -> Pod:
    shared = api.Mount(host_path=f"{folder}/shared", container_path="C:\\shared")
    line = ["cmd", "/c", "echo made before>C:\\shared\\first.txt & echo mine>C:\\own.txt"]
    first = begin(winpod, image, sandbox, "first", line, mounts=[shared])
    until_exited(winpod, first)
    mounts = [
        shared,
        api.Mount(host_path=f"{folder}/hosts", container_path=HOSTS),
        api.Mount(host_path=f"{folder}/message", container_path=MESSAGE),
        api.Mount(host_path=f"{folder}/service.sock", container_path=PIPE),
        api.Mount(image=files, container_path="C:\\files"),
    ]
    talked = {"stdin": True, "annotations": {STDIO_ANNOTATION: "stdin"}, "mounts": mounts}
    talker = begin(winpod, image, sandbox, "talker", ["C:\\talker.exe"], **talked)
    limits = api.WindowsContainerResources(memory_limit_in_bytes=512 * MIB)
    server = begin(
        *(winpod, image, sandbox, "server", ["C:\\talker.exe", ":8080"]),
        windows=api.WindowsContainerConfig(resources=limits),
        annotations={DISK_BYTES: str(MIB)},
    )
    status = call(winpod, api.PodSandboxStatusRequest(pod_sandbox_id=sandbox)).status.network
    addresses = (status.ip, status.additional_ips[0].ip)
    pod = Pod(winpod, folder, sandbox, addresses, talker, server)
    pod.until_logged("talker", "listening")
    pod.until_logged("server", "serving")
    return pod


@contextmanager
def _serving_pipe(path: Path) -> Iterator[None]:
    """A server that repeats the line it is told, once for each client."""

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
    """A command with a terminal of 100 by 30: the person's side of it, and the command."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
    process = winpod.start(
        *arguments, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
    )
    os.close(theirs)
    try:
        yield ours, process
    finally:
        os.close(ours)
        process.kill()
        process.wait()


def _read_until(terminal: int, words: str) -> str:
    seen = ""
    while words not in seen:
        try:
            seen += re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", os.read(terminal, 65536).decode())
        except OSError:
            pytest.fail(f"{words!r} is not in {seen!r}")
    return seen


def _check_sizes(winpod: Winpod, *arguments: str) -> None:
    """The program ends when its console is 132 wide."""
    with _terminal(winpod, *arguments) as (ours, process):
        _read_until(ours, "size 100 30")
        fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("HHHH", 43, 132, 0, 0))
        process.send_signal(signal.SIGWINCH)
        _read_until(ours, "size 132 43")
        assert process.wait(300) == 42


def test_a_terminal_has_the_size_of_the_persons(winpod: Winpod, image: str) -> None:
    command = ("--isolation", "hypervisor", image, "C:\\launched.exe", "size")
    _check_sizes(winpod, "run", "--rm", "-it", *command)


def test_a_stopped_program_hears_of_it_and_may_finish(winpod: Winpod, image: str) -> None:
    options = ("-d", "--name", "polite", "--isolation", "hypervisor")
    assert winpod("run", *options, image, "C:\\signals.exe").returncode == 0
    until_said(winpod, "polite", "waiting")
    assert winpod("stop", "-t", "60", "polite").returncode == 0
    assert winpod("logs", "polite").stdout.split("\n")[1:3] == ["heard terminated", "bye"]
    assert "Exited (7)" in winpod("ps", "-a").stdout
    assert winpod("rm", "polite").returncode == 0


def test_containers_of_a_pod_share_its_volumes_and_not_their_drives(pod: Pod) -> None:
    assert "made before" in pod.exec("type C:\\shared\\first.txt")
    for container in (pod.talker, pod.server):
        assert "mine" not in pod.exec("type C:\\own.txt", container)
    pod.exec("echo x>C:\\left.txt")
    assert "left.txt" not in pod.exec("dir /b C:\\", pod.server)


def test_containers_reach_each_other_at_localhost_and_by_the_pods_addresses(pod: Pod) -> None:
    for host in ("127.0.0.1", pod.addresses[0], f"[{pod.addresses[1]}]"):
        said = pod.exec(f"C:\\peer.exe ask http://{host}:8080/hello")
        assert "/hello from Windows" in said, host


def test_others_reach_the_pod_by_both_of_its_addresses(pod: Pod) -> None:
    inside = ["nsenter", f"--net=/run/netns/{pod.winpod.netns}", "curl", "-sg", "--max-time", "300"]
    for host in (pod.addresses[0], f"[{pod.addresses[1]}]"):
        got = subprocess.run(
            [*inside, f"http://{host}:8080/out"], capture_output=True, text=True, check=False
        )
        assert got.stdout == "/out from Windows", host


def test_the_processors_of_a_program_are_the_guests(pod: Pod) -> None:
    seen = pod.exec("type \\\\?\\unix\\proc\\cpuinfo").count("processor\t:")
    assert pod.exec("echo %NUMBER_OF_PROCESSORS%").strip() == str(seen)


def test_names_are_found_in_the_hosts_file_and_asked_of_the_pods_name_server(pod: Pod) -> None:
    server = ["nsenter", f"--net=/run/netns/{pod.winpod.netns}", sys.executable, "-c", NAME_SERVER]
    answering = subprocess.Popen(server)
    try:
        assert "[127.9.8.7]" in pod.exec("ping -n 1 db.example")
        assert "[127.5.5.5]" in pod.exec("ping -n 1 web")
    finally:
        answering.kill()
        answering.wait()


def test_a_message_at_the_end_is_a_file_of_the_hosts(pod: Pod) -> None:
    pod.exec(f"echo all went well>{MESSAGE}")
    assert (pod.folder / "message").read_text().strip() == "all went well"


def test_the_files_of_another_image_are_there_to_read(pod: Pod) -> None:
    assert "of another image" in pod.exec("type C:\\files\\model.txt & echo x>C:\\files\\new.txt")
    assert "new.txt" not in pod.exec("dir /b C:\\files")


def test_a_named_pipe_leads_to_a_socket_of_the_hosts(pod: Pod) -> None:
    ran = pod.winpod("exec", pod.talker, "C:\\peer.exe", "ask", "pipe://service")
    assert "the host heard hello" in ran.stdout, ran


def test_somebody_attached_talks_to_the_containers_program(pod: Pod) -> None:
    attached = pod.winpod.start("attach", pod.talker, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert attached.stdin
    assert attached.stdout
    attached.stdin.write(b"good morning\n")
    attached.stdin.flush()
    assert attached.stdout.readline().strip() == b"heard good morning"
    attached.kill()
    attached.communicate()


def test_an_executed_program_has_its_input_and_its_terminal(pod: Pod) -> None:
    words = ("exec", "-i", pod.talker, "C:\\talker.exe")
    ran = pod.winpod(*words, stdin="one\ncry oh no\nexit 9\n")
    assert (ran.returncode, ran.stdout, ran.stderr) == (9, "listening\nheard one\n", "oh no\n")
    _check_sizes(pod.winpod, "exec", "-it", pod.talker, "C:\\launched.exe", "size")


def test_a_port_is_forwarded_to_a_program_that_listens_on_localhost_only(pod: Pod) -> None:
    words = ("exec", pod.talker, "C:\\talker.exe", "127.0.0.1:8081")
    serving = pod.winpod.start(*words, stdout=subprocess.PIPE)
    forward = pod.winpod.start("port-forward", pod.talker, "18081:8081", stdout=subprocess.PIPE)
    assert serving.stdout
    assert forward.stdout
    try:
        assert serving.stdout.readline().strip() == b"serving"
        assert b"18081" in forward.stdout.readline()
        inside = ["nsenter", f"--net=/run/netns/{pod.winpod.netns}", "curl", "-sS"]
        for path in ("a", "b"):
            got = subprocess.run(
                [*inside, "--max-time", "300", f"http://127.0.0.1:18081/{path}"],
                capture_output=True,
                text=True,
                check=False,
            )
            assert got.stdout == f"/{path} from Windows", got.stderr
    finally:
        for process in (forward, serving):
            process.kill()
            process.communicate()
    lines = "runtime/sandboxes/*/vm/dial-*"
    eventually(lambda: list(pod.winpod.root.glob(lines)), not_)


def test_what_a_container_uses_is_counted_in_the_guest_and_on_the_host(pod: Pod) -> None:
    def counted() -> Any:
        request = api.PodSandboxStatsRequest(pod_sandbox_id=pod.sandbox)
        return pod.call(request).stats.windows

    def written(stats: Any) -> int:
        found = {one.attributes.id: one.writable_layer for one in stats.containers}
        return int(found[pod.talker].used_bytes.value)

    before = counted()
    (pod.folder / "shared/large").write_bytes(os.urandom(8 * MIB))
    pod.exec("copy C:\\shared\\large C:\\large")
    after = counted()
    used = "usage_core_nano_seconds"
    assert getattr(after.cpu, used).value > getattr(before.cpu, used).value
    assert 4 * MIB < after.memory.working_set_bytes.value < 512 * MIB
    assert 4 < after.process.process_count.value < 60
    assert 7 * MIB < written(after) - written(before) < 12 * MIB
    assert after.network.default_interface.name == "eth0"
    assert not after.network.interfaces
    assert after.network.default_interface.rx_bytes.value > 0
    assert after.network.default_interface.tx_bytes.value > 0
    one = pod.call(api.ContainerStatsRequest(container_id=pod.talker)).stats
    assert one.cpu.usage_core_nano_seconds.value > 0
    assert one.memory.working_set_bytes.value > 4 * MIB
    told = pod.winpod("stats", "--no-stream", pod.talker)
    assert "talker" in told.stdout, told


def test_a_log_goes_on_in_a_new_file(pod: Pod) -> None:
    log = pod.folder / "logs/talker.log"
    log.rename(log.with_suffix(".old"))
    pod.call(api.ReopenContainerLogRequest(container_id=pod.talker))
    attached = pod.winpod.start("attach", pod.talker, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert attached.stdin
    attached.stdin.write(b"a new page\n")
    attached.stdin.flush()
    pod.until_logged("talker", "heard a new page")
    attached.kill()
    attached.communicate()
    assert "a new page" not in log.with_suffix(".old").read_text()


def test_a_container_writes_to_its_drive_no_faster_than_its_limit(pod: Pod) -> None:
    """2 MiB at 1 MiB a second, and the best of three tries of a neighbour without a limit."""

    def milliseconds(container: str, tries: int) -> list[int]:
        said = pod.exec(" & ".join(["C:\\writer.exe C:\\written.bin 8 256"] * tries), container)
        taken = [int(number) for number in re.findall(r"milliseconds: (\d+)", said)]
        assert len(taken) == tries, said
        return taken

    (limited,), free = milliseconds(pod.server, 1), milliseconds(pod.talker, 3)
    assert limited > 1600
    assert min(free) < limited, free


def test_who_starts_processes_without_end_is_refused_and_harms_no_neighbour(pod: Pod) -> None:
    _let_have_few(pod, pod.server, more=12)
    words = ("exec", pod.server, "C:\\hostile.exe", "children")
    starting = pod.winpod.start(*words, stdout=subprocess.PIPE)
    lines = starting.stdout
    assert lines
    try:
        said = list(iter(lambda: lines.readline().strip(), b"no more"))
        assert "still here" in pod.exec("echo still here")
    finally:
        starting.kill()
        starting.communicate()
    assert 0 < int(said[-1].split()[0]) < 12, said
    eventually(lambda: pod.exec("echo still here", pod.server), lambda said: "still here" in said)


def _let_have_few(pod: Pod, container: str, more: int) -> None:
    """Processes and threads, by the guest's kernel, while no runtime has the only connection."""
    pod.winpod.end_runtime()
    of_runtime = pod.winpod.root / "runtime"
    guest = GuestClient(of_runtime / f"sandboxes/{pod.sandbox}/vm/control")
    group = guest_cgroup((of_runtime / f"containers/{container}/shell/id").read_text())

    async def ask() -> None:
        assert int(await guest.request("read", f"{group}/pids.max")) == DEFAULT_PIDS
        now = int(await guest.request("read", f"{group}/pids.current"))
        await guest.request("write", f"{group}/pids.max", str(now + more))
        guest.close()

    asyncio.run(ask())


def test_a_limit_is_changed_while_it_runs_and_who_goes_beyond_is_told_as_out_of_memory(
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
