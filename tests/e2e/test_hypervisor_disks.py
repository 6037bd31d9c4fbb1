"""Disks attached to a pod's microVM: formatting, sharing, formats and limits."""

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.support.e2e.command_line import Winpod, winpod_in
from tests.support.e2e.disk_images import MIB, device, disk_of_windows, formatted_disk, raw_disk
from tests.support.e2e.microvms import (
    WAITS,
    begin,
    call,
    image,
    link_kit,
    machines,
    run,
    until_exited,
    until_said,
    winpod,
)
from tests.support.e2e.waiting import eventually
from tests.support.e2e.windows_programs import cache, go_program

from winpod.compute.disk_mounts import DiskRefused
from winpod.compute.hypervisor.assets import build_assets
from winpod.compute.hypervisor.guest_disks import open_disk
from winpod.compute.spec import Mount, MountSourceKind
from winpod.cri.proto import api_pb2 as api
from winpod.cri.rpc import RemoteError
from winpod.images.base.builder import Base

__all__ = ["image", "winpod"]


def run_in_pod(winpod: Winpod, name: str, line: str, **disks: str) -> str:
    """Run another container in the only pod, with disks mounted in C:; return its log."""
    first = call(winpod, api.ListContainersRequest()).containers[0]
    mounts = [
        api.Mount(
            host_path=source.removesuffix(":ro"),
            container_path=f"C:\\{name_in_c}",
            readonly=source.endswith(":ro"),
        )
        for name_in_c, source in disks.items()
    ]
    target = (first.image, first.pod_sandbox_id, name)
    container = begin(winpod, *target, ["cmd", "/c", line], mounts=mounts)
    return Path(until_exited(winpod, container).log_path).read_text()


def is_unlocked(disk: Path) -> bool:
    try:
        held = open_disk(Mount(str(disk), "C:\\data", MountSourceKind.VIRTUAL_DISK))
    except DiskRefused:
        return False
    os.close(held.descriptor)
    return True


def read_from_disk(disk: Path, name: str) -> str:
    """Read a file of an unmounted disk."""
    command = ["debugfs", "-R", f"cat {name}", str(disk)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def test_disk_is_formatted_shared_and_released(winpod: Winpod, image: str, tmp_path: Path) -> None:
    disk, other = raw_disk(tmp_path / "disk.img"), raw_disk(tmp_path / "other.img")
    unknown = raw_disk(tmp_path / "strange.img")
    unknown.write_bytes(b"somebody's data".ljust(1 << 20, b"\0"))
    mount = ("-v", f"virtual-disk://{disk}:C:\\data")
    options = ("-d", "--name", "writer", "--isolation", "hypervisor", *mount)
    line = rf"echo shared>C:\data\note.txt & {WAITS}"
    started = winpod("run", *options, image, "cmd", "/c", line)
    assert started.returncode == 0, started.stderr
    until_said(winpod, "writer", "up")
    assert str(disk) not in Path("/proc/mounts").read_text()
    assert not is_unlocked(disk)
    winpod.end_runtime(signal.SIGKILL)
    assert "writer" in winpod("ps").stdout
    lines = r"type C:\data\note.txt & echo x>C:\data\more.txt & echo kept>C:\own\note.txt"
    shared, own = f"virtual-disk://{disk}:ro", f"virtual-disk://{other}"
    output = run_in_pod(winpod, "reader", lines, data=shared, own=own)
    assert "shared" in output
    assert "Access denied" in output
    eventually(lambda: is_unlocked(other))
    assert "kept" in read_from_disk(other, "note.txt")
    assert not is_unlocked(disk)
    with pytest.raises(RemoteError, match="an unknown format"):
        run_in_pod(winpod, "stranger", "ver", own=f"virtual-disk://{unknown}")
    eventually(lambda: is_unlocked(unknown))
    assert len(machines(winpod)) == 1
    assert winpod("rm", "-f", *winpod("ps", "-aq").stdout.split()).returncode == 0
    eventually(lambda: is_unlocked(disk))
    assert machines(winpod) == []
    assert str(winpod.root / "runtime/sandboxes") not in Path("/proc/mounts").read_text()


def test_disk_requires_hypervisor_isolation(winpod: Winpod, image: str, tmp_path: Path) -> None:
    mount = ("-v", f"virtual-disk://{raw_disk(tmp_path / 'disk.img')}:C:\\data")
    rejected = winpod("run", "--rm", "--host-build", "2019", *mount, image, "cmd", "/c", "ver")
    assert rejected.returncode == 125
    assert "only be attached to pods with hypervisor isolation" in rejected.stderr


def test_all_disk_formats_and_ntfs_are_supported(
    winpod: Winpod, image: str, tmp_path: Path
) -> None:
    assets = build_assets(cache() / "root")
    disks = {
        name: formatted_disk(assets, tmp_path / f"disk.{name}", driver)
        for name, driver in {"vhdx": "vhdx", "qcow2": "qcow2"}.items()
    }
    disks["vhd"] = disk_of_windows(tmp_path / "disk.vhd")
    with device(raw_disk(tmp_path / "device.img")) as block:
        sources = {name: f"virtual-disk://{file}" for name, file in disks.items()}
        sources["block"] = f"physical-disk://{block}"
        mounts = [
            option for name, source in sources.items() for option in ("-v", f"{source}:C:\\{name}")
        ]
        writes = " & ".join(rf"echo in {name}>C:\{name}\note.txt" for name in sources)
        reads = " & ".join(rf"type C:\{name}\note.txt" for name in sources)
        output = run(winpod, image, rf"{writes} & {reads} & type \\?\unix\proc\mounts", *mounts)
    for name in sources:
        assert f"in {name}" in output
    assert "/drive_c/vhd ntfs3 rw" in output


def test_disk_bandwidth_and_iops_limits_are_enforced(
    winpod: Winpod, image: str, tmp_path: Path
) -> None:
    """Write 4 MiB at 1 MiB/s and 30 blocks at 10 per second, on C: and on an attached disk.

    The result is compared with the best of three runs without limits.
    """
    annotations = {
        "io.microsoft.virtualmachine.storageqos.bandwidthmaximum": 1 << 20,
        "io.microsoft.virtualmachine.storageqos.iopsmaximum": 10,
        "io.microsoft.container.storage.rootfs.size-gb": 1,
    }
    limits = [f"--annotation={name}={value}" for name, value in annotations.items()]
    mounts = (
        *("-v", f"virtual-disk://{raw_disk(tmp_path / 'disk.img')}:C:\\data"),
        *("-v", f"{go_program(name='writer')}:C:\\writer.exe"),
    )
    writes = [
        rf"C:\writer.exe C:\{target}.bin {arguments}"
        for target in ("own", r"data\attached")
        for arguments in ("16 256", "30 4 each")
    ]
    unlimited_output = run_with_long_timeout(
        winpod, image, " & ".join([*writes * 3, "dir C:"]), *mounts
    )
    limited_output = run_with_long_timeout(
        winpod, image, " & ".join([*writes, "dir C:"]), *mounts, *limits
    )
    unlimited, limited = milliseconds(unlimited_output), milliseconds(limited_output)
    assert (len(unlimited), len(limited)) == (12, 4), unlimited_output + limited_output
    for measured, minimum in zip(limited, (4000, 3000) * 2, strict=True):
        assert measured > 0.8 * minimum
    for number, duration in enumerate(limited):
        assert min(unlimited[number::4]) < duration
    assert free_bytes(limited_output) < 1 << 30 < free_bytes(unlimited_output)


def run_with_long_timeout(winpod: Winpod, image: str, line: str, *options: str) -> str:
    """Run a container with slow disks; return its output."""
    words = ("run", "--rm", "--isolation", "hypervisor", *options, image, "cmd", "/c", line)
    with winpod.start(*words, stdout=subprocess.PIPE) as running:
        return running.communicate(timeout=900)[0].decode()


def milliseconds(output: str) -> list[int]:
    return [int(number) for number in re.findall(r"milliseconds: (\d+)", output)]


def free_bytes(output: str) -> int:
    """Return the free space of C: that `dir` prints."""
    return int(re.findall(r"([\d,]+) bytes free", output)[-1].replace(",", ""))


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """Mount a small file system from a file."""
    file, mount_point = raw_disk(folder / "small.img", 160 * MIB), folder / "small"
    mount_point.mkdir()
    subprocess.run(["mkfs.ext4", "-q", "-F", "-m", "0", str(file)], check=True)
    subprocess.run(["mount", "-o", "loop", str(file), str(mount_point)], check=True)
    try:
        yield mount_point
    finally:
        subprocess.run(["umount", "--lazy", str(mount_point)], check=True)


def test_full_host_disk_fails_writes_but_not_the_guest(
    winpod: Winpod, image: str, base: Base, tmp_path: Path
) -> None:
    """C: is full before the host is; a sparse attached disk then uses the rest."""
    del winpod  # only its guest assets and environment are needed
    with small_disk(tmp_path) as mount_point, winpod_in(mount_point, base) as full:
        link_kit(full.root)
        disk = raw_disk(mount_point / "disk.img", 1 << 30)
        writer = f"{go_program(name='writer')}:C:\\writer.exe"
        mounts = ("-v", f"virtual-disk://{disk}:C:\\data", "-v", writer)
        options = ("-d", "--name", "box", "--isolation", "hypervisor", *mounts)
        started = full("run", *options, image, "cmd", "/c", WAITS)
        assert started.returncode == 0, started.stderr
        until_said(full, "box", "up")
        for target, arguments, message in (
            (r"C:\own.bin", (), "Disk full"),
            (r"C:\data\attached.bin", ("each",), "failed:"),
        ):
            result = full("exec", "box", r"C:\writer.exe", target, "400", "1024", *arguments)
            assert message in result.stdout, result
            assert "alive" in full("exec", "box", "cmd", "/c", "echo alive").stdout
        assert full("rm", "-f", "box").returncode == 0
        assert machines(full) == []
        eventually(lambda: is_unlocked(disk))


MANIFEST = """
apiVersion: node.k8s.io/v1
kind: RuntimeClass
metadata: {name: in-a-machine}
handler: runhcs-wcow-hypervisor-17763
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data}
spec:
  volumeMode: Block
  accessModes: [ReadWriteOnce]
  resources: {requests: {storage: 48Mi}}
---
apiVersion: v1
kind: Pod
metadata: {name: keeper}
spec:
  runtimeClassName: in-a-machine
  restartPolicy: Never
  containers:
    - name: app
      image: registry.example/keeper:1
      command: [cmd, /c, 'echo claimed>C:\\data\\note.txt & dir C:\\data & type C:\\data\\note.txt']
      volumeDevices: [{name: data, devicePath: 'C:\\data'}]
  volumes: [{name: data, persistentVolumeClaim: {claimName: data}}]
"""


def test_block_claim_is_attached_to_microvm(winpod: Winpod, tmp_path: Path) -> None:
    (tmp_path / "content").mkdir()
    layout = f"oci:{tmp_path}/images:registry.example/keeper:1"
    options = ("-t", layout, "--os-version", "10.0.17763.805")
    assert winpod("image", "pack", str(tmp_path / "content"), *options).returncode == 0
    (tmp_path / "pod.yaml").write_text(MANIFEST)
    played = winpod("play", str(tmp_path / "pod.yaml"), "--layout", f"{tmp_path}/images")
    try:
        eventually(
            lambda: (winpod("logs", "keeper").stdout, played),
            lambda result: "claimed" in result[0],
        )
        (disk,) = (winpod.root / "play/volumes").glob("default_data/disk.img")
        assert disk.stat().st_size == 48 * MIB
    finally:
        assert winpod("down", "--volumes").returncode == 0
    assert not disk.exists()
