"""QEMU arguments: a template and its clones are the same machine."""

from pathlib import Path

from winpod.compute.hypervisor.accelerator import Accelerator
from winpod.compute.hypervisor.qemu import QemuConfig, qemu_arguments, virtiofsd_arguments


def _machine(accelerator: Accelerator = Accelerator.EMULATION) -> QemuConfig:
    return QemuConfig(Path("/m"), Path("/k"), Path("/i"), Path("/b"), accelerator, 2)


def test_clone_differs_from_its_template_only_by_incoming_and_console() -> None:
    template, clone = (qemu_arguments(_machine(), is_clone=waits) for waits in (False, True))
    del template[template.index("-chardev") + 1], clone[clone.index("-chardev") + 1]
    assert clone == [*template, "-incoming", "defer"]


def test_console_of_a_pod_uses_no_disk() -> None:
    arguments = qemu_arguments(_machine(), is_clone=True)
    assert arguments[arguments.index("-serial") + 1] == "chardev:console"
    assert arguments[arguments.index("-chardev") + 1] == "ringbuf,size=65536,id=console"
    assert not any("file" in word for word in arguments if "console" in word)


def test_cpu_is_the_hosts_with_kvm_and_emulated_otherwise() -> None:
    own = qemu_arguments(_machine(Accelerator.KVM), is_clone=False)
    assert own[own.index("-accel") + 1] == "kvm"
    assert own[own.index("-cpu") + 1] == "host"
    made_up = qemu_arguments(_machine(), is_clone=False)
    assert made_up[made_up.index("-accel") + 1].startswith("tcg")


def test_socket_paths_are_relative_to_stay_short() -> None:
    arguments = " ".join(qemu_arguments(_machine(), is_clone=False))
    assert "path=control,server=on,wait=off" in arguments
    assert "unix:qmp," in arguments


def test_qemu_sandbox_denies_spawn_and_privileges() -> None:
    arguments = qemu_arguments(_machine(), is_clone=False)
    assert "spawn=deny" in arguments[arguments.index("-sandbox") + 1]
    assert "elevateprivileges=deny" in arguments[arguments.index("-sandbox") + 1]


def test_volumes_are_revalidated_and_drives_are_cached() -> None:
    shared = Path("shared")
    changing = virtiofsd_arguments(Path("s"), shared, host_writes=True)
    own = virtiofsd_arguments(Path("s"), shared, host_writes=False)
    assert changing[changing.index("--cache") + 1] == "auto"
    assert own[own.index("--cache") + 1] == "always"
