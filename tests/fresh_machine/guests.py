"""Stock Debian machines as disk images: systemd, Debian's own kernel and packages, no winpod.

A guest is built once by mmdebstrap and cached under the digest of its recipe. Its root disk is
never written to: QEMU discards the changes of a run. On the serial console root is logged in
automatically, and the login shell starts the session of the payload disk, so that the session runs
in a session scope of systemd-logind like the commands of a user.

What only costs time under emulation is left out: timers of maintenance, the work of the first boot,
and AppArmor's profiles of programs other than OCI runtimes, which take 20 seconds to compile.
"""

import hashlib
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.e2e.windows_programs import once
from winpod.images.base.build_container import with_parent_death_signal
from winpod.images.base.rootfs_builder import KEYRING, choose_mirrors

PAYLOAD_LABEL, PAYLOAD = "payload", "/mnt/payload"
ROOT_LABEL, WINPOD_ROOT = "winpod", "/var/lib/winpod"
MODULES = ("virtio_pci", "virtio_blk", "ext4")
"""Modules of the initramfs: enough to mount the root disk."""
PACKAGES = (
    "apparmor",
    "ca-certificates",
    "conmon",
    "containernetworking-plugins",
    "crun",
    "curl",
    "dbus",
    "e2fsprogs",
    "iproute2",
    "iptables",
    "kmod",
    "libpam-systemd",
    "mount",
    "procps",
    "python3",
    "python3-venv",
    "runc",
    "systemd-sysv",
    "udev",
    "util-linux",
)
_DISK_SIZE = "8G"
_ESSENTIAL = f"""
mkdir -p "$1/etc/initramfs-tools/conf.d"
echo MODULES=list > "$1/etc/initramfs-tools/conf.d/fresh-machine"
printf '%s\\n' {" ".join(MODULES)} > "$1/etc/initramfs-tools/modules"
"""
_CUSTOMIZE = f"""
set -eu
echo winhost > "$1/etc/hostname"
echo '127.0.0.1 localhost winhost' > "$1/etc/hosts"
mkdir -p "$1{PAYLOAD}" "$1{WINPOD_ROOT}"
cat > "$1/etc/fstab" <<FSTAB
LABEL={PAYLOAD_LABEL} {PAYLOAD} ext4 defaults 0 0
LABEL={ROOT_LABEL} {WINPOD_ROOT} ext4 defaults,nofail 0 0
FSTAB
unit="$1/etc/systemd/system/serial-getty@ttyS0.service.d"
mkdir -p "$unit"
cat > "$unit/autologin.conf" <<UNIT
[Unit]
RequiresMountsFor={PAYLOAD} {WINPOD_ROOT}
[Service]
ExecStart=
ExecStart=-/sbin/agetty --autologin root --noclear ttyS0 linux
Restart=no
UNIT
echo 'exec sh {PAYLOAD}/start' > "$1/root/.bash_profile"
for unit in apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer \
    e2scrub_reap.service fstrim.timer man-db.timer; do
    ln -sf /dev/null "$1/etc/systemd/system/$unit"
done
find "$1/etc/apparmor.d" -maxdepth 1 -type f ! -name runc ! -name crun -delete
chroot "$1" systemd-machine-id-setup
touch "$1/etc/.updated" "$1/var/.updated"
rm -rf "$1"/var/cache/apt/archives/*.deb "$1"/var/lib/apt/lists/*
"""


@dataclass(frozen=True)
class Release:
    """Machine: the Debian release of its packages and, if different, of its kernel."""

    kernel: str
    suite: str
    python: str
    kernel_suite: str = ""
    is_supported: bool = True

    @property
    def name(self) -> str:
        number = {"bookworm": 12, "trixie": 13}[self.suite]
        return f"Debian {number}, Linux {self.kernel}"

    @property
    def kernel_package(self) -> str:
        return "linux-image-amd64" + (f"/{self.kernel_suite}" if self.kernel_suite else "")

    @property
    def sources(self) -> list[str]:
        mirrors = choose_mirrors()
        main = [self.suite, f"{self.suite}-updates"]
        if self.kernel_suite:
            main.append(self.kernel_suite)
        lines = [f"deb [signed-by={KEYRING}] {mirrors.main} {suite} main" for suite in main]
        if mirrors.security:
            suite = f"{self.suite}-security"
            lines.append(f"deb [signed-by={KEYRING}] {mirrors.security} {suite} main")
        return lines


RELEASES = {
    release.kernel: release
    for release in (
        Release("6.1", "bookworm", "3.11"),
        Release("6.12", "trixie", "3.13"),
        Release("5.10", "bookworm", "3.11", kernel_suite="bullseye", is_supported=False),
    )
}
DEFAULT_KERNELS = tuple(kernel for kernel, release in RELEASES.items() if release.is_supported)


@dataclass(frozen=True)
class Guest:
    """Files that QEMU boots."""

    folder: Path
    disk: Path = field(init=False)
    kernel: Path = field(init=False)
    initrd: Path = field(init=False)

    def __post_init__(self) -> None:
        for name in ("disk", "kernel", "initrd"):
            object.__setattr__(self, name, self.folder / name)


def build_guest(release: Release) -> Guest:
    """Return the cached guest of a release, building it first if it is absent."""
    recipe = [release.suite, release.kernel_package, *release.sources, *PACKAGES]
    decides = "\n".join([*recipe, _ESSENTIAL, _CUSTOMIZE, _DISK_SIZE])
    return Guest(once("guest", decides, lambda to: _build(release, to)))


def make_disk(image: Path, label: str, content: Path, size: str) -> None:
    """Write a sparse ext4 image with the content of a directory."""
    run(["mke2fs", "-q", "-t", "ext4", "-L", label, "-d", str(content), str(image), size])


def digest_of(*parts: str) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def run(command: Sequence[str]) -> str:
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    output = done.stdout.decode(errors="replace")
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)[:200]} exited {done.returncode}:\n{output[-4000:]}")
    return output


def _build(release: Release, to: Path) -> None:
    to.mkdir()
    with tempfile.TemporaryDirectory(dir=to.parent) as work:
        tree = Path(work) / "tree"
        # mmdebstrap mounts the host's /dev/shm and /sys into the tree. In a mount namespace of its
        # own the mounts end with it, and removing the tree of a killed build cannot reach through.
        run(
            with_parent_death_signal(
                [
                    *("mmdebstrap", "--mode=root", "--variant=important", "--format=directory"),
                    *("--architectures=amd64", f"--include={release.kernel_package}"),
                    f"--include={','.join(PACKAGES)}",
                    *(f"--essential-hook={_ESSENTIAL}", f"--customize-hook={_CUSTOMIZE}"),
                    *(release.suite, str(tree), *release.sources),
                ]
            )
        )
        guest = Guest(to)
        shutil.copy(next((tree / "boot").glob("vmlinuz-*")), guest.kernel)
        shutil.copy(next((tree / "boot").glob("initrd.img-*")), guest.initrd)
        make_disk(guest.disk, "system", tree, _DISK_SIZE)
