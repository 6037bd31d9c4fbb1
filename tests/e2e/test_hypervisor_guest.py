"""Isolation of containers from their guest, probed from inside the container.

docs/security.md describes the guarantees. The runtime is stopped for direct requests to a guest,
because only one client can connect.
"""

import asyncio
import errno
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import not_
from pathlib import Path

import pytest
from tests.support.cri_node import sandbox_config
from tests.support.e2e.attack_results import NOT_PERMITTED, Tried, read
from tests.support.e2e.command_line import Winpod
from tests.support.e2e.microvms import WAITS, begin, call, image, winpod
from tests.support.e2e.waiting import eventually
from tests.support.e2e.windows_programs import linux_program

from winpod.compute.hypervisor.guest_client import GuestClient
from winpod.compute.hypervisor.qemu import CONSOLE, QmpClient
from winpod.compute.silo import MASKED_PATHS, READONLY_PATHS
from winpod.cri.proto import api_pb2 as api

__all__ = ["image", "winpod"]

HANDLER = "runhcs-wcow-hypervisor-17763"
DEVICES = {"null", "zero", "full", "random", "urandom", "tty", "shm"}
MANY = 3


@dataclass(frozen=True)
class Pod:
    """A pod with two containers; the silo of the second was booted on demand."""

    winpod: Winpod
    image: api.ImageSpec
    folder: Path
    sandbox: str
    administrator: str
    user: str

    @property
    def vm(self) -> Path:
        return self.winpod.root / f"runtime/sandboxes/{self.sandbox}/vm"

    def begin(self, name: str, user: str = "") -> str:
        context = api.WindowsContainerSecurityContext(run_as_username=user)
        data = api.Mount(host_path=f"{self.folder}/data", container_path="C:\\data")
        file = api.Mount(host_path=f"{self.folder}/one.txt", container_path="C:\\one.txt")
        return begin(
            *(self.winpod, self.image, self.sandbox, name, ["cmd", "/c", WAITS]),
            windows=api.WindowsContainerConfig(security_context=context),
            mounts=[data, file],
        )

    def probe(self, container: str, *arguments: str) -> Tried:
        result = self.folder / "data/probe.txt"
        result.unlink(missing_ok=True)
        self.winpod("exec", container, "start", "/unix", "/prefix/drive_c/data/probe", *arguments)
        return Tried(eventually(lambda: read(result), lambda text: text.endswith("done 0\n")))

    def guest_requests(self, *requests: Sequence[str]) -> list[bytes]:
        return send_requests(self.winpod, self.vm, *requests)


def send_requests(winpod: Winpod, vm: Path, *requests: Sequence[str]) -> list[bytes]:
    winpod.end_runtime()

    async def send() -> list[bytes]:
        guest = GuestClient(vm / "control")
        try:
            return [await guest.request(*request) for request in requests]
        finally:
            guest.close()

    return asyncio.run(send())


@pytest.fixture(scope="module")
def pod(winpod: Winpod, image: str) -> Iterator[Pod]:
    folder = winpod.home / "pod"
    (folder / "data").mkdir(parents=True)
    (folder / "data/probe").write_bytes(linux_program("probe").read_bytes())
    for path, mode in (("data/probe", 0o755), ("data", 0o777)):
        (folder / path).chmod(mode)
    (folder / "one.txt").write_text("a single file")
    assert winpod("ps").returncode == 0
    spec = api.ImageSpec(image=image, runtime_handler=HANDLER)
    spec = api.ImageSpec(image=call(winpod, api.PullImageRequest(image=spec)).image_ref)
    config = sandbox_config("inside", log_directory=f"{folder}/logs")
    request = api.RunPodSandboxRequest(config=config, runtime_handler=HANDLER)
    sandbox = call(winpod, request).pod_sandbox_id
    try:
        empty = Pod(winpod, spec, folder, sandbox, "", "")
        first, second = empty.begin("administrator"), empty.begin("user", "ContainerUser")
        yield Pod(winpod, spec, folder, sandbox, first, second)
    finally:
        assert winpod("ps").returncode == 0
        call(winpod, api.RemovePodSandboxRequest(pod_sandbox_id=sandbox))


def test_guest_kernel_denies_privileged_system_calls(pod: Pod) -> None:
    for container in (pod.administrator, pod.user):
        found = pod.probe(container).errors
        assert (found["capabilities"], found["no-new-privileges"], found["seccomp"]) == (0, 1, 2)
        assert {name: found[name] for name in NOT_PERMITTED} == dict.fromkeys(
            NOT_PERMITTED, errno.EPERM
        )
        assert found["clone3"] == errno.ENOSYS


def test_container_has_no_guest_devices(pod: Pod) -> None:
    paths = ("/dev/vda", "/dev/ttyS0", "/dev/mem", "/dev/kmsg")
    for container in (pod.administrator, pod.user):
        found = pod.probe(container, *(f"r{path}" for path in paths))
        assert found.named("device") == DEVICES
        assert {found.errors[f"read:{path}"] for path in paths} == {errno.ENOENT}


def test_guest_is_read_only_for_containers(pod: Pod) -> None:
    kernel = ("/proc/sysrq-trigger", "/proc/sys/kernel/core_pattern", "/proc/sys/vm/drop_caches")
    paths = (*kernel, "/winpod/wagent.exe", "/winpod/new", "/usr/lib/new", "/new")
    found = pod.probe(pod.administrator, *(f"w{path}" for path in paths))
    assert {found.errors[f"write:{path}"] for path in paths} == {errno.EROFS}
    assert found.named("root").isdisjoint({"drives", "volumes", "registry", "modules", "init"})
    output = pod.winpod("exec", pod.administrator, "cmd", "/c", r"type \\?\unix\proc\1\mountinfo")
    mounted = {row.split()[4]: row.split()[5] for row in output.stdout.splitlines()}
    assert all(mounted[path].startswith("ro") for path in READONLY_PATHS)
    assert {"/proc/kcore", "/proc/keys", "/proc/timer_list", "/proc/acpi"} <= {*mounted} & {
        *MASKED_PATHS
    }
    for mount_point, options in mounted.items():
        assert "nosuid" in options or mount_point == "/", mount_point


def test_removed_containers_leave_nothing_in_guest_or_on_host(pod: Pod) -> None:
    groups = ("read", "/sys/fs/cgroup/cgroup.stat")
    mounts = ("read", "/proc/1/mountinfo")
    before = pod.guest_requests(groups, mounts)
    assert pod.winpod("ps").returncode == 0
    removed = [pod.begin(f"one-of-{number}") for number in range(MANY)]
    for container in removed:
        call(pod.winpod, api.RemoveContainerRequest(container_id=container))
    eventually(lambda: _leftovers(pod, removed), not_)
    after = pod.guest_requests(groups, mounts)
    assert _descendants(after[0]) == _descendants(before[0])
    assert len(after[1].splitlines()) == len(before[1].splitlines()), after[1].decode()
    for container in removed:
        assert container not in after[1].decode()


def _descendants(stat: bytes) -> bytes:
    return next(row for row in stat.splitlines() if row.startswith(b"nr_descendants"))


def _leftovers(pod: Pod, containers: Sequence[str]) -> list[str]:
    """Return files, mounts and loop devices of these containers on the host."""
    loops = subprocess.run(["losetup", "-l", "-n", "-O", "BACK-FILE"], capture_output=True)
    rows = [*loops.stdout.decode().splitlines(), *Path("/proc/mounts").read_text().splitlines()]
    rows += map(str, pod.vm.glob("*/*"))
    return [row for row in rows if any(container in row for container in containers)]


def test_guest_console_output_is_bounded(pod: Pod) -> None:
    pod.guest_requests(
        *[("write", "/dev/ttyS0", f"{number}:{'x' * 4000}\n") for number in range(40)]
    )

    async def read_console() -> str:
        async with QmpClient(pod.vm / "qmp") as qmp:
            return str(await qmp.execute("ringbuf-read", device=CONSOLE, size=1 << 17))

    console = asyncio.run(read_console())
    assert len(console) <= 1 << 16
    assert "39:x" in console
    files = [file for file in pod.vm.iterdir() if file.is_file()]
    assert files
    assert not any("xxxx" in read(file) for file in files)
    assert not (pod.vm / CONSOLE).exists()


def test_clones_have_own_random_state_addresses_and_clock(pod: Pod) -> None:
    options = ("-d", "--name", "clone", "--isolation", "hypervisor")
    name = f"oci:{pod.winpod.home}/images:old"
    started = pod.winpod("run", *options, name, "cmd", "/c", WAITS)
    assert started.returncode == 0, started.stderr
    vms = list(pod.winpod.root.glob("runtime/sandboxes/*/vm"))
    assert len(vms) == 2
    random = ("read", "/dev/urandom", "32")
    address = ("read", "/sys/class/net/eth0/address")
    clock = (("read", "/proc/stat"), ("read", "/proc/uptime"))
    numbers, addresses = set(), set()
    for vm in vms:
        before = time.time()
        number, mac, stat, uptime = send_requests(pod.winpod, vm, random, address, *clock)
        boot_time = next(row for row in stat.decode().splitlines() if row.startswith("btime"))
        now = int(boot_time.split()[1]) + float(uptime.split()[0])
        assert before - 2 <= now <= time.time() + 2
        numbers.add(number)
        addresses.add(mac)
    assert len(numbers) == len(addresses) == 2
    assert pod.winpod("rm", "-f", "clone").returncode == 0
