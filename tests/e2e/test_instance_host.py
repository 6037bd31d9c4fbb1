"""The Windows host of the instance tests behaves like Windows Server where it matters.

The expected behaviour is taken from the Windows documentation, not from winpod.
"""

import hashlib
import json
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.e2e.windows_host import WindowsHost, programs, windows_host
from tests.e2e.windows_host.host import FRESH, SERVER_2019, until
from tests.support.e2e.waiting import eventually

from winpod.images.base.build_container import CONTROL_GROUPS
from winpod.images.base.builder import Base

CONTAINERD = r"C:\k\containerd.exe"
CRICTL = r"C:\k\crictl.exe --timeout 200s --runtime-endpoint npipe://./pipe/containerd-containerd"
GUID = "11111111-2222-3333-4444-555555555555"


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory, base: Base) -> Iterator[WindowsHost]:
    with windows_host(tmp_path_factory.mktemp("host"), base, features=FRESH) as running:
        yield running


def sftp(host: WindowsHost, *commands: str) -> subprocess.CompletedProcess[str]:
    command_line = ["sftp", "-b", "-", *host.ssh_options(), f"{host.user}@{host.address}"]
    batch = "".join(f"{command}\n" for command in commands)
    return subprocess.run(command_line, input=batch, capture_output=True, text=True, check=False)


def create_service(host: WindowsHost, name: str, *, start: str = "demand", depend: str = "") -> str:
    path = rf"C:\test\{name}.exe"
    host.put(programs.stand_in("service"), path)
    dependencies = f" depend= {depend}" if depend else ""
    host.done(
        f'sc create {name} binPath= "{path} --name \\"{name} one\\"" start= {start}{dependencies}'
    )
    return path


def test_cmd_reports_the_configured_build_and_keeps_quotes(host: WindowsHost) -> None:
    assert "10.0.20348" in host.done("ver")
    assert host.done('echo "a  b"').strip() == '"a  b"'
    found = host.done(r'reg query "HKLM\SOFTWARE\Microsoft\Windows NT\CurrentVersion"')
    assert "Windows Server 2022" in found


def test_sc_stores_services_in_the_registry_as_windows_does(
    host: WindowsHost,
) -> None:
    create_service(host, "kept", depend="one/two")
    host.done("sc failure kept reset= 300 actions= restart/10000/restart/20000")
    host.done('sc description kept "Some words"')
    found = host.done(r"reg query HKLM\SYSTEM\CurrentControlSet\Services\kept")
    assert r'C:\test\kept.exe --name "kept one"' in found
    assert r"one\0two" in found
    assert "Some words" in found
    actions = "2C010000 00000000 00000000 02000000 14000000 01000000 10270000 01000000 204E0000"
    assert actions.replace(" ", "") in found
    host.done("sc config kept depend= three")
    assert "three" in host.done("sc qc kept")
    host.done("sc delete kept")
    assert "FAILED 1060" in host.run("sc query kept").out


def test_service_starts_its_dependencies_which_cannot_be_stopped(
    host: WindowsHost,
) -> None:
    create_service(host, "below")
    create_service(host, "above", depend="below")
    host.start("above")
    assert host.services("below") == {"below": "running"}
    assert "FAILED 1051" in host.run("sc stop below").out
    for name in ("above", "below"):
        host.stop(name)
        host.done(f"sc delete {name}")


def test_running_program_cannot_be_deleted_or_replaced(host: WindowsHost) -> None:
    path = create_service(host, "locked")
    host.start("locked")
    before = host.path(path).read_bytes()
    host.run(rf"del {path}")
    assert host.run(rf"copy /y C:\windows\system32\sc.exe {path}").code != 0
    assert host.run(rf"move /y C:\windows\system32\sc.exe {path}").code != 0
    assert "Failure" in sftp(host, f"rename /C:/windows/notepad.exe {sftp_path(path)}").stderr
    assert host.path(path).read_bytes() == before
    host.stop("locked")
    host.done(f"del {path}")
    assert not host.path(path).exists()


def test_open_file_is_locked_and_certutil_reports_it(host: WindowsHost) -> None:
    host.path(r"C:\held.txt").write_text("content")
    with host.held(r"C:\held.txt"):
        assert "0x80070020" in host.run(r"certutil -hashfile C:\held.txt SHA256").out
    found = host.done(r"certutil -hashfile C:\held.txt SHA256").splitlines()[1]
    assert found == hashlib.sha256(b"content").hexdigest()
    assert "0x80070002" in host.run(r"certutil -hashfile C:\none.txt SHA256").out


def test_sftp_serves_drive_c_case_insensitively(host: WindowsHost, tmp_path: Path) -> None:
    content = tmp_path / "content"
    content.write_bytes(bytes(range(256)) * 5000)
    put = sftp(host, "mkdir /C:/Sftp", f"put {content} /C:/Sftp/File.bin", "ls /C:/sFTP")
    assert "File.bin" in put.stdout, put.stderr
    assert host.path(r"C:\Sftp\File.bin").read_bytes() == content.read_bytes()
    got = sftp(host, f"get /c:/sftp/FILE.BIN {tmp_path / 'back'}")
    assert (tmp_path / "back").read_bytes() == content.read_bytes(), got.stderr


def test_upload_to_full_disk_fails(host: WindowsHost, tmp_path: Path) -> None:
    content = tmp_path / "content"
    content.write_bytes(bytes(1 << 20))
    with host.full_disk():
        assert sftp(host, f"put {content} /C:/more.bin").returncode != 0
    assert sftp(host, f"put {content} /C:/more.bin").returncode == 0


def test_powershell_rejects_unsupported_commands(host: WindowsHost) -> None:
    free = host.done('powershell -NoProfile -Command "(Get-PSDrive -Name C).Free"')
    assert 1 << 30 < int(free) < 4 << 30
    other = host.run('powershell -NoProfile -Command "Get-Service hns"')
    assert other.code == 1
    assert "'Get-Service' is not recognized" in other.out


def test_feature_is_enabled_by_a_reboot_which_starts_services(host: WindowsHost) -> None:
    create_service(host, "automatic", start="auto")
    query = "dism /online /english /get-featureinfo /featurename:Containers"
    networks = (
        'powershell -NoProfile -Command "Get-HnsNetwork | Select-Object -Property Id, Name, Type'
        ' | ConvertTo-Json -Compress"'
    )
    assert "State : Disabled" in host.done(query)
    assert "not recognized" in host.run(networks).out
    enabled = host.run("dism /online /enable-feature /featurename:Containers /all /norestart").code
    assert enabled == 3010 % 256
    assert "State : Enable Pending" in host.done(query)
    host.add_network(GUID, "nat", "nat")

    host.reboot()

    assert "State : Enabled" in host.done(query)
    until(lambda: host.services("automatic") == {"automatic": "running"}, "the service is running")
    assert json.loads(host.done(networks)) == {"ID": GUID, "Name": "nat", "Type": "nat"}
    assert "0x800f080c" in host.run(query.replace("Containers", "Nonsense")).out


def test_containerd_runs_as_a_service_and_serves_crictl(
    host: WindowsHost,
) -> None:
    host.put(programs.containerd(), CONTAINERD)
    host.put(programs.crictl(), r"C:\k\crictl.exe")
    log = r"C:\k\containerd.log"
    host.done(f'sc create containerd binPath= "{CONTAINERD} --run-service --log-file {log}"')
    host.start("containerd")
    until(lambda: host.run(f"{CRICTL} version").code == 0, "containerd is ready")
    handlers = json.loads(host.done(f"{CRICTL} info 2>nul"))["runtimeHandlers"]
    found = {handler.get("name", "") for handler in handlers}
    assert found == {"", "runhcs-wcow-process", "runhcs-wcow-hypervisor"}
    host.stop("containerd")


def test_changed_host_key_is_presented(host: WindowsHost) -> None:
    before = host.host_key()
    host.change_host_key()
    until(lambda: host.host_key() not in ("", before), "sshd presents the new key")


def test_powered_off_host_has_no_processes_and_boots_again(tmp_path: Path, base: Base) -> None:
    with windows_host(tmp_path / "host", base, build=SERVER_2019) as host:
        assert "10.0.17763" in host.done("ver")
        host.install_docker()
        processes = host.machine.processes()
        assert len(processes) > 5
        host.die()
        eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in processes))
        assert host.run("ver").code == 255
        host.switch_on()
        host.wait_until_up()
        assert "10.0.17763" in host.done("ver")
    assert str(tmp_path) not in Path("/proc/mounts").read_text()
    groups = (host.machine.container, f"*/{host.machine.container}")
    assert not [found for pattern in groups for found in CONTROL_GROUPS.glob(pattern)]


def test_several_hosts_run_side_by_side(tmp_path: Path, base: Base) -> None:
    with ExitStack() as stack:
        hosts = [
            stack.enter_context(windows_host(tmp_path / name, base, name=name))
            for name in ("win-a", "win-b", "win-c")
        ]
        names = [host.done("hostname").strip().lower() for host in hosts]
        assert names == ["win-a", "win-b", "win-c"]


def sftp_path(path: str) -> str:
    return "/" + path.replace("\\", "/")
