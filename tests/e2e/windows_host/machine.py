"""Machine of a Windows host: a disk, and a container that boots from it.

All mounts are in the container's mount namespace and end with it; the disk is an image file that
remains when the machine is off.
"""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.e2e.windows_host import programs

from winpod.images.base.build_container import CONTROL_GROUPS, tmpfs_mount, with_parent_death_signal
from winpod.images.base.builder import Base, prepare_prefix
from winpod.windows.builds import Build

HERE = Path(__file__).parent
USER = "Administrator"
PORT = 2222
PROCESSES = 512
MEMORY = 3 << 30
DISK = 3 << 30
ENVIRONMENT = {
    "PATH": "/usr/lib/wine:/usr/bin:/usr/sbin",
    "HOME": "/root",
    "WINEPREFIX": "/prefix",
    "WINEDEBUG": "-all",
    "WINEDLLOVERRIDES": "winemenubuilder.exe=d;sc.exe=n",
    "LANG": "C.UTF-8",
}
IN_SYSTEM32 = (
    "boot",
    "certutil",
    "dism",
    "hold",
    "icacls",
    "powershell",
    "sc",
    "shell",
    "shutdown",
)
_CAPABILITIES = (
    "SYS_CHROOT",
    "SYS_ADMIN",
    "SETUID",
    "SETGID",
    "KILL",
    "NET_BIND_SERVICE",
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
)
_GROUP = "winpod-host-"
_DEVICES = ("null", "zero", "full", "random", "urandom")
AUTHORIZED_KEYS = "ProgramData/ssh/administrators_authorized_keys"
SSHD = {
    "HostKey": "/etc/ssh/host_key",
    "AuthorizedKeysFile": f"/windows/prefix/drive_c/{AUTHORIZED_KEYS}",
    "PermitRootLogin": "prohibit-password",
    "PasswordAuthentication": "no",
    "KbdInteractiveAuthentication": "no",
    "StrictModes": "no",
    "UsePAM": "no",
    "UseDNS": "no",
    "MaxSessions": "100",
    "PidFile": "none",
    "Subsystem": "sftp sftp",
}


class Machine:
    """Machine that can be switched on and off; all its files are in `folder`."""

    def __init__(
        self, folder: Path, base: Base, build: Build, address: str, name: str, keys: str
    ) -> None:
        self.folder = folder
        self.address = address
        self.name = name
        self.container = f"{_GROUP}{os.getpid()}-{address}"
        self._base = base
        self._process: subprocess.Popen[bytes] | None = None
        _sweep_groups()
        self._make_disk(build, keys)
        self._make_root()

    @property
    def is_on(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def root(self) -> Path:
        """Return the machine's file system as seen from outside, while it is on."""
        return Path(f"/proc/{self._init()}/root")

    def switch_on(self, features: Mapping[str, str], down_seconds: float) -> None:
        spec = self._spec(features, down_seconds)
        (self.folder / "config.json").write_text(json.dumps(spec))
        mounted = self.folder / "disk"
        run = f'mount -o loop "{self.folder}/disk.img" "{mounted}" && exec runc --root'
        run += f' "{self.folder}/state" run --bundle "{self.folder}" {self.container}'
        with (self.folder / "console").open("ab") as console:
            self._process = subprocess.Popen(
                with_parent_death_signal(["sh", "-c", run]),
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=console,
                start_new_session=True,
            )

    def pull_the_plug(self) -> None:
        """Kill the machine at once; unwritten data is lost."""
        if self._process is None:
            return
        self._process.kill()
        self._process.wait()
        self._process = None
        self._remove_groups()
        shutil.rmtree(self.folder / "state", ignore_errors=True)

    def processes(self) -> list[int]:
        """Return its processes by their ids on this machine."""
        groups = [*CONTROL_GROUPS.glob(f"*/{self.container}/cgroup.procs")]
        groups += [*CONTROL_GROUPS.glob(f"{self.container}/cgroup.procs")]
        return sorted({int(line) for group in groups for line in group.read_text().split()})

    def command_lines(self) -> dict[int, str]:
        """Return the command lines of its processes, including Windows programs."""
        found = {}
        for process in self.processes():
            with suppress(OSError):
                line = Path(f"/proc/{process}/cmdline").read_bytes()
                found[process] = line.decode(errors="replace").replace("\0", " ").strip()
        return found

    def _init(self) -> int:
        """Return the id of process 1 of the container on this machine."""
        for process in self.processes():
            with suppress(OSError):
                status = Path(f"/proc/{process}/status").read_text()
                numbers = next(line for line in status.splitlines() if line.startswith("NSpid:"))
                if numbers.split()[-1] == "1":
                    return process
        raise ProcessLookupError(f"the machine {self.name} is off")

    def _remove_groups(self) -> None:
        deadline = time.monotonic() + 60
        for group in [CONTROL_GROUPS, *CONTROL_GROUPS.glob("*/")]:
            place = group / self.container
            while place.is_dir():
                try:
                    place.rmdir()
                except OSError:
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(0.02)

    def _make_disk(self, build: Build, keys: str) -> None:
        content = self.folder / "content"
        for name in ("upper", "work"):
            (content / name).mkdir(parents=True)
        prepare_prefix(self._base, build, [], content / "prefix")
        (content / "prefix/next-hostname").write_text(f"{self.name}\n")
        allowed = content / "upper" / AUTHORIZED_KEYS
        allowed.parent.mkdir(parents=True)
        allowed.write_text(keys)
        image = self.folder / "disk.img"
        with image.open("wb") as file:
            file.truncate(DISK)
        make = ["mkfs.ext4", "-q", "-m", "0", "-d", str(content), str(image)]
        subprocess.run(make, check=True, stdout=subprocess.DEVNULL)
        shutil.rmtree(content)
        (self.folder / "disk").mkdir()
        system32 = self.folder / "stand-ins/windows/system32"
        system32.mkdir(parents=True)
        for name in IN_SYSTEM32:
            shutil.copy(programs.stand_in(name), system32)
        shutil.copy(programs.sftp_server(), system32)

    def _make_root(self) -> None:
        """Create a Debian root for sshd, with Wine's Debian in a subdirectory."""
        root = self.folder / "root"
        for name in ("etc/ssh", "usr", "run", "tmp", "proc", "dev", "windows"):
            (root / name).mkdir(parents=True)
        for name in ("bin", "sbin", "lib", "lib64"):
            (root / name).symlink_to(f"usr/{name}")
        for name in ("boot.sh", "shell.sh"):
            shutil.copy(HERE / name, root)
        (root / "etc/passwd").write_text(
            f"{USER}:*:0:0::/:/shell.sh\nsshd:*:100:65534::/run/sshd:/usr/sbin/nologin\n"
        )
        exports = (f"export {name}='{value}'\n" for name, value in ENVIRONMENT.items())
        (root / "etc/windows-environment").write_text("".join(exports))
        settings = {"ListenAddress": f"{self.address}:{PORT}", **SSHD}
        lines = (f"{name} {value}\n" for name, value in settings.items())
        (root / "etc/ssh/sshd_config").write_text("".join(lines))
        self.make_host_key()

    def make_host_key(self) -> None:
        key = self.folder / "root/etc/ssh/host_key"
        for one in (key, key.with_suffix(".pub")):
            one.unlink(missing_ok=True)
        make_key(key)

    def _spec(self, features: Mapping[str, str], down_seconds: float) -> dict[str, Any]:
        variables = {
            "PATH": "/usr/bin:/usr/sbin",
            "DOWN_SECONDS": str(down_seconds),
            "FEATURES": ";".join(f"{name}={state}" for name, state in features.items()),
        }
        capabilities = [f"CAP_{name}" for name in _CAPABILITIES]
        return {
            "ociVersion": "1.0.2",
            "hostname": self.name,
            "process": {
                "user": {"uid": 0, "gid": 0},
                "args": ["/bin/bash", "/boot.sh"],
                "cwd": "/",
                "env": [f"{name}={value}" for name, value in variables.items()],
                "capabilities": dict.fromkeys(("bounding", "effective", "permitted"), capabilities),
            },
            "root": {"path": str(self.folder / "root"), "readonly": True},
            "mounts": self._mounts(),
            "linux": {
                "namespaces": [{"type": kind} for kind in ("pid", "ipc", "uts", "mount")],
                "cgroupsPath": f"/{self.container}",
                "resources": {
                    "pids": {"limit": PROCESSES},
                    "memory": {"limit": MEMORY, "swap": MEMORY},
                },
            },
        }

    def _mounts(self) -> list[dict[str, Any]]:
        disk = self.folder / "disk"
        lower = f"{self.folder / 'stand-ins'}:{self._base.drive_c}"
        overlay = [f"lowerdir={lower}", f"upperdir={disk / 'upper'}", f"workdir={disk / 'work'}"]
        temporary = ("nosuid", "nodev", "mode=1777", "size=256m")
        return [
            _mount("/proc", "proc"),
            tmpfs_mount("/dev", "nosuid", "mode=755", "size=64k"),
            *(tmpfs_mount(place, *temporary) for place in ("/run", "/tmp")),
            _bind("/usr", Path("/usr"), "ro"),
            _bind("/windows", self._base.rootfs.resolve(), "ro"),
            _mount("/windows/proc", "proc"),
            tmpfs_mount("/windows/dev", "nosuid", "mode=755", "size=64k"),
            *(_bind(f"/windows/dev/{name}", Path("/dev", name)) for name in _DEVICES),
            *(tmpfs_mount(f"/windows/{name}", *temporary) for name in ("dev/shm", "tmp", "root")),
            _bind("/windows/prefix", disk / "prefix"),
            _mount("/windows/prefix/drive_c", "overlay", *overlay),
        ]


def _sweep_groups() -> None:
    """Remove cgroups of hosts whose test process was killed; nothing else of them remains."""
    for group in [*CONTROL_GROUPS.glob(f"*/{_GROUP}*"), *CONTROL_GROUPS.glob(f"{_GROUP}*")]:
        owner = group.name.removeprefix(_GROUP).partition("-")[0]
        if not Path("/proc", owner).exists():
            with suppress(OSError):
                group.rmdir()


def make_key(path: Path) -> Path:
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(path)]
    subprocess.run(command, check=True)
    return path


def _mount(destination: str, kind: str, *options: str) -> dict[str, Any]:
    return {"destination": destination, "type": kind, "source": kind, "options": list(options)}


def _bind(destination: str, source: Path, *options: str) -> dict[str, Any]:
    return {
        "destination": destination,
        "type": "bind",
        "source": str(source),
        "options": ["rbind", *options],
    }
