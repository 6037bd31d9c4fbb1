"""A payload for real hosts: the real containerd and crictl, and stand-ins of what cannot be had."""

import shutil
from pathlib import Path

from tests.e2e.windows_host import programs

SERVICES = ("kubelet", "kube-log-runner", "windows_exporter")
SHIM = "containerd-shim-runhcs-v1"


def lay_programs(folder: Path, version: str) -> Path:
    """In each version the stand-ins are other files, and so is crictl; containerd is the same.

    containerd asks its shim what it is; one that fails at once is a shim that does not say.
    """
    folder.mkdir()
    shutil.copy(programs.containerd(), folder)
    for source, name in (
        (programs.crictl(), "crictl"),
        (programs.stand_in("hold"), SHIM),
        *((programs.stand_in("service"), name) for name in SERVICES),
    ):
        (folder / f"{name}.exe").write_bytes(source.read_bytes() + f"{name} {version}".encode())
    return folder
