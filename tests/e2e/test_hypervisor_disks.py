"""Disks that are attached to a pod's microVM: formatted, used and limited inside of it."""

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


def run_beside(winpod: Winpod, name: str, line: str, **disks: str) -> str:
    """What one more container of the only pod says; each disk is in a directory of C:."""
    first = call(winpod, api.ListContainersRequest()).containers[0]
    mounts = [
        api.Mount(
            host_path=source.removesuffix(":ro"),
            container_path=f"C:\\{place}",
            readonly=source.endswith(":ro"),
        )
        for place, source in disks.items()
    ]
    where = (first.image, first.pod_sandbox_id, name)
    container = begin(winpod, *where, ["cmd", "/c", line], mounts=mounts)
    return Path(until_exited(winpod, container).log_path).read_text()


def is_free(disk: Path) -> bool:
    try:
        held = open_disk(Mount(str(disk), "C:\\data", MountSourceKind.VIRTUAL_DISK))
    except DiskRefused:
        return False
    os.close(held.descriptor)
    return True


def file_on(disk: Path, name: str) -> str:
    """Read without a mount."""
    command = ["debugfs", "-R", f"cat {name}", str(disk)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def test_a_disk_is_formatted_in_its_pod_shared_there_and_given_back(
    winpod: Winpod, image: str, tmp_path: Path
) -> None:
    disk, other = raw_disk(tmp_path / "disk.img"), raw_disk(tmp_path / "other.img")
    strange = raw_disk(tmp_path / "strange.img")
    strange.write_bytes(b"somebody's data".ljust(1 << 20, b"\0"))
    mount = ("-v", f"virtual-disk://{disk}:C:\\data")
    options = ("-d", "--name", "writer", "--isolation", "hypervisor", *mount)
    line = rf"echo shared>C:\data\note.txt & {WAITS}"
    began = winpod("run", *options, image, "cmd", "/c", line)
    assert began.returncode == 0, began.stderr
    until_said(winpod, "writer", "up")
    assert str(disk) not in Path("/proc/mounts").read_text()
    assert not is_free(disk)
    winpod.end_runtime(signal.SIGKILL)
    assert "writer" in winpod("ps").stdout
    lines = r"type C:\data\note.txt & echo x>C:\data\more.txt & echo kept>C:\own\note.txt"
    shared, own = f"virtual-disk://{disk}:ro", f"virtual-disk://{other}"
    said = run_beside(winpod, "reader", lines, data=shared, own=own)
    assert "shared" in said
    assert "Access denied" in said
    eventually(lambda: is_free(other))
    assert "kept" in file_on(other, "note.txt")
    assert not is_free(disk)
    with pytest.raises(RemoteError, match="an unknown format"):
        run_beside(winpod, "stranger", "ver", own=f"virtual-disk://{strange}")
    eventually(lambda: is_free(strange))
    assert len(machines(winpod)) == 1
    assert winpod("rm", "-f", *winpod("ps", "-aq").stdout.split()).returncode == 0
    eventually(lambda: is_free(disk))
    assert machines(winpod) == []
    assert str(winpod.root / "runtime/sandboxes") not in Path("/proc/mounts").read_text()


def test_a_pod_without_a_machine_of_its_own_gets_no_disk(
    winpod: Winpod, image: str, tmp_path: Path
) -> None:
    mount = ("-v", f"virtual-disk://{raw_disk(tmp_path / 'disk.img')}:C:\\data")
    refused = winpod("run", "--rm", "--host-build", "2019", *mount, image, "cmd", "/c", "ver")
    assert refused.returncode == 125
    assert "only be attached to pods with hypervisor isolation" in refused.stderr


def test_disks_of_every_format_and_of_a_windows_machine_are_used(
    winpod: Winpod, image: str, tmp_path: Path
) -> None:
    kit = build_assets(cache() / "root")
    disks = {
        name: formatted_disk(kit, tmp_path / f"disk.{name}", driver)
        for name, driver in {"vhdx": "vhdx", "qcow2": "qcow2"}.items()
    }
    disks["vhd"] = disk_of_windows(tmp_path / "disk.vhd")
    with device(raw_disk(tmp_path / "device.img")) as block:
        sources = {name: f"virtual-disk://{file}" for name, file in disks.items()}
        sources["block"] = f"physical-disk://{block}"
        mounts = [
            word for name, source in sources.items() for word in ("-v", f"{source}:C:\\{name}")
        ]
        writes = " & ".join(rf"echo in {name}>C:\{name}\note.txt" for name in sources)
        reads = " & ".join(rf"type C:\{name}\note.txt" for name in sources)
        said = run(winpod, image, rf"{writes} & {reads} & type \\?\unix\proc\mounts", *mounts)
    for name in sources:
        assert f"in {name}" in said
    assert "/drive_c/vhd ntfs3 rw" in said


def test_a_pods_disks_are_not_used_faster_than_its_limits(
    winpod: Winpod, image: str, tmp_path: Path
) -> None:
    """4 MiB at 1 MiB a second and 30 small pieces at 10 a second, on C: and on an attached disk;
    without limits, the best of three tries is held against that."""
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
        rf"C:\writer.exe C:\{place}.bin {how}"
        for place in ("own", r"data\attached")
        for how in ("16 256", "30 4 each")
    ]
    free = run_slowly(winpod, image, " & ".join([*writes * 3, "dir C:"]), *mounts)
    held = run_slowly(winpod, image, " & ".join([*writes, "dir C:"]), *mounts, *limits)
    tries, slow = milliseconds(free), milliseconds(held)
    assert (len(tries), len(slow)) == (12, 4), free + held
    for taken, least in zip(slow, (4000, 3000) * 2, strict=True):
        assert taken > 0.8 * least
    for number, limited in enumerate(slow):
        assert min(tries[number::4]) < limited
    assert room_of(held) < 1 << 30 < room_of(free)


def run_slowly(winpod: Winpod, image: str, line: str, *options: str) -> str:
    """What a container says that has little of its disk, and so may take its time."""
    words = ("run", "--rm", "--isolation", "hypervisor", *options, image, "cmd", "/c", line)
    with winpod.start(*words, stdout=subprocess.PIPE) as running:
        return running.communicate(timeout=900)[0].decode()


def milliseconds(said: str) -> list[int]:
    return [int(number) for number in re.findall(r"milliseconds: (\d+)", said)]


def room_of(said: str) -> int:
    """What `dir` says is left of C:."""
    return int(re.findall(r"([\d,]+) bytes free", said)[-1].replace(",", ""))


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """A file system of its own, that is as small as its file."""
    file, place = raw_disk(folder / "small.img", 160 * MIB), folder / "small"
    place.mkdir()
    subprocess.run(["mkfs.ext4", "-q", "-F", "-m", "0", str(file)], check=True)
    subprocess.run(["mount", "-o", "loop", str(file), str(place)], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def test_a_full_machine_is_an_error_for_who_writes_and_the_end_of_nobody(
    winpod: Winpod, image: str, base: Base, tmp_path: Path
) -> None:
    """C: is full while the machine has a little left; then a sparse disk takes that."""
    del winpod  # its kit and its leave to emulate
    with small_disk(tmp_path) as place, winpod_in(place, base) as full:
        link_kit(full.root)
        disk = raw_disk(place / "disk.img", 1 << 30)
        writer = f"{go_program(name='writer')}:C:\\writer.exe"
        mounts = ("-v", f"virtual-disk://{disk}:C:\\data", "-v", writer)
        options = ("-d", "--name", "box", "--isolation", "hypervisor", *mounts)
        began = full("run", *options, image, "cmd", "/c", WAITS)
        assert began.returncode == 0, began.stderr
        until_said(full, "box", "up")
        for target, how, said in (
            (r"C:\own.bin", (), "Disk full"),
            (r"C:\data\attached.bin", ("each",), "failed:"),
        ):
            wrote = full("exec", "box", r"C:\writer.exe", target, "400", "1024", *how)
            assert said in wrote.stdout, wrote
            assert "alive" in full("exec", "box", "cmd", "/c", "echo alive").stdout
        assert full("rm", "-f", "box").returncode == 0
        assert machines(full) == []
        eventually(lambda: is_free(disk))


CLAIMED = """
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


def test_a_claim_of_a_disk_is_one_in_the_pods_machine(winpod: Winpod, tmp_path: Path) -> None:
    (tmp_path / "content").mkdir()
    layout = f"oci:{tmp_path}/images:registry.example/keeper:1"
    options = ("-t", layout, "--os-version", "10.0.17763.805")
    assert winpod("image", "pack", str(tmp_path / "content"), *options).returncode == 0
    (tmp_path / "pod.yaml").write_text(CLAIMED)
    played = winpod("play", str(tmp_path / "pod.yaml"), "--layout", f"{tmp_path}/images")
    try:
        eventually(
            lambda: (winpod("logs", "keeper").stdout, played),
            lambda seen: "claimed" in seen[0],
        )
        (disk,) = (winpod.root / "play/volumes").glob("default_data/disk.img")
        assert disk.stat().st_size == 48 * MIB
    finally:
        assert winpod("down", "--volumes").returncode == 0
    assert not disk.exists()
