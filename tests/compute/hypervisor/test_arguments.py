"""A template and its clones are the same machine, and a clone only waits."""

from pathlib import Path

from winpod.compute.hypervisor.accelerator import Accelerator
from winpod.compute.hypervisor.arguments import Machine, qemu_arguments, virtiofsd_arguments


def _machine(accelerator: Accelerator = Accelerator.EMULATION) -> Machine:
    return Machine(Path("/m"), Path("/k"), Path("/i"), Path("/b"), accelerator, 2)


def test_a_clone_differs_from_its_template_by_waiting_and_by_where_its_console_goes_only() -> None:
    template, clone = (qemu_arguments(_machine(), waits=waits) for waits in (False, True))
    del template[template.index("-chardev") + 1], clone[clone.index("-chardev") + 1]
    assert clone == [*template, "-incoming", "defer"]


def test_what_a_pod_says_on_its_console_takes_no_disk() -> None:
    words = qemu_arguments(_machine(), waits=True)
    assert words[words.index("-serial") + 1] == "chardev:console"
    assert words[words.index("-chardev") + 1] == "ringbuf,size=65536,id=console"
    assert not any("file" in word for word in words if "console" in word)


def test_the_processor_is_the_machines_own_under_kvm_and_made_up_under_emulation() -> None:
    own = qemu_arguments(_machine(Accelerator.KVM), waits=False)
    assert own[own.index("-accel") + 1] == "kvm"
    assert own[own.index("-cpu") + 1] == "host"
    made_up = qemu_arguments(_machine(), waits=False)
    assert made_up[made_up.index("-accel") + 1].startswith("tcg")


def test_sockets_are_named_where_qemu_is_started_so_that_their_names_fit() -> None:
    words = " ".join(qemu_arguments(_machine(), waits=False))
    assert "path=control,server=on,wait=off" in words
    assert "unix:qmp," in words


def test_qemu_may_start_nothing_and_gain_nothing() -> None:
    words = qemu_arguments(_machine(), waits=False)
    assert "spawn=deny" in words[words.index("-sandbox") + 1]
    assert "elevateprivileges=deny" in words[words.index("-sandbox") + 1]


def test_what_others_change_is_looked_at_anew_and_a_drive_is_not() -> None:
    shared = Path("shared")
    changing = virtiofsd_arguments(Path("s"), shared, changes=True)
    own = virtiofsd_arguments(Path("s"), shared, changes=False)
    assert changing[changing.index("--cache") + 1] == "auto"
    assert own[own.index("--cache") + 1] == "always"
