"""The template: a guest that was booted once, with a shell whose Windows is up, and then kept.

A pod's microVM begins with its memory and its devices as they were at that moment. The template is
made for one base, one kit, one set of winpod's programs and one kind of accelerator, and has a name
of all of these. It is made in a directory whose name begins with a dot, and renamed when it is
whole.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
import os
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from winpod.compute.agent import Agent, Program
from winpod.compute.errors import KitFailed, MachineFailed, MachineGone
from winpod.compute.hypervisor.accelerator import Accelerator, find_accelerator
from winpod.compute.hypervisor.arguments import CONSOLE, CONTROL, WARM, Machine, qemu_arguments
from winpod.compute.hypervisor.guest import Guest
from winpod.compute.hypervisor.guest_image import initial_archive, make_base_disk
from winpod.compute.hypervisor.guest_shells import WARM_SHELL, boot_shell, link_shell
from winpod.compute.hypervisor.kit import Kit, find_kit
from winpod.compute.hypervisor.qmp import Qmp
from winpod.compute.machine import missing_programs
from winpod.compute.native import WAGENT, WGUEST, native_program
from winpod.images.base import Base
from winpod.images.store_lock import FileLock
from winpod.windows.users import ADMINISTRATOR

BOOT_SECONDS = 240.0
_BUILDING = ".building-"
_REVISION = 2
_NEEDED = {
    "conmon": "conmon",
    "ip": "iproute2",
    "tc": "iproute2",
    "mkfs.ext4": "e2fsprogs",
    "mount": "mount",
    "setpriv": "util-linux",
}
"""What a pod's microVM needs besides the kit."""
_MOST_PROCESSORS = 16
_SHOWN = 500
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Template:
    path: Path
    kit: Kit
    accelerator: Accelerator

    @property
    def memory(self) -> Path:
        return self.path / "memory"

    @property
    def devices(self) -> Path:
        return self.path / "devices"

    def machine(self, memory: Path) -> Machine:
        return Machine(
            memory,
            self.kit.kernel,
            self.path / "initial",
            self.path / "base.erofs",
            self.accelerator,
            processors(),
        )


class Templates:
    """The template for pods to come, made when the first of them asks for it."""

    def __init__(self, root: Path, base: Base, allow_emulation: bool) -> None:
        self._root = root
        self._base = base
        self.found = find_accelerator(allow_emulation=allow_emulation)
        self._turn = asyncio.Lock()
        self._made: Template | None = None

    def trouble(self) -> str:
        if self.found.trouble:
            return self.found.trouble
        if find_kit(self._root) is None:
            return "there is no hypervisor kit: winpod base build --with-hypervisor."
        return missing_programs(_NEEDED)

    def is_made(self) -> bool:
        """Whether a pod is cloned at once, and need not wait for a boot."""
        kit = find_kit(self._root)
        accelerator = self.found.accelerator
        return kit is not None and place_of(self._root, self._base, kit, accelerator).exists()

    async def get(self) -> Template:
        async with self._turn:
            kit = find_kit(self._root)
            if kit is None:
                raise KitFailed("there is no kit")
            if self._made is None or self._made.kit != kit or not self._made.path.exists():
                accelerator = self.found.accelerator
                self._made = await make_template(self._root, self._base, kit, accelerator)
            return self._made


def processors() -> int:
    """As many as a guest can have: those of the machine; all but the usual are off at first."""
    return min(len(os.sched_getaffinity(0)), _MOST_PROCESSORS)


def template_name(base: Base, kit: Kit, accelerator: Accelerator) -> str:
    programs = [native_program(name).read_bytes() for name in (WGUEST, WAGENT)]
    digests = [hashlib.sha256(program).hexdigest() for program in programs]
    anywhere = Path()
    machine = Machine(anywhere, anywhere, anywhere, anywhere, accelerator, processors())
    words = qemu_arguments(machine, waits=False)
    decisive = [_REVISION, base.id, kit.id, accelerator, *words, *digests]
    return hashlib.sha256(json.dumps(decisive).encode()).hexdigest()


def place_of(root: Path, base: Base, kit: Kit, accelerator: Accelerator) -> Path:
    return root / "templates" / template_name(base, kit, accelerator)


async def make_template(root: Path, base: Base, kit: Kit, accelerator: Accelerator) -> Template:
    """The one that is there, else made, which takes as long as a boot."""
    final = Template(place_of(root, base, kit, accelerator), kit, accelerator)
    folder = final.path.parent
    folder.mkdir(parents=True, exist_ok=True)
    lock = await asyncio.to_thread(FileLock.take, folder / ".lock")
    try:
        if not final.path.exists():
            for left in folder.glob(f"{_BUILDING}*"):
                await asyncio.to_thread(shutil.rmtree, left)
            await _make(folder, base, final)
            await asyncio.to_thread(_remove_others, final.path)
    finally:
        lock.release()
    return final


def _remove_others(path: Path) -> None:
    """Nobody is cloned from them any more; machines that were have their files open."""
    for other in path.parent.iterdir():
        if other.name[0] != "." and other != path:
            shutil.rmtree(other)


async def _make(folder: Path, base: Base, final: Template) -> None:
    work = Path(tempfile.mkdtemp(prefix=_BUILDING, dir=folder))
    made = Template(work, final.kit, final.accelerator)
    try:
        await asyncio.to_thread((work / "initial").write_bytes, initial_archive(made.kit, base))
        await asyncio.to_thread(make_base_disk, made.kit, base, work / "base.erofs")
        await _boot_and_keep(made, with_32bit=base.with_32bit)
        await asyncio.to_thread(work.rename, final.path)
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise


async def _boot_and_keep(template: Template, *, with_32bit: bool) -> None:
    try:
        async with booted(template, template.path) as guest:
            await begin_shell(guest, with_32bit=with_32bit)
            await _warm_up(template.path)
            guest.close()
            await _keep(template)
    except MachineFailed:
        raise
    except Exception as error:
        said = f"{error} {_last_words(template.path)}".rstrip(". ")
        raise MachineFailed(f"it could not be booted: {said}") from error


@asynccontextmanager
async def booted(template: Template, folder: Path) -> AsyncIterator[Guest]:
    """A guest that is up, and has nothing in it yet; it ends with the context, or this process."""
    machine = template.machine(folder / "memory")
    with (folder / "qemu.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *("setpriv", "--pdeathsig", "KILL", "--"),
            *template.kit.qemu(*qemu_arguments(machine, waits=False)),
            cwd=folder,
            stdout=log,
            stderr=log,
        )
    guest = Guest(folder / CONTROL)
    try:
        await _until_up(guest, process, folder)
        yield guest
    finally:
        guest.close()
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        for name in ("qmp", CONTROL, WARM, "agent.sock"):
            (folder / name).unlink(missing_ok=True)


async def _until_up(guest: Guest, process: asyncio.subprocess.Process, folder: Path) -> None:
    try:
        await guest.until_up(BOOT_SECONDS, lambda: process.returncode is None)
    except MachineGone:
        if process.returncode is None:
            raise
        said = _last_words(folder) or "it said nothing"
        raise MachineFailed(f"QEMU ended with {process.returncode}: {said}") from None


def _last_words(folder: Path) -> str:
    """Of QEMU, else of the guest's kernel."""
    logs = (folder / name for name in ("qemu.log", CONSOLE))
    said = (log.read_text(errors="replace").strip() for log in logs if log.exists())
    return next(filter(None, said), "")[-_SHOWN:].strip()


async def begin_shell(guest: Guest, *, with_32bit: bool) -> None:
    await guest.ask("mount", "/dev/vda", "/base", "erofs", "1", "")
    await guest.ask("write", "/sys/fs/cgroup/cgroup.subtree_control", "+memory +pids +cpu +io")
    await boot_shell(guest, WARM_SHELL, WARM, ADMINISTRATOR, with_32bit=with_32bit)


async def _warm_up(folder: Path) -> None:
    """Programs that were started once start faster, in every clone."""
    link = await link_shell(folder, WARM, folder / "agent.sock")
    try:
        async with asyncio.timeout(BOOT_SECONDS):
            agent = Agent(folder / "agent.sock")
            await agent.ping()
            for _ in range(2):
                await agent.run(Program("cmd /c ver"))
    finally:
        with contextlib.suppress(ProcessLookupError):
            link.kill()
        await link.wait()


async def _keep(template: Template) -> None:
    async with Qmp(template.path / "qmp") as qmp:
        await qmp.do("stop")
        shared = [{"capability": "x-ignore-shared", "state": True}]
        await qmp.do("migrate-set-capabilities", capabilities=shared)
        await qmp.do("migrate", uri=f"file:{template.devices}")
        while (status := (await qmp.do("query-migrate"))["status"]) != "completed":
            if status == "failed":
                raise MachineFailed("it could not be kept")
            await asyncio.sleep(0.02)
    os.sync()
