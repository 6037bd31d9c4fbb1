import os
import socket
import subprocess
from pathlib import Path

import pytest

from tests.support.network_machine import Machine
from winpod.errors import InvalidInput
from winpod.network.errors import NamespaceFailed
from winpod.network.netns import NetworkNamespaces, has_interface, run_in_netns

OWN = Path("/proc/thread-self/ns/net")


def test_namespace_is_created_with_loopback_and_removed(machine: Machine) -> None:
    namespaces = machine.namespaces
    assert namespaces.names() == []
    path = namespaces.create("one")
    assert namespaces.names() == ["one"]
    assert namespaces.exists("one")
    assert path.stat().st_ino != OWN.stat().st_ino
    assert namespaces.run_in("one", lambda: OWN.stat().st_ino) == path.stat().st_ino
    assert has_interface(path, "lo")
    assert not has_interface(path, "eth0")
    server = run_in_netns(path, lambda: socket.create_server(("127.0.0.1", 0)))
    port = server.getsockname()[1]
    run_in_netns(path, lambda: socket.create_connection(("127.0.0.1", port), timeout=60)).close()
    server.close()
    with pytest.raises(NamespaceFailed, match="exists already"):
        namespaces.create("one")
    namespaces.remove("one")
    namespaces.remove("one")
    assert namespaces.names() == []
    assert not has_interface(path, "lo")


def test_process_started_inside_stays_in_the_namespace(machine: Machine) -> None:
    path = machine.namespaces.create("one")
    link = machine.namespaces.run_in(
        "one", lambda: subprocess.check_output(["readlink", "/proc/self/ns/net"], text=True)
    )
    assert link.strip() == f"net:[{path.stat().st_ino}]"
    assert f"net:[{path.stat().st_ino}]" != str(OWN.readlink())


def test_create_completes_an_incomplete_namespace(machine: Machine) -> None:
    machine.namespaces.directory.mkdir()
    machine.namespaces.path("one").touch()
    assert not machine.namespaces.exists("one")
    machine.namespaces.create("one")
    assert machine.namespaces.exists("one")


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "-a", "a b", "../a"])
def test_name_outside_the_directory_is_rejected(name: str) -> None:
    with pytest.raises(InvalidInput, match="is not a valid name"):
        NetworkNamespaces(Path("/nowhere")).create(name)


def test_kernel_errors_are_explained(machine: Machine) -> None:
    with pytest.raises(NamespaceFailed, match="cannot be entered: No such file"):
        machine.namespaces.run_in("never", lambda: None)
    (machine.directory / "file").touch()
    with pytest.raises(NamespaceFailed, match="cannot be created"):
        NetworkNamespaces(machine.directory / "file" / "netns").create("one")
    machine.namespaces.path("directory").mkdir(parents=True)
    with pytest.raises(NamespaceFailed, match="cannot be removed"):
        machine.namespaces.remove("directory")
    machine.namespaces.path("directory").rmdir()


def test_error_without_root_says_so(machine: Machine) -> None:
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


def test_exception_inside_the_namespace_is_propagated(machine: Machine) -> None:
    machine.namespaces.create("one")
    with pytest.raises(ZeroDivisionError):
        machine.namespaces.run_in("one", lambda: 1 // 0)
