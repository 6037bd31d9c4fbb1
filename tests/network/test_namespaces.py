import os
import socket
import subprocess
from pathlib import Path

import pytest

from tests.network.machine import Machine
from winpod.network.errors import NamespaceFailed
from winpod.network.namespaces import Namespaces, has_interface, inside
from winpod.windows.errors import InvalidInput

OWN = Path("/proc/thread-self/ns/net")


def test_a_namespace_has_its_name_its_loopback_and_an_end(machine: Machine) -> None:
    namespaces = machine.namespaces
    assert namespaces.names() == []
    path = namespaces.create("one")
    assert namespaces.names() == ["one"]
    assert namespaces.exists("one")
    assert path.stat().st_ino != OWN.stat().st_ino
    assert namespaces.call("one", lambda: OWN.stat().st_ino) == path.stat().st_ino
    assert has_interface(path, "lo")
    assert not has_interface(path, "eth0")
    server = inside(path, lambda: socket.create_server(("127.0.0.1", 0)))
    port = server.getsockname()[1]
    inside(path, lambda: socket.create_connection(("127.0.0.1", port), timeout=60)).close()
    server.close()
    with pytest.raises(NamespaceFailed, match="exists already"):
        namespaces.create("one")
    namespaces.remove("one")
    namespaces.remove("one")
    assert namespaces.names() == []
    assert not has_interface(path, "lo")


def test_a_program_started_inside_stays_inside(machine: Machine) -> None:
    path = machine.namespaces.create("one")
    link = machine.namespaces.call(
        "one", lambda: subprocess.check_output(["readlink", "/proc/self/ns/net"], text=True)
    )
    assert link.strip() == f"net:[{path.stat().st_ino}]"
    assert f"net:[{path.stat().st_ino}]" != str(OWN.readlink())


def test_a_half_made_namespace_is_made_whole(machine: Machine) -> None:
    machine.namespaces.directory.mkdir()
    machine.namespaces.path("one").touch()
    assert not machine.namespaces.exists("one")
    machine.namespaces.create("one")
    assert machine.namespaces.exists("one")


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "-a", "a b", "../a"])
def test_a_name_stays_in_the_directory(name: str) -> None:
    with pytest.raises(InvalidInput, match="cannot be the name"):
        Namespaces(Path("/nowhere")).create(name)


def test_what_the_kernel_refuses_is_a_sentence(machine: Machine) -> None:
    with pytest.raises(NamespaceFailed, match="cannot be entered: No such file"):
        machine.namespaces.call("never", lambda: None)
    (machine.directory / "file").touch()
    with pytest.raises(NamespaceFailed, match="cannot be made"):
        Namespaces(machine.directory / "file" / "netns").create("one")
    machine.namespaces.path("directory").mkdir(parents=True)
    with pytest.raises(NamespaceFailed, match="cannot be removed"):
        machine.namespaces.remove("directory")
    machine.namespaces.path("directory").rmdir()


def test_without_root_it_says_so(machine: Machine) -> None:
    machine.namespaces.directory.mkdir(mode=0o777)
    machine.namespaces.directory.chmod(0o777)
    for parent in machine.namespaces.directory.parents[:3]:
        parent.chmod(parent.stat().st_mode | 0o555)
    child = os.fork()
    if child == 0:
        os.setuid(65534)
        try:
            machine.namespaces.create("one")
        except NamespaceFailed as error:
            os._exit(0 if str(error).endswith("This needs root.") else 1)
        os._exit(2)
    assert os.waitpid(child, 0)[1] == 0


def test_an_error_inside_comes_out(machine: Machine) -> None:
    machine.namespaces.create("one")
    with pytest.raises(ZeroDivisionError):
        machine.namespaces.call("one", lambda: 1 // 0)
