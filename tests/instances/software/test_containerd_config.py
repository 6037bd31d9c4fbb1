"""containerd configuration: the handlers it serves, and what validation rejects."""

import tomllib
from typing import Any

import pytest

from winpod.instances.errors import InvalidConfiguration
from winpod.instances.planner.versions import Version
from winpod.instances.software.containerd_config import (
    Value,
    containerd_config,
    registry_files,
    render_toml,
)
from winpod.instances.software.containerd_options import check_config
from winpod.instances.software.desired_state import served_handlers
from winpod.operator.instance_settings import InstanceSettings
from winpod.windows.builds import Build

W2019, W2022, W2025 = Build(10, 0, 17763, 1), Build(10, 0, 20348, 2), Build(10, 0, 26100, 3)
OLD, NEW = Version(1, 7, 29), Version(2, 4, 2)
PROCESS, HYPERVISOR = "runhcs-wcow-process", "runhcs-wcow-hypervisor"
SETTINGS = InstanceSettings(pause_image="registry.example/pause:1", pull_progress_seconds=600)


def config(containerd: Version, build: Build = W2022) -> dict[str, Any]:
    handlers = served_handlers(build, None, hypervisor=True)
    return tomllib.loads(containerd_config(containerd, handlers, SETTINGS))


@pytest.mark.parametrize(
    ("host", "pause", "hypervisor", "names"),
    [
        (W2019, None, False, [PROCESS]),
        (W2019, None, True, [PROCESS, HYPERVISOR, f"{HYPERVISOR}-17763"]),
        (W2022, W2022, True, [PROCESS, HYPERVISOR, f"{HYPERVISOR}-20348"]),
        (W2022, W2019, True, [f"{HYPERVISOR}-17763"]),
        (W2025, W2022, True, [PROCESS, f"{HYPERVISOR}-20348"]),
        (W2025, W2022, False, [PROCESS]),
        (W2025, W2019, True, [f"{HYPERVISOR}-17763"]),
    ],
)
def test_handlers_match_the_build_of_the_pause_image(
    host: Build, pause: Build | None, hypervisor: bool, names: list[str]
) -> None:
    handlers = served_handlers(host, pause, hypervisor=hypervisor)
    assert [handler.name for handler in handlers] == names


@pytest.mark.parametrize(
    ("host", "pause", "hypervisor"),
    [(W2022, W2019, False), (W2019, W2022, False), (W2019, W2022, True), (W2022, W2025, True)],
)
def test_pause_image_that_cannot_start_is_rejected(
    host: Build, pause: Build, hypervisor: bool
) -> None:
    with pytest.raises(InvalidConfiguration) as caught:
        served_handlers(host, pause, hypervisor=hypervisor)
    assert f"the pause image is of {pause.base}" in str(caught.value)
    assert "pauseBuild" in caught.value.hint


def test_containerd_2_gets_config_version_3() -> None:
    document = config(NEW)
    images = document["plugins"]["io.containerd.cri.v1.images"]
    runtime = document["plugins"]["io.containerd.cri.v1.runtime"]
    assert document["version"] == 3
    assert images["snapshotter"] == "windows"
    assert images["image_pull_progress_timeout"] == "600s"
    assert images["pinned_images"] == {"sandbox": "registry.example/pause:1"}
    assert images["registry"] == {"config_path": r"C:\k\containerd\registries"}
    assert runtime["cni"] == {"bin_dirs": [r"C:\k\cni\bin"], "conf_dir": r"C:\k\cni\config"}
    assert runtime["containerd"]["default_runtime_name"] == PROCESS


def test_containerd_1_gets_config_version_2() -> None:
    document = config(OLD)
    cri = document["plugins"]["io.containerd.grpc.v1.cri"]
    assert document["version"] == 2
    assert cri["sandbox_image"] == "registry.example/pause:1"
    assert cri["image_pull_progress_timeout"] == "600s"
    assert cri["containerd"]["snapshotter"] == "windows"
    assert cri["cni"] == {"bin_dir": r"C:\k\cni\bin", "conf_dir": r"C:\k\cni\config"}


def test_containerd_2_0_has_a_single_cni_bin_dir() -> None:
    runtime = config(Version(2, 0, 5))["plugins"]["io.containerd.cri.v1.runtime"]
    assert runtime["cni"]["bin_dir"] == r"C:\k\cni\bin"


def test_containerd_without_pull_progress_timeout_is_rejected() -> None:
    with pytest.raises(InvalidConfiguration, match=r"Use containerd 1\.7 or later"):
        config(Version(1, 6, 0))


@pytest.mark.parametrize("version", [OLD, Version(2, 0, 0), NEW])
@pytest.mark.parametrize("build", [W2019, W2022, W2025])
def test_handlers_and_isolation_are_the_same_in_both_config_versions(
    version: Version, build: Build
) -> None:
    plugins = config(version, build)["plugins"]
    plugin = plugins.get("io.containerd.grpc.v1.cri") or plugins["io.containerd.cri.v1.runtime"]
    runtimes = plugin["containerd"]["runtimes"]
    assert set(runtimes) == {PROCESS, HYPERVISOR, f"{HYPERVISOR}-{build.number}"}
    for name, runtime in runtimes.items():
        assert runtime["runtime_type"] == "io.containerd.runhcs.v1"
        assert runtime["container_annotations"] == ["io.microsoft.container.*"]
        assert ("pod_annotations" in runtime) == (name != PROCESS)
        assert runtime["options"].get("SandboxIsolation", 0) == int(name != PROCESS)


def test_mirrors_are_in_the_registry_directories_of_windows() -> None:
    mirrors = (("docker.io", ("https://one.example", "http://two.example")), ("r.example:5000", ()))
    hub, port = registry_files(InstanceSettings(mirrors=mirrors))
    assert hub.path == r"C:\k\containerd\registries\docker.io\hosts.toml"
    assert port.path == r"C:\k\containerd\registries\r.example_5000_\hosts.toml"
    hosts = tomllib.loads((hub.content or b"").decode())["host"]
    assert list(hosts) == ["https://one.example", "http://two.example"]
    assert hosts["http://two.example"] == {"capabilities": ["pull", "resolve"]}


IMAGES, RUNTIME = "io.containerd.cri.v1.images", "io.containerd.cri.v1.runtime"
RUNTIMES = ("plugins", RUNTIME, "containerd", "runtimes")
OPTIONS = (*RUNTIMES, PROCESS, "options")


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("verison",), 3, "verison is not a setting"),
        (("version",), 2, "version is 2, and must be from 3 to 3"),
        (("root",), "/var/lib/containerd", r"and must be like C:\k\containerd"),
        (("grpc", "address"), "/run/containerd.sock", r"must be like \\.\pipe"),
        (("debug", "level"), "loud", 'debug.level is "loud", and must be one of trace'),
        (("plugins", "io.containerd.grpc.v1.cri"), {}, "is not a setting"),
        (("plugins", IMAGES, "snapshotter"), "overlayfs", 'is "overlayfs", and must be one of'),
        (("plugins", IMAGES, "image_pull_progress_timeout"), "30", "must be like 30m or 1800s"),
        (("plugins", IMAGES, "image_pull_progress_timeout"), 30, "must be text"),
        (("plugins", IMAGES, "pinned_images", "sandbox"), "Pause:", "is invalid"),
        (("plugins", IMAGES, "pinned_images", "pause"), "pause:1", "pause is not a setting"),
        (("plugins", IMAGES, "registry", "mirrors"), {}, "mirrors is not a setting"),
        (("plugins", IMAGES, "max_concurrent_downloads"), 0, "must be from 1 to 100"),
        (("plugins", IMAGES, "max_concurrent_downloads"), 2.5, "must be a whole number"),
        (("plugins", IMAGES, "sandbox_image"), "pause:1", "sandbox_image is not a setting"),
        (("plugins", RUNTIME, "cni", "bin_dir"), r"C:\k", "bin_dir is not a setting"),
        (("plugins", RUNTIME, "cni", "bin_dirs"), r"C:\k", "must be a list"),
        (
            ("plugins", RUNTIME, "containerd", "default_runtime_name"),
            "runc",
            'is "runc", which is not one of its runtimes',
        ),
        ((*RUNTIMES, "Process"), {}, "is not a valid handler name"),
        ((*RUNTIMES, "other"), {}, "other.runtime_type is required"),
        ((*RUNTIMES, PROCESS, "runtime_type"), "io.containerd.runc.v2", "must be one of"),
        ((*RUNTIMES, PROCESS, "snapshotter"), "windows-lcow", "must be one of windows"),
        ((*RUNTIMES, PROCESS, "pod_annotations"), "io.*", "must be a list"),
        ((*OPTIONS, "SandboxIsolation"), 1, "must be 1 for handlers named hypervisor"),
        ((*OPTIONS, "SandboxIsolation"), 2, "must be from 0 to 1"),
        ((*OPTIONS, "ScaleCpuLimitsToSandbox"), True, "needs SandboxIsolation to be 1"),
        ((*OPTIONS, "SandboxOsVersion"), "10.0.17763", "SandboxOsVersion is not a setting"),
        ((*OPTIONS, "SandboxImage"), "pause:1", "SandboxImage is not a setting"),
        ((*OPTIONS, "ScrubLogs"), "yes", "must be true or false"),
        ((*OPTIONS, "VmMemorySizeInMb"), 1, "must be from 256"),
        (
            (*RUNTIMES, HYPERVISOR, "options", "SandboxIsolation"),
            0,
            "must be 1 for handlers named hypervisor",
        ),
    ],
)
def test_option_that_containerd_would_ignore_is_rejected(
    path: tuple[str, ...], value: object, message: str
) -> None:
    document = config(NEW)
    table = document
    for part in path[:-1]:
        table = table[part]
    table[path[-1]] = value
    with pytest.raises(InvalidConfiguration) as caught:
        check_config(render_toml(document), NEW)
    assert message in str(caught.value)


def test_option_of_another_containerd_version_is_rejected() -> None:
    text = containerd_config(NEW, served_handlers(W2022, None, hypervisor=False), SETTINGS)
    for version in (OLD, Version(2, 0, 0)):
        with pytest.raises(InvalidConfiguration):
            check_config(text, version)


def test_invalid_toml_is_rejected() -> None:
    with pytest.raises(InvalidConfiguration, match="is not TOML"):
        check_config("[", NEW)


def test_rendered_toml_round_trips() -> None:
    document: dict[str, Value] = {
        "a": r"C:\k" + '"\n',
        "n": 3,
        "yes": True,
        "list": ["x", "y"],
        "t": {"a.b": {"c": "ü"}, "empty": {}},
    }
    assert tomllib.loads(render_toml(document)) == document
