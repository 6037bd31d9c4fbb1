"""Payload for a Windows host: real containerd and crictl, stand-ins for unavailable programs."""

import shutil
from pathlib import Path

from tests.e2e.windows_host import programs
from tests.e2e.windows_host.host import WindowsHost

from winpod.instances.software.payload import make_payload

SERVICES = ("kubelet", "kube-log-runner", "windows_exporter")
SHIM = "containerd-shim-runhcs-v1"


def lay_programs(folder: Path, version: str) -> Path:
    """Write the programs; stand-ins and crictl differ between versions, containerd does not.

    containerd runs its shim to query its features; a shim that fails at once reports none.
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


def replace_payload(folder: Path, version: str) -> None:
    """Replace the programs with another version, and last the list that names the version."""
    programs_of = lay_programs(folder.with_name(version), version)
    for program in programs_of.iterdir():
        program.replace(folder / program.name)
    make_payload(folder, version)


def assert_nothing_of_ours(host: WindowsHost) -> None:
    assert not host.path(r"C:\k").exists()
    assert not host.path(r"C:\var").exists()
    ours = ("containerd", "kubelet", "windows_exporter")
    assert set(host.services(*ours).values()) == {"absent"}
    assert not [one for one in host.path(r"C:\windows\temp").iterdir() if "winpod" in one.name]
