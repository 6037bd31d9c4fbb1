"""Windows host for tests: reached over SSH, with faults that tests can inject."""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from tests.e2e.windows_host import programs
from tests.e2e.windows_host.machine import PORT, USER, Machine, make_key

from winpod.images.base.builder import Base
from winpod.windows.builds import parse_build

SERVER_2019, SERVER_2022, SERVER_2025 = "10.0.17763", "10.0.20348", "10.0.26100"
FRESH = {"Containers": "Disabled", "Microsoft-Hyper-V": "Disabled"}
READY = {"Containers": "Enabled", "Microsoft-Hyper-V": "Disabled"}
DOCKERD = r"C:\Program Files\docker\dockerd.exe"
_TIMEOUT = 300.0
_BLOCK = 4096
_numbers = count(1)


@dataclass(frozen=True)
class Ran:
    code: int
    out: str


class WindowsHost:
    """Windows host; `key` is the private key that is authorized to log in as `user`."""

    user = USER
    port = PORT

    def __init__(self, machine: Machine, key: Path, features: Mapping[str, str]) -> None:
        self.machine = machine
        self.key = key
        self.address = machine.address
        self._features = features
        self.down_seconds = 0.5

    @property
    def drive(self) -> Path:
        """Return the path of drive C: on the machine, while the host is on."""
        return self.machine.root / "windows/prefix/drive_c"

    def path(self, path: str) -> Path:
        r"""Return the path of a file in `C:\\...` on the machine; the path is case-sensitive."""
        return self.drive / path.removeprefix("C:\\").replace("\\", "/")

    def run(self, command: str) -> Ran:
        """Run a command line in the user's shell; exit codes are truncated to 8 bits."""
        done = subprocess.run(
            [*self._ssh(), command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_TIMEOUT,
            check=False,
        )
        return Ran(done.returncode, done.stdout.decode(errors="replace").replace("\r\n", "\n"))

    def done(self, command: str) -> str:
        """Run a command line, assert that it succeeds, and return its output."""
        ran = self.run(command)
        assert ran.code == 0, f"{command}: {ran.code} {ran.out}"
        return ran.out

    def services(self, *names: str) -> dict[str, str]:
        """Return the states of services in the service manager, `absent` if one does not exist."""
        return {name: self._service(name) for name in names}

    def _service(self, name: str) -> str:
        text = self.run(f"sc query {name}").out
        if "FAILED 1060" in text:
            return "absent"
        line = next(line for line in text.splitlines() if "STATE" in line)
        return line.split()[-1].lower()

    def switch_on(self) -> None:
        self.machine.switch_on(self._features, self.down_seconds)

    def wait_until_up(self) -> None:
        until(self.answers, f"the host {self.address} answers by SSH")

    def answers(self) -> bool:
        if not self.machine.is_on:
            console = (self.machine.folder / "console").read_text(errors="replace")
            raise AssertionError(f"the host {self.address} went off: {console[-2000:]}")
        try:
            with socket.create_connection((self.address, PORT), 10) as connection:
                return connection.recv(4) == b"SSH-"
        except OSError:
            return False

    def reboot(self) -> None:
        before = self.booted()
        self.run("shutdown /r /t 0")
        until(lambda: self.booted() not in ("", before), f"{self.address} has booted")

    def booted(self) -> str:
        """Return the time of the last boot, empty while the host is down."""
        ran = self.run(r"reg query HKLM\SOFTWARE\Stand-in /v Booted")
        return ran.out.strip() if ran.code == 0 else ""

    def die(self) -> None:
        self.machine.pull_the_plug()

    def change_host_key(self) -> None:
        self.machine.make_host_key()
        for process, line in self.machine.command_lines().items():
            if "sshd" in line and "[listener]" in line:
                os.kill(process, signal.SIGHUP)
                return
        raise AssertionError("no sshd listens")

    @contextmanager
    def full_disk(self, leaving: int = 0) -> Iterator[None]:
        """Fill drive C: until only `leaving` bytes are free."""
        ballast = self.drive / "ballast"
        with ballast.open("wb", buffering=0) as file:
            while (free := self._free()) > leaving + _BLOCK:
                size = max(_BLOCK, min(free - leaving - _BLOCK, free // 2))
                os.posix_fallocate(file.fileno(), file.seek(0, os.SEEK_END), size)
        try:
            yield
        finally:
            ballast.unlink()

    def _free(self) -> int:
        room = os.statvfs(self.drive)
        return room.f_bavail * room.f_frsize

    @contextmanager
    def held(self, path: str) -> Iterator[None]:
        """Let a program on the host hold a file open without sharing it."""
        command = [*self._ssh(), f'hold "{path}"']
        with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as holding:
            assert holding.stdout is not None
            try:
                assert holding.stdout.readline() == b"held\r\n"
                yield
            finally:
                self.run("taskkill /f /im hold.exe")
                holding.kill()

    def add_network(self, identity: str, name: str, kind: str) -> None:
        key = rf"HKLM\SOFTWARE\Stand-in\Networks\{identity}"
        self.done(f"reg add {key} /v Name /d {name} /f")
        self.done(f"reg add {key} /v Type /d {kind} /f")

    def networks(self) -> list[str]:
        text = self.run(r"reg query HKLM\SOFTWARE\Stand-in\Networks /s /v Name").out
        return [line.split()[-1] for line in text.splitlines() if "REG_SZ" in line]

    def install_docker(self) -> None:
        """Create a service named docker in Docker's directory; it only runs."""
        self.put(programs.stand_in("service"), DOCKERD)
        self.done(rf'sc create docker binPath= "\"{DOCKERD}\" --run-service" start= auto')
        self.start("docker")

    def start(self, name: str) -> None:
        self.done(f"sc start {name}")
        until(lambda: self.services(name) == {name: "running"}, f"{name} runs")

    def stop(self, name: str) -> None:
        """Stop a service and wait until its process has exited."""
        self.done(f"sc stop {name}")
        until(lambda: self.services(name) == {name: "stopped"}, f"{name} has stopped")

    def put(self, source: Path, path: str) -> None:
        target = self.path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(source.read_bytes())

    def host_key(self) -> str:
        """Return the host key that the SSH server presents, empty while the host is down."""
        command = ["ssh-keyscan", "-t", "ed25519", "-T", "60", "-p", str(PORT), self.address]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.stdout.partition(" ")[2].strip()

    def ssh_options(self) -> list[str]:
        options = ["StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null", "LogLevel=ERROR"]
        options += ["BatchMode=yes", "ConnectTimeout=60", "IdentitiesOnly=yes"]
        words = [word for option in options for word in ("-o", option)]
        return ["-F", "none", "-i", str(self.key), "-o", f"Port={PORT}", *words]

    def _ssh(self) -> list[str]:
        return ["ssh", *self.ssh_options(), f"{USER}@{self.address}"]


@contextmanager
def windows_host(
    folder: Path,
    base: Base,
    *,
    build: str = SERVER_2022,
    features: Mapping[str, str] = READY,
    name: str = "",
    key: Path | None = None,
) -> Iterator[WindowsHost]:
    """Run a host until the end of the context; only `folder` remains.

    Without a `key`, which can be shared between hosts, a new one is created.
    """
    folder.mkdir(parents=True, exist_ok=True)
    key = key or make_key(folder / "key")
    address = _free_address()
    machine = Machine(
        folder,
        base,
        parse_build(build),
        address,
        name or f"win-{'-'.join(address.split('.')[2:])}",
        key.with_suffix(".pub").read_text(),
    )
    host = WindowsHost(machine, key, features)
    host.switch_on()
    try:
        host.wait_until_up()
        yield host
    finally:
        machine.pull_the_plug()


def until(condition: Callable[[], bool], what: str, seconds: float = _TIMEOUT) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds:.0f} s for: {what}"
        time.sleep(0.1)


def _free_address() -> str:
    """Return a loopback address without a listener on the SSH port."""
    process = os.getpid()
    for _ in range(200):
        address = f"127.{100 + process // 256 % 100}.{process % 256}.{next(_numbers) % 250 + 1}"
        with socket.socket() as tried, suppress(OSError):
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            tried.bind((address, PORT))
            return address
    raise AssertionError(f"port {PORT} is in use on every address: stop that program")
