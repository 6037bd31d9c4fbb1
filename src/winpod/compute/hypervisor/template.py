"""The template: a guest that was booted once, with a silo whose Windows is up, and saved.

A pod's microVM starts with the template's memory and devices. A template is specific to the base,
the hypervisor assets, winpod's native programs and the accelerator, and its name is a digest of
these.

A guest boots from an initramfs with its first process, and the Wine base as an EROFS disk. Both are
built on the host.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from winpod.artifacts import ArtifactDirectory, artifact_id
from winpod.compute.agent.client import AgentClient, Program
from winpod.compute.agent.protocol import GuestCommand
from winpod.compute.errors import HypervisorAssetsFailed, MicroVmFailed, MicroVmGone
from winpod.compute.hypervisor.accelerator import Accelerator, find_accelerator
from winpod.compute.hypervisor.assets import HypervisorAssets, find_assets, run_program
from winpod.compute.hypervisor.guest_client import GuestClient
from winpod.compute.hypervisor.guest_silo import WARM_SILO, start_agent_link, start_guest_silo
from winpod.compute.hypervisor.qemu import (
    CONSOLE,
    CONTROL,
    WARM,
    QemuConfig,
    QmpClient,
    qemu_arguments,
)
from winpod.compute.native import WAGENT, WGUEST, native_program
from winpod.compute.preflight import missing_programs
from winpod.images.base.builder import UPDATE_TIMESTAMP, Base
from winpod.images.winreg.hives import compose_registry
from winpod.windows.builds import DEFAULT_HOST
from winpod.windows.users import ADMINISTRATOR

_FOLDER, _PROGRAM, _FILE, _DEVICE = 0o040755, 0o100755, 0o100644, 0o020600
_CONSOLE = (5, 1)


def build_initramfs(assets: HypervisorAssets, base: Base) -> bytes:
    """Return the initramfs in cpio's newc format."""
    return b"".join(_entries(assets, base))


def _entries(assets: HypervisorAssets, base: Base) -> Iterator[bytes]:
    yield _entry("dev", _FOLDER)
    yield _entry("dev/console", _DEVICE, device=_CONSOLE)
    yield _entry("init", _PROGRAM, native_program(WGUEST).read_bytes())
    for folder in ("modules", "winpod", "registry", "base", "drives", "volumes"):
        yield _entry(folder, _FOLDER)
    for number, module in enumerate(assets.modules):
        yield _entry(f"modules/{number:02}-{module.name}", _FILE, module.read_bytes())
    yield _entry(f"winpod/{WAGENT}", _PROGRAM, native_program(WAGENT).read_bytes())
    registry = compose_registry(base.prefix, DEFAULT_HOST, ()).files()
    for name, content in {**registry, UPDATE_TIMESTAMP: b"disable\n"}.items():
        yield _entry(f"registry/{name}", _FILE, content)
    yield _entry("TRAILER!!!", 0)


def _entry(name: str, mode: int, content: bytes = b"", device: tuple[int, int] = (0, 0)) -> bytes:
    text = name.encode() + b"\0"
    numbers = (0, mode, 0, 0, 1, 0, len(content), 0, 0, *device, len(text), 0)
    head = b"070701" + b"".join(b"%08x" % number for number in numbers) + text
    return _padded(head) + _padded(content)


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 4)


def build_base_disk(assets: HypervisorAssets, base: Base, target: Path) -> None:
    run_program(assets.mkfs_erofs("--quiet", str(target), str(base.path)))


BOOT_SECONDS = 240.0
_REVISION = 2
_NEEDED_PROGRAMS = {
    "conmon": "conmon",
    "ip": "iproute2",
    "tc": "iproute2",
    "mkfs.ext4": "e2fsprogs",
    "mount": "mount",
    "setpriv": "util-linux",
}
"""Programs that a pod's microVM needs in addition to the assets."""
_MAX_PROCESSORS = 16
_SHOWN_OUTPUT = 500
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Template:
    path: Path
    assets: HypervisorAssets
    accelerator: Accelerator

    @property
    def memory(self) -> Path:
        return self.path / "memory"

    @property
    def devices(self) -> Path:
        return self.path / "devices"

    def machine(self, memory: Path) -> QemuConfig:
        return QemuConfig(
            memory,
            self.assets.kernel,
            self.path / "initial",
            self.path / "base.erofs",
            self.accelerator,
            max_cpus(),
        )


class Templates:
    """The current template, built when the first pod needs it."""

    def __init__(self, root: Path, base: Base, allow_emulation: bool) -> None:
        self._root = root
        self._base = base
        self.found = find_accelerator(allow_emulation=allow_emulation)
        self._lock = asyncio.Lock()
        self._template: Template | None = None

    def unavailable_reason(self) -> str:
        if self.found.unavailable_reason:
            return self.found.unavailable_reason
        if find_assets(self._root) is None:
            return "the hypervisor assets are missing: winpod base build --with-hypervisor."
        return missing_programs(_NEEDED_PROGRAMS)

    def exists(self) -> bool:
        """Report whether a pod can be cloned without waiting for a boot."""
        assets = find_assets(self._root)
        accelerator = self.found.accelerator
        return (
            assets is not None
            and template_path(self._root, self._base, assets, accelerator).exists()
        )

    async def get(self) -> Template:
        async with self._lock:
            assets = find_assets(self._root)
            if assets is None:
                raise HypervisorAssetsFailed("the hypervisor assets are missing")
            if (
                self._template is None
                or self._template.assets != assets
                or not self._template.path.exists()
            ):
                accelerator = self.found.accelerator
                self._template = await ensure_template(self._root, self._base, assets, accelerator)
            return self._template


def max_cpus() -> int:
    """Return the most processors that a guest can have; all but the default start offline."""
    return min(len(os.sched_getaffinity(0)), _MAX_PROCESSORS)


def template_name(base: Base, assets: HypervisorAssets, accelerator: Accelerator) -> str:
    programs = [native_program(name).read_bytes() for name in (WGUEST, WAGENT)]
    digests = [hashlib.sha256(program).hexdigest() for program in programs]
    unused = Path()
    machine = QemuConfig(unused, unused, unused, unused, accelerator, max_cpus())
    arguments = qemu_arguments(machine, is_clone=False)
    inputs = [_REVISION, base.id, assets.id, accelerator, *arguments, *digests]
    return artifact_id(inputs)


def template_path(
    root: Path, base: Base, assets: HypervisorAssets, accelerator: Accelerator
) -> Path:
    return root / "templates" / template_name(base, assets, accelerator)


async def ensure_template(
    root: Path, base: Base, assets: HypervisorAssets, accelerator: Accelerator
) -> Template:
    """Return the existing template, or build it, which takes as long as a boot."""
    final = Template(template_path(root, base, assets, accelerator), assets, accelerator)
    artifacts = ArtifactDirectory(final.path.parent, mode=0o700)
    with await artifacts.lock_async():
        if not final.path.exists():
            await asyncio.to_thread(artifacts.sweep)
            await _build(artifacts, base, final)
            # running microVMs have the files of outdated templates open
            await asyncio.to_thread(artifacts.keep_only, final.path)
    return final


async def _build(artifacts: ArtifactDirectory, base: Base, final: Template) -> None:
    with artifacts.building() as work:
        draft = Template(work, final.assets, final.accelerator)
        await asyncio.to_thread((work / "initial").write_bytes, build_initramfs(draft.assets, base))
        await asyncio.to_thread(build_base_disk, draft.assets, base, work / "base.erofs")
        await _boot_and_save(draft, with_32bit=base.with_32bit)
        await asyncio.to_thread(artifacts.save, work, final.path.name)


async def _boot_and_save(template: Template, *, with_32bit: bool) -> None:
    try:
        async with boot_guest(template, template.path) as guest:
            await start_template_silo(guest, with_32bit=with_32bit)
            await _warm_up(template.path)
            guest.close()
            await _save(template)
    except MicroVmFailed:
        raise
    except Exception as error:
        output = f"{error} {_last_output(template.path)}".rstrip(". ")
        raise MicroVmFailed(f"it could not be booted: {output}") from error


@asynccontextmanager
async def boot_guest(template: Template, folder: Path) -> AsyncIterator[GuestClient]:
    """Boot a guest without silos. It ends with the context, or with this process."""
    machine = template.machine(folder / "memory")
    with (folder / "qemu.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *("setpriv", "--pdeathsig", "KILL", "--"),
            *template.assets.qemu(*qemu_arguments(machine, is_clone=False)),
            cwd=folder,
            stdout=log,
            stderr=log,
        )
    guest = GuestClient(folder / CONTROL)
    try:
        await _wait_booted(guest, process, folder)
        yield guest
    finally:
        guest.close()
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        for name in ("qmp", CONTROL, WARM, "agent.sock"):
            (folder / name).unlink(missing_ok=True)


async def _wait_booted(
    guest: GuestClient, process: asyncio.subprocess.Process, folder: Path
) -> None:
    try:
        await guest.wait_ready(BOOT_SECONDS, lambda: process.returncode is None)
    except MicroVmGone:
        if process.returncode is None:
            raise
        output = _last_output(folder) or "no output"
        raise MicroVmFailed(f"QEMU ended with {process.returncode}: {output}") from None


def _last_output(folder: Path) -> str:
    """Return the end of QEMU's output, else of the guest's console."""
    logs = (folder / name for name in ("qemu.log", CONSOLE))
    output = (log.read_text(errors="replace").strip() for log in logs if log.exists())
    return next(filter(None, output), "")[-_SHOWN_OUTPUT:].strip()


async def start_template_silo(guest: GuestClient, *, with_32bit: bool) -> None:
    await guest.request(GuestCommand.MOUNT, "/dev/vda", "/base", "erofs", "1", "")
    await guest.request(
        GuestCommand.WRITE, "/sys/fs/cgroup/cgroup.subtree_control", "+memory +pids +cpu +io"
    )
    await start_guest_silo(guest, WARM_SILO, WARM, ADMINISTRATOR, with_32bit=with_32bit)


async def _warm_up(folder: Path) -> None:
    """Start programs once, which makes them start faster in every clone."""
    link = await start_agent_link(folder, WARM, folder / "agent.sock")
    try:
        async with asyncio.timeout(BOOT_SECONDS):
            agent = AgentClient(folder / "agent.sock")
            await agent.ping()
            for _ in range(2):
                await agent.run(Program("cmd /c ver"))
    finally:
        with contextlib.suppress(ProcessLookupError):
            link.kill()
        await link.wait()


async def _save(template: Template) -> None:
    async with QmpClient(template.path / "qmp") as qmp:
        await qmp.execute("stop")
        shared = [{"capability": "x-ignore-shared", "state": True}]
        await qmp.execute("migrate-set-capabilities", capabilities=shared)
        await qmp.execute("migrate", uri=f"file:{template.devices}")
        while (status := (await qmp.execute("query-migrate"))["status"]) != "completed":
            if status == "failed":
                raise MicroVmFailed("its state could not be saved")
            await asyncio.sleep(0.02)
