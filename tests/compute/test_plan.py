"""Plans: the pod over the image, by Windows' rules."""

import json
from dataclasses import replace

import pytest

from winpod.compute.plan import (
    ContainerAsked,
    HostProcessRefused,
    ImageConfig,
    Mount,
    Plan,
    SourceKind,
    make_plan,
    read_image_config,
)
from winpod.compute.resources import Asked
from winpod.windows.errors import InvalidInput
from winpod.windows.users import ADMINISTRATOR, USER, LogonFailure

IMAGE = ImageConfig(entrypoint=("app.exe",), cmd=("--serve",))


def plan(asked: ContainerAsked, image: ImageConfig = IMAGE) -> Plan:
    return make_plan(asked, image, hostname="web-0", host_cpus=4)


def mount(destination: str, kind: SourceKind = SourceKind.DIRECTORY, source: str = "/x") -> Mount:
    return Mount(source, destination, kind)


@pytest.mark.parametrize(
    ("asked", "line"),
    [
        (ContainerAsked(), "app.exe --serve"),
        (ContainerAsked(args=("a b",)), 'app.exe "a b"'),
        (ContainerAsked(command=("cmd", "/c", 'echo "x"')), 'cmd /c "echo \\"x\\""'),
    ],
)
def test_the_command_is_the_pods_over_the_images(asked: ContainerAsked, line: str) -> None:
    assert plan(asked).command_line == line


def test_no_command_at_all_is_refused() -> None:
    with pytest.raises(InvalidInput, match="no command specified"):
        plan(ContainerAsked(), ImageConfig())


def test_the_environment_is_ours_then_the_images_then_the_pods() -> None:
    image = replace(IMAGE, env=(("Path", "C:\\bin"), ("username", "image")))
    env = dict(plan(ContainerAsked(env=(("PATH", "C:\\pod"),)), image).env)
    assert env["PATH"] == "C:\\pod"
    assert env["username"] == "image"
    assert env["COMPUTERNAME"] == "WEB-0"
    assert env["NUMBER_OF_PROCESSORS"] == "4"
    assert "Path" not in env


def test_the_processors_a_container_may_use_are_those_it_sees() -> None:
    env = dict(plan(ContainerAsked(resources=Asked(cpu_count=2))).env)
    assert env["NUMBER_OF_PROCESSORS"] == "2"


@pytest.mark.parametrize(
    ("asked", "image", "cwd"),
    [("", "", "C:\\"), ("", "C:\\app", "C:\\app"), ("/data", "C:\\app", "C:\\data")],
)
def test_the_working_directory_is_the_pods_or_the_images(asked: str, image: str, cwd: str) -> None:
    assert plan(ContainerAsked(cwd=asked), replace(IMAGE, cwd=image)).cwd == cwd


def test_users_are_the_pods_or_the_images_or_the_administrator() -> None:
    assert plan(ContainerAsked()).user == ADMINISTRATOR
    assert plan(ContainerAsked(), replace(IMAGE, user="ContainerUser")).user == USER
    assert plan(ContainerAsked(user="ContainerUser")).user == USER
    with pytest.raises(LogonFailure):
        plan(ContainerAsked(user="nobody"))


def test_non_root_refuses_the_administrator() -> None:
    with pytest.raises(InvalidInput, match="will break non-root policy"):
        plan(ContainerAsked(run_as_non_root=True))
    assert plan(ContainerAsked(run_as_non_root=True, user="ContainerUser")).user == USER


def test_mounts_are_placed_once_outer_before_inner() -> None:
    asked = (mount("/data/inner"), mount("C:\\Data"), mount("c:\\DATA\\inner", source="/y"))
    placed = plan(ContainerAsked(mounts=asked)).mounts
    assert [(m.destination, m.source) for m in placed] == [
        ("C:\\Data", "/x"),
        ("c:\\DATA\\inner", "/y"),
    ]


def test_a_mount_takes_the_place_of_an_image_volume() -> None:
    image = replace(IMAGE, volumes=("C:\\data", "C:\\logs"))
    made = plan(ContainerAsked(mounts=(mount("c:\\DATA"),)), image)
    assert made.volumes == ("C:\\logs",)


@pytest.mark.parametrize("destination", ["C:", "c:\\", "/"])
def test_the_drive_itself_cannot_be_a_mount(destination: str) -> None:
    with pytest.raises(InvalidInput, match="destination path can not be C drive"):
        plan(ContainerAsked(mounts=(mount(destination),)))


def test_a_pipe_leads_to_a_pipe_or_a_unix_socket_only() -> None:
    for kind in (SourceKind.PIPE, SourceKind.SOCKET):
        pipe = mount("\\\\.\\pipe\\docker_engine", kind)
        assert plan(ContainerAsked(mounts=(pipe,))).mounts == (pipe,)
    wrong = [
        (mount("C:\\pipe", SourceKind.PIPE), "only one of the two is a named pipe"),
        (mount("\\\\.\\pipe\\x", SourceKind.MISSING), "only one of the two is a named pipe"),
        (mount("C:\\s.sock", SourceKind.SOCKET), "Mount it on .* and open that"),
        (mount("\\\\.\\pipe\\", SourceKind.SOCKET), "is not a named pipe"),
        (mount("\\\\.\\pipe\\a/b", SourceKind.SOCKET), "is not a named pipe"),
        (mount("\\\\.\\pipe\\x", SourceKind.PIPE, "\\\\.\\pipe\\.."), "is not a named pipe"),
    ]
    for one, sentence in wrong:
        with pytest.raises(InvalidInput, match=sentence):
            plan(ContainerAsked(mounts=(one,)))


def test_host_process_containers_are_always_refused() -> None:
    with pytest.raises(HostProcessRefused, match="no Windows host to be part of"):
        plan(ContainerAsked(host_process=True))


def test_a_credential_spec_is_checked_and_kept() -> None:
    accounts = {"GroupManagedServiceAccounts": [{"Name": "web", "Scope": "CORP"}]}
    spec = json.dumps({"CmsPlugins": ["ActiveDirectory"], "ActiveDirectoryConfig": accounts})
    assert plan(ContainerAsked(credential_spec=spec)).credential_spec == spec
    for wrong in ("{}", "no json", "[]", '{"ActiveDirectoryConfig": 1}'):
        with pytest.raises(InvalidInput, match="gMSA credential spec"):
            plan(ContainerAsked(credential_spec=wrong))


def test_an_image_config_is_read_and_may_leave_everything_out() -> None:
    config = {
        "Entrypoint": ["a"],
        "Cmd": ["b"],
        "ArgsEscaped": True,
        "Env": ["A=1"],
        "WorkingDir": "C:\\app",
        "User": "ContainerUser",
        "Volumes": {"C:\\data": {}},
        "StopSignal": "3",
    }
    assert read_image_config(json.dumps({"config": config}).encode()) == ImageConfig(
        ("a",), ("b",), True, (("A", "1"),), "C:\\app", "ContainerUser", ("C:\\data",), "3"
    )
    assert read_image_config(b'{"config": null}') == ImageConfig()
    assert read_image_config(b"{}") == ImageConfig()
