"""Isolation of containers from the host and from each other, probed from inside.

docs/security.md describes the guarantees; each of its statements names a test here.
"""

import asyncio
import contextlib
import errno
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio
from tests.support.e2e.attack_results import NOT_PERMITTED, Tried, read
from tests.support.e2e.runtime_process import RuntimeProcess
from tests.support.e2e.windows_programs import linux_program

from winpod.compute.silo import IDS_PER_SILO
from winpod.cri.proto import api_pb2 as api
from winpod.images.base.builder import Base

pytestmark = pytest.mark.asyncio(loop_scope="module")

OWN_PROCESS = Path("/proc/self")
TIMEOUT = 300


@dataclass(frozen=True)
class Pod:
    """A pod with three containers, and their processes and files on the host."""

    runtime: RuntimeProcess
    administrator: str
    user: str
    neighbour: str

    def silo_directory(self, container: str) -> Path:
        return self.runtime.folder_of(container) / "shell"

    def processes(self, container: str) -> list[Path]:
        """Return the processes of a container on the host."""
        texts = (text for text in self.runtime.processes() if f"{container}/shell/prefix" in text)
        return [Path("/proc") / text.split()[0] for text in texts]

    def init_process(self, container: str) -> Path:
        """Return the init process of a container."""
        return Path("/proc") / (self.silo_directory(container) / "shell.pid").read_text().strip()

    def statuses(self, container: str) -> list[dict[str, str]]:
        """Return the status of every process that still runs."""
        found = []
        for process in self.processes(container):
            with contextlib.suppress(OSError):
                found.append(status_of(process))
        return found

    async def probe(self, container: str, *arguments: str) -> Tried:
        result = self.runtime.data / "probe.txt"
        result.unlink(missing_ok=True)
        command = ["start", "/unix", "/prefix/drive_c/data/probe", *arguments]
        request = api.ExecSyncRequest(container_id=container, cmd=command, timeout=TIMEOUT)
        await self.runtime.call(request)
        deadline = time.monotonic() + TIMEOUT
        while not (text := read(result)).endswith("done 0\n"):
            assert time.monotonic() < deadline, f"the probe did not finish: {text}"
            await asyncio.sleep(0.05)
        return Tried(text)

    async def cmd(self, container: str, line: str) -> str:
        command = ["cmd", "/c", line]
        request = api.ExecSyncRequest(container_id=container, cmd=command, timeout=TIMEOUT)
        answer = await self.runtime.call(request)
        return str((answer.stdout + answer.stderr).decode())


def namespace(process: Path, kind: str) -> str:
    return str((process / "ns" / kind).readlink())


def status_of(process: Path) -> dict[str, str]:
    rows = (line.partition(":") for line in (process / "status").read_text().splitlines())
    return {name: value.strip() for name, _, value in rows}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pod(base: Base, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Pod]:
    async with RuntimeProcess.running(tmp_path_factory.mktemp("security"), base) as machine:
        (machine.data / "probe").write_bytes(linux_program("probe").read_bytes())
        (machine.data / "probe").chmod(0o755)
        machine.data.chmod(0o777)
        sandbox = await machine.run_pod()
        containers = []
        for name, user in (("administrator", ""), ("user", "ContainerUser"), ("neighbour", "")):
            context = api.WindowsContainerSecurityContext(run_as_username=user)
            windows = api.WindowsContainerConfig(security_context=context)
            containers.append(await machine.begin(sandbox, "sleep", name=name, windows=windows))
        yield Pod(machine, *containers)


async def test_processes_have_no_capabilities(pod: Pod) -> None:
    for container in (pod.administrator, pod.user):
        statuses = pod.statuses(container)
        assert len(statuses) > 4
        for status in statuses:
            sets = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")
            assert {int(status[name], 16) for name in sets} == {0}
            assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
        found = await pod.probe(container)
        assert found.errors["capabilities"] == 0
        assert found.errors["no-new-privileges"] == 1
    assert found.errors["root"] == errno.EPERM


async def test_privileged_system_calls_are_denied(pod: Pod) -> None:
    found = await pod.probe(pod.administrator)
    assert {name: found.errors[name] for name in NOT_PERMITTED} == dict.fromkeys(
        NOT_PERMITTED, errno.EPERM
    )
    assert found.errors["clone3"] == errno.ENOSYS


async def test_each_container_has_its_own_unprivileged_ids(
    pod: Pod,
) -> None:
    first_ids = {}
    for container in (pod.administrator, pod.user, pod.neighbour):
        process = pod.init_process(container)
        inside, outside, count = map(int, (process / "uid_map").read_text().split())
        assert (inside, count) == (0, IDS_PER_SILO)
        assert outside >= 1 << 30
        assert {int(uid) // IDS_PER_SILO for uid in status_of(process)["Uid"].split()} == {
            outside // IDS_PER_SILO
        }
        first_ids[container] = outside
    assert len(set(first_ids.values())) == len(first_ids)
    namespaces = {namespace(pod.init_process(c), "user") for c in first_ids}
    assert len(namespaces | {namespace(OWN_PROCESS, "user")}) == len(first_ids) + 1


async def test_base_and_agent_are_read_only(pod: Pod) -> None:
    paths = ("/usr/lib/new", "/etc/new", "/winpod/winit", "/winpod/new", "/new")
    found = await pod.probe(pod.administrator, *(f"w{path}" for path in paths))
    assert {found.errors[f"write:{path}"] for path in paths} <= {errno.EROFS, errno.EACCES}
    writable = []
    for row in (pod.init_process(pod.administrator) / "mountinfo").read_text().splitlines():
        path, options = row.split()[4:6]
        if "ro" not in options.split(","):
            writable.append(path)
        kernel_own = path == "/" or path.startswith(("/proc", "/dev/"))
        assert "nosuid" in options or kernel_own, row
    own = {"/prefix", "/prefix/drive_c", "/prefix/drive_c/data"}
    devices = {f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom", "tty")}
    allowed = {"/proc", "/dev", "/dev/shm", "/tmp", "/root", *own, *devices}
    assert {path for path in writable if not path.startswith("/proc/")} <= allowed


async def test_sensitive_proc_paths_are_masked(pod: Pod) -> None:
    masked = ("/proc/kcore", "/proc/keys", "/proc/timer_list", "/proc/sched_debug")
    readonly = ("/proc/sys/kernel/hostname", "/proc/sysrq-trigger", "/proc/sys/vm/drop_caches")
    arguments = (*(f"r{path}" for path in masked), *(f"w{path}" for path in readonly))
    found = await pod.probe(pod.administrator, *arguments)
    assert 0 not in {found.errors[f"write:{path}"] for path in readonly}
    process = pod.init_process(pod.administrator)
    mounted = {row.split()[4] for row in (process / "mountinfo").read_text().splitlines()}
    for path in masked:
        assert path in mounted or found.errors[f"read:{path}"], path


async def test_host_files_are_not_visible(
    pod: Pod,
) -> None:
    secret = pod.runtime.folder / "secret"
    secret.write_text("of the machine")
    found = await pod.probe(pod.administrator, f"r{secret}", f"r{pod.runtime.own}/state.db")
    assert found.errors[f"read:{secret}"] == errno.ENOENT
    assert found.errors[f"read:{pod.runtime.own}/state.db"] == errno.ENOENT
    assert found.named("root").isdisjoint({"home", "mnt", "media", "boot", "srv"})
    assert not any(
        name.startswith(("sd", "vd", "loop", "kvm", "mem")) for name in device_names(found)
    )
    answer = await pod.cmd(pod.administrator, "if exist Z:\\ (echo there) else (echo nowhere)")
    assert answer.strip() == "nowhere"


def device_names(found: Tried) -> set[str]:
    return found.named("device")


async def test_container_sees_only_its_own_processes(pod: Pod) -> None:
    before = pod.statuses(pod.administrator)
    found = await pod.probe(pod.administrator)
    after = pod.statuses(pod.administrator)
    own = {status["NSpid"].split()[-1] for status in (*before, *after)}
    visible = {name for name in found.named("process") if name.isdigit()}
    assert len(visible - own) <= 3  # the probe itself, and short-lived processes
    kinds = ("pid", "mnt", "ipc", "uts", "user")
    for kind in kinds:
        containers = (pod.administrator, pod.user, pod.neighbour)
        links = {namespace(pod.init_process(container), kind) for container in containers}
        assert len(links) == 3, kind
        assert namespace(OWN_PROCESS, kind) not in links


async def test_container_sees_no_files_of_other_containers(pod: Pod) -> None:
    await pod.cmd(pod.neighbour, "echo mine>C:\\mine.txt")
    assert "mine" in await pod.cmd(pod.neighbour, "type C:\\mine.txt")
    assert "mine" not in (await pod.cmd(pod.administrator, "type C:\\mine.txt")).split()
    for folder in ("disk/upper", "prefix"):
        mode = (pod.silo_directory(pod.neighbour) / folder).stat()
        assert mode.st_uid >= 1 << 30


async def test_agent_is_unreachable_for_programs(pod: Pod) -> None:
    found = await pod.probe(pod.administrator, "r/proc/1/mem", "r/proc/1/fd/3")
    assert not any("agent.sock" in name for name in found.sockets)
    assert found.errors["descriptor-of-init"] == errno.EPERM
    assert {found.errors[f"read:/proc/1/{name}"] for name in ("mem", "fd/3")} == {errno.EACCES}
    socket = pod.silo_directory(pod.administrator) / "run/agent.sock"
    assert socket.stat().st_mode & 0o077 == 0
    assert socket.stat().st_uid == 0


async def test_container_user_cannot_write_administrator_files(pod: Pod) -> None:
    paths = ("C:\\windows\\new", "C:\\hostile.exe", "C:\\Users\\ContainerAdministrator\\new")
    for path in paths:
        assert "enied" in await pod.cmd(pod.user, f"echo x>{path}"), path
    own = "C:\\Users\\ContainerUser\\own"
    assert "own" in await pod.cmd(pod.user, f"echo own>{own} & type {own}")
    found = await pod.probe(pod.user)
    assert found.errors["user"] > 0
