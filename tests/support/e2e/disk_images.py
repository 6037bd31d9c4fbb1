"""Disk images for tests: empty ones in every format, and one with an NTFS partition."""

import json
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from winpod.compute.hypervisor.assets import HypervisorAssets

MIB = 1 << 20
SECTOR = 512
_NTFS = 0x07
_FIXED = 2


def raw_disk(file: Path, size: int = 64 * MIB) -> Path:
    with file.open("wb") as sparse:
        sparse.truncate(size)
    return file


def formatted_disk(kit: HypervisorAssets, file: Path, driver: str, size: int = 64 * MIB) -> Path:
    """Let QEMU create an empty image in one of its formats."""
    file.touch()
    options = {"driver": driver, "file": "file", "size": size}
    job = {"job-id": "make", "options": options}
    commands = [
        ("qmp_capabilities", {}),
        ("blockdev-add", {"driver": "file", "node-name": "file", "filename": str(file)}),
        ("blockdev-create", job),
    ]
    command = kit.qemu("-M", "none", "-nodefaults", "-display", "none", "-qmp", "stdio")
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as qemu:
        assert qemu.stdin
        assert qemu.stdout
        for name, arguments in commands:
            print(json.dumps({"execute": name, "arguments": arguments}), file=qemu.stdin)
        qemu.stdin.flush()
        for line in qemu.stdout:
            message = json.loads(line)
            assert "error" not in message, message
            if message.get("data", {}).get("status") == "concluded":
                break
        qemu.kill()
    return file


def disk_of_windows(file: Path, size: int = 64 * MIB) -> Path:
    """Create a fixed VHD with a partition table and one NTFS partition."""
    first = MIB // SECTOR
    partition = file.with_suffix(".partition")
    raw_disk(partition, size - 2 * MIB)
    geometry = ("-s", str(SECTOR), "-p", str(first), "-H", "255", "-S", "63")
    command = ["mkntfs", "-Q", "-F", *geometry, str(partition)]
    subprocess.run(command, check=True, capture_output=True)
    entry = struct.pack("<B3sB3sII", 0, b"", _NTFS, b"", first, (size - 2 * MIB) // SECTOR)
    with file.open("wb") as disk:
        disk.write((bytes(446) + entry).ljust(510, b"\0") + b"\x55\xaa")
        disk.seek(MIB)
        disk.write(partition.read_bytes())
        disk.truncate(size)
        disk.seek(size)
        disk.write(_footer(size))
    partition.unlink()
    return file


def _footer(size: int) -> bytes:
    cylinders = size // SECTOR // (16 * 63)
    geometry = struct.pack(">HBB", cylinders, 16, 63)
    head = struct.pack(
        ">8sIIQI4sI4sQQ",
        b"conectix",
        2,
        0x10000,
        2**64 - 1,
        0,
        b"win ",
        0xA0000,
        b"Wi2k",
        size,
        size,
    )
    footer = bytearray((head + geometry + struct.pack(">I", _FIXED)).ljust(SECTOR, b"\0"))
    struct.pack_into(">I", footer, 64, ~sum(footer) & 0xFFFFFFFF)
    return bytes(footer)


@contextmanager
def device(file: Path) -> Iterator[Path]:
    """Attach the file as a block device of this machine until the context ends."""
    made = subprocess.run(
        ["losetup", "--find", "--show", str(file)], check=True, capture_output=True, text=True
    )
    try:
        yield Path(made.stdout.strip())
    finally:
        subprocess.run(["losetup", "--detach", made.stdout.strip()], check=True)
