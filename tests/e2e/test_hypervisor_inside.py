"""What a container can do to its guest and to its pod, tried from inside, and what it leaves there.

docs/security.md says it in words. What guests are asked directly, they are asked while no runtime
has the only connection to them.
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
    """Of two containers, the second in a shell that was booted for it."""

    winpod: Winpod
    image: api.ImageSpec
    folder: Path
    sandbox: str
    administrator: str
    user: str

    @property
    def machine(self) -> Path:
        return self.winpod.root / f"runtime/sandboxes/{self.sandbox}/vm"

    def begin(self, name: str, user: str = "") -> str:
        context = api.WindowsContainerSecurityContext(run_as_username=user)
        data = api.Mount(host_path=f"{self.folder}/data", container_path="C:\\data")
        one = api.Mount(host_path=f"{self.folder}/one.txt", container_path="C:\\one.txt")
        return begin(
            *(self.winpod, self.image, self.sandbox, name, ["cmd", "/c", WAITS]),
            windows=api.WindowsContainerConfig(security_context=context),
            mounts=[data, one],
        )

    def tried(self, container: str, *words: str) -> Tried:
        result = self.folder / "data/probe.txt"
        result.unlink(missing_ok=True)
        self.winpod("exec", container, "start", "/unix", "/prefix/drive_c/data/probe", *words)
        return Tried(eventually(lambda: read(result), lambda text: text.endswith("done 0\n")))

    def answers(self, *questions: Sequence[str]) -> list[bytes]:
        return ask(self.winpod, self.machine, *questions)


def ask(winpod: Winpod, machine: Path, *questions: Sequence[str]) -> list[bytes]:
    winpod.end_runtime()

    async def each() -> list[bytes]:
        guest = GuestClient(machine / "control")
        try:
            return [await guest.request(*words) for words in questions]
        finally:
            guest.close()

    return asyncio.run(each())


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


def test_the_guests_kernel_refuses_what_no_windows_program_needs(pod: Pod) -> None:
    for container in (pod.administrator, pod.user):
        found = pod.tried(container).errors
        assert (found["capabilities"], found["no-new-privileges"], found["seccomp"]) == (0, 1, 2)
        assert {name: found[name] for name in NOT_PERMITTED} == dict.fromkeys(
            NOT_PERMITTED, errno.EPERM
        )
        assert found["clone3"] == errno.ENOSYS


def test_a_container_has_no_device_of_its_guest(pod: Pod) -> None:
    reached = ("/dev/vda", "/dev/ttyS0", "/dev/mem", "/dev/kmsg")
    for container in (pod.administrator, pod.user):
        found = pod.tried(container, *(f"r{path}" for path in reached))
        assert found.named("device") == DEVICES
        assert {found.errors[f"read:{path}"] for path in reached} == {errno.ENOENT}


def test_a_container_changes_nothing_of_its_guest(pod: Pod) -> None:
    kernel = ("/proc/sysrq-trigger", "/proc/sys/kernel/core_pattern", "/proc/sys/vm/drop_caches")
    places = (*kernel, "/winpod/wagent.exe", "/winpod/new", "/usr/lib/new", "/new")
    found = pod.tried(pod.administrator, *(f"w{path}" for path in places))
    assert {found.errors[f"write:{path}"] for path in places} == {errno.EROFS}
    assert found.named("root").isdisjoint({"drives", "volumes", "registry", "modules", "init"})
    told = pod.winpod("exec", pod.administrator, "cmd", "/c", r"type \\?\unix\proc\1\mountinfo")
    mounted = {row.split()[4]: row.split()[5] for row in told.stdout.splitlines()}
    assert all(mounted[path].startswith("ro") for path in READONLY_PATHS)
    assert {"/proc/kcore", "/proc/keys", "/proc/timer_list", "/proc/acpi"} <= {*mounted} & {
        *MASKED_PATHS
    }
    for place, options in mounted.items():
        assert "nosuid" in options or place == "/", place


def test_containers_that_go_leave_nothing_in_their_guest_nor_on_the_machine(pod: Pod) -> None:
    groups = ("read", "/sys/fs/cgroup/cgroup.stat")
    mounted = ("read", "/proc/1/mountinfo")
    before = pod.answers(groups, mounted)
    assert pod.winpod("ps").returncode == 0
    gone = [pod.begin(f"one-of-{number}") for number in range(MANY)]
    for container in gone:
        call(pod.winpod, api.RemoveContainerRequest(container_id=container))
    eventually(lambda: _left(pod, gone), not_)
    after = pod.answers(groups, mounted)
    assert _descendants(after[0]) == _descendants(before[0])
    assert len(after[1].splitlines()) == len(before[1].splitlines()), after[1].decode()
    for container in gone:
        assert container not in after[1].decode()


def _descendants(stat: bytes) -> bytes:
    return next(row for row in stat.splitlines() if row.startswith(b"nr_descendants"))


def _left(pod: Pod, containers: Sequence[str]) -> list[str]:
    """Of containers, on the machine: their files, mounts, and disks that somebody still has."""
    loops = subprocess.run(["losetup", "-l", "-n", "-O", "BACK-FILE"], capture_output=True)
    rows = [*loops.stdout.decode().splitlines(), *Path("/proc/mounts").read_text().splitlines()]
    rows += map(str, pod.machine.glob("*/*"))
    return [row for row in rows if any(container in row for container in containers)]


def test_of_what_a_guest_says_on_its_console_only_the_last_is_kept(pod: Pod) -> None:
    pod.answers(*[("write", "/dev/ttyS0", f"{number}:{'x' * 4000}\n") for number in range(40)])

    async def last() -> str:
        async with QmpClient(pod.machine / "qmp") as qmp:
            return str(await qmp.execute("ringbuf-read", device=CONSOLE, size=1 << 17))

    said = asyncio.run(last())
    assert len(said) <= 1 << 16
    assert "39:x" in said
    files = [file for file in pod.machine.iterdir() if file.is_file()]
    assert files
    assert not any("xxxx" in read(file) for file in files)
    assert not (pod.machine / CONSOLE).exists()


def test_clones_have_numbers_addresses_and_a_clock_of_their_own(pod: Pod) -> None:
    options = ("-d", "--name", "clone", "--isolation", "hypervisor")
    name = f"oci:{pod.winpod.home}/images:old"
    began = pod.winpod("run", *options, name, "cmd", "/c", WAITS)
    assert began.returncode == 0, began.stderr
    all_of_them = list(pod.winpod.root.glob("runtime/sandboxes/*/vm"))
    assert len(all_of_them) == 2
    random = ("read", "/dev/urandom", "32")
    address = ("read", "/sys/class/net/eth0/address")
    clock = (("read", "/proc/stat"), ("read", "/proc/uptime"))
    numbers, addresses = set(), set()
    for machine in all_of_them:
        before = time.time()
        number, mac, stat, uptime = ask(pod.winpod, machine, random, address, *clock)
        began_at = next(row for row in stat.decode().splitlines() if row.startswith("btime"))
        now = int(began_at.split()[1]) + float(uptime.split()[0])
        assert before - 2 <= now <= time.time() + 2
        numbers.add(number)
        addresses.add(mac)
    assert len(numbers) == len(addresses) == 2
    assert pod.winpod("rm", "-f", "clone").returncode == 0
