"""Container specs: the pod's settings merged over the image's."""

import json
from dataclasses import replace

import pytest

from winpod.compute.resources import ResourceRequest
from winpod.compute.spec import (
    ContainerRequest,
    ContainerSpec,
    HostProcessUnsupported,
    ImageConfig,
    Mount,
    MountSourceKind,
    build_spec,
    read_image_config,
)
from winpod.errors import InvalidInput
from winpod.windows.users import ADMINISTRATOR, USER, LogonFailure

IMAGE = ImageConfig(entrypoint=("app.exe",), cmd=("--serve",))


def make_spec(requested: ContainerRequest, image: ImageConfig = IMAGE) -> ContainerSpec:
    return build_spec(requested, image, hostname="web-0", host_cpus=4)


def mount(
    destination: str, kind: MountSourceKind = MountSourceKind.DIRECTORY, source: str = "/x"
) -> Mount:
    return Mount(source, destination, kind)


@pytest.mark.parametrize(
    ("requested", "line"),
    [
        (ContainerRequest(), "app.exe --serve"),
        (ContainerRequest(args=("a b",)), 'app.exe "a b"'),
        (ContainerRequest(command=("cmd", "/c", 'echo "x"')), 'cmd /c "echo \\"x\\""'),
    ],
)
def test_pod_command_overrides_the_images(requested: ContainerRequest, line: str) -> None:
    assert make_spec(requested).command_line == line


def test_missing_command_is_refused() -> None:
    with pytest.raises(InvalidInput, match="no command specified"):
        make_spec(ContainerRequest(), ImageConfig())


def test_environment_precedence_is_pod_then_image_then_system() -> None:
    image = replace(IMAGE, env=(("Path", "C:\\bin"), ("username", "image")))
    env = dict(make_spec(ContainerRequest(env=(("PATH", "C:\\pod"),)), image).env)
    assert env["PATH"] == "C:\\pod"
    assert env["username"] == "image"
    assert env["COMPUTERNAME"] == "WEB-0"
    assert env["NUMBER_OF_PROCESSORS"] == "4"
    assert "Path" not in env


def test_number_of_processors_follows_the_cpu_count() -> None:
    env = dict(make_spec(ContainerRequest(resources=ResourceRequest(cpu_count=2))).env)
    assert env["NUMBER_OF_PROCESSORS"] == "2"


@pytest.mark.parametrize(
    ("requested", "image", "cwd"),
    [("", "", "C:\\"), ("", "C:\\app", "C:\\app"), ("/data", "C:\\app", "C:\\data")],
)
def test_working_directory_is_the_pods_or_the_images(requested: str, image: str, cwd: str) -> None:
    assert make_spec(ContainerRequest(cwd=requested), replace(IMAGE, cwd=image)).cwd == cwd


def test_user_is_the_pods_or_the_images_or_the_administrator() -> None:
    assert make_spec(ContainerRequest()).user == ADMINISTRATOR
    assert make_spec(ContainerRequest(), replace(IMAGE, user="ContainerUser")).user == USER
    assert make_spec(ContainerRequest(user="ContainerUser")).user == USER
    with pytest.raises(LogonFailure):
        make_spec(ContainerRequest(user="nobody"))


def test_non_root_refuses_the_administrator() -> None:
    with pytest.raises(InvalidInput, match="will break non-root policy"):
        make_spec(ContainerRequest(run_as_non_root=True))
    assert make_spec(ContainerRequest(run_as_non_root=True, user="ContainerUser")).user == USER


def test_mounts_are_unique_and_outer_before_inner() -> None:
    requested = (mount("/data/inner"), mount("C:\\Data"), mount("c:\\DATA\\inner", source="/y"))
    placed = make_spec(ContainerRequest(mounts=requested)).mounts
    assert [(m.destination, m.source) for m in placed] == [
        ("C:\\Data", "/x"),
        ("c:\\DATA\\inner", "/y"),
    ]


def test_mount_replaces_an_image_volume() -> None:
    image = replace(IMAGE, volumes=("C:\\data", "C:\\logs"))
    made = make_spec(ContainerRequest(mounts=(mount("c:\\DATA"),)), image)
    assert made.volumes == ("C:\\logs",)


@pytest.mark.parametrize("destination", ["C:", "c:\\", "/"])
def test_drive_root_cannot_be_a_mount_destination(destination: str) -> None:
    with pytest.raises(InvalidInput, match="destination path can not be C drive"):
        make_spec(ContainerRequest(mounts=(mount(destination),)))


def test_pipe_source_is_a_pipe_or_a_unix_socket() -> None:
    for kind in (MountSourceKind.PIPE, MountSourceKind.SOCKET):
        pipe = mount("\\\\.\\pipe\\docker_engine", kind)
        assert make_spec(ContainerRequest(mounts=(pipe,))).mounts == (pipe,)
    wrong = [
        (mount("C:\\pipe", MountSourceKind.PIPE), "only one of the two is a named pipe"),
        (mount("\\\\.\\pipe\\x", MountSourceKind.MISSING), "only one of the two is a named pipe"),
        (mount("C:\\s.sock", MountSourceKind.SOCKET), "Mount it on .* and open that"),
        (mount("\\\\.\\pipe\\", MountSourceKind.SOCKET), "is not a named pipe"),
        (mount("\\\\.\\pipe\\a/b", MountSourceKind.SOCKET), "is not a named pipe"),
        (mount("\\\\.\\pipe\\x", MountSourceKind.PIPE, "\\\\.\\pipe\\.."), "is not a named pipe"),
    ]
    for one, sentence in wrong:
        with pytest.raises(InvalidInput, match=sentence):
            make_spec(ContainerRequest(mounts=(one,)))


def test_host_process_containers_are_always_refused() -> None:
    with pytest.raises(HostProcessUnsupported, match="no Windows host to run on"):
        make_spec(ContainerRequest(host_process=True))


def test_credential_spec_is_validated_and_stored() -> None:
    accounts = {"GroupManagedServiceAccounts": [{"Name": "web", "Scope": "CORP"}]}
    spec = json.dumps({"CmsPlugins": ["ActiveDirectory"], "ActiveDirectoryConfig": accounts})
    assert make_spec(ContainerRequest(credential_spec=spec)).credential_spec == spec
    for wrong in ("{}", "no json", "[]", '{"ActiveDirectoryConfig": 1}'):
        with pytest.raises(InvalidInput, match="gMSA credential spec"):
            make_spec(ContainerRequest(credential_spec=wrong))


def test_every_field_of_an_image_config_is_optional() -> None:
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
