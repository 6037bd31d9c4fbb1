"""Guest under QEMU's emulation, and the channel for the reports of its session.

The session writes JSON lines to a virtio serial port that is QEMU's standard output, and reads
answers from its standard input. The serial console goes to a file.
"""

import json
import os
import queue
import shutil
import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self

from tests.fresh_machine.guests import Guest
from winpod.compute.hypervisor.assets import HypervisorAssets

PORT = "winpod.session"
_MEMORY_MIB = 3072
_CPUS = 2
_CONSOLE_LINES = 60
_COMMAND_LINE = (
    "root=/dev/vda rw console=ttyS0 mitigations=off loglevel=4 panic=-1 fsck.mode=skip "
    "systemd.show_status=0 cryptomgr.notests"
)


class Stalled(Exception):
    """The guest did not report in time."""


class Ended(Exception):
    """QEMU has exited."""


class Machine:
    """Guest; leaving the context stops exactly the QEMU process that entering it started."""

    def __init__(
        self,
        assets: HypervisorAssets,
        guest: Guest,
        disks: Sequence[Path],
        folder: Path,
        *,
        tap: str = "",
        prefix: Sequence[str] = (),
    ) -> None:
        self.console = folder / "console.log"
        self._errors = folder / "qemu.log"
        network = ["-nic", "none"]
        if tap:
            network = ["-nic", f"tap,ifname={tap},script=no,downscript=no,model=virtio-net-pci"]
        drives = [word for disk in (guest.disk, *disks) for word in ("-drive", _drive(disk))]
        self._command = [
            *prefix,
            *assets.qemu(
                *("-no-user-config", "-nodefaults", "-display", "none", "-no-reboot"),
                *("-M", "q35,usb=off,smm=off,vmport=off,hpet=off"),
                *("-accel", "tcg,thread=multi,tb-size=1024", "-cpu", "max,la57=off"),
                *("-smp", str(_CPUS), "-m", str(_MEMORY_MIB)),
                *("-kernel", str(guest.kernel), "-initrd", str(guest.initrd)),
                *("-append", _COMMAND_LINE),
                *("-serial", f"file:{self.console}", *drives, *network),
                *("-chardev", "stdio,id=session,signal=off"),
                *("-device", "virtio-serial-pci"),
                *("-device", f"virtserialport,chardev=session,name={PORT}"),
            ),
        ]
        self._environment = {**os.environ, "TMPDIR": str(folder)}
        self._lines: queue.Queue[bytes | None] = queue.Queue()

    running: ClassVar[set["Machine"]] = set()
    """Machines whose context is entered, in any thread."""

    def __enter__(self) -> Self:
        setpriv = shutil.which("setpriv")
        assert setpriv, "setpriv is missing: apt-get install util-linux"
        with self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                [setpriv, "--pdeathsig", "KILL", *self._command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=self._environment,
                start_new_session=True,
            )
        Machine.running.add(self)
        threading.Thread(target=self._read, daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()
        Machine.running.discard(self)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def receive(self, seconds: float) -> dict[str, Any]:
        """Return the next report of the session."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                line = self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise Stalled(f"no report within {seconds:.0f} s") from None
            if line is None:
                raise Ended(self._end())
            try:
                return dict(json.loads(line))
            except ValueError:
                continue

    def send(self, message: dict[str, Any]) -> None:
        assert self._process.stdin
        self._process.stdin.write(json.dumps(message).encode() + b"\n")
        self._process.stdin.flush()

    def console_tail(self) -> str:
        try:
            text = self.console.read_bytes().decode(errors="replace")
        except OSError:
            return ""
        return "\n".join(text.replace("\r", "").splitlines()[-_CONSOLE_LINES:])

    def _read(self) -> None:
        assert self._process.stdout
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def _end(self) -> str:
        code = self._process.wait()
        return f"QEMU exited {code}: {self._errors.read_text(errors='replace')[-2000:]}"


def _drive(disk: Path) -> str:
    return f"file={disk},if=virtio,format=raw,cache=unsafe,snapshot=on"
