"""containerd's configuration: version 2 of the file for containerd 1.7, and 3 for 2.x.

What is written is checked by our own table (containerd_options), because containerd starts with
anything and does not follow what it does not know.
"""

from __future__ import annotations

from winpod.cluster.instance_settings import InstanceSettings
from winpod.instances import paths
from winpod.instances.errors import BadConfiguration
from winpod.instances.rules.desired import WantedFile, written
from winpod.instances.rules.stopping import CONTAINERD
from winpod.instances.rules.versions import Version
from winpod.instances.software.containerd_options import check_config
from winpod.instances.software.toml import Value, render_toml
from winpod.windows.handlers import Handler
from winpod.windows.isolation import Isolation

PIPE = r"\\.\pipe\containerd-containerd"
RUNTIME_TYPE = "io.containerd.runhcs.v1"
_OLDEST = Version(1, 7, 0)
_LIST_OF_DIRECTORIES = Version(2, 1, 0)


def containerd_config(
    containerd: Version, handlers: tuple[Handler, ...], settings: InstanceSettings
) -> str:
    if containerd < _OLDEST:
        raise BadConfiguration(
            f"the payload has containerd {containerd}, which knows no timeout for pulls that make "
            "no progress.",
            "Use containerd 1.7 or later.",
        )
    plugins = _version_2 if containerd.major < 2 else _version_3
    document: dict[str, Value] = {
        "version": 2 if containerd.major < 2 else 3,
        "root": paths.CONTAINERD_ROOT,
        "state": paths.CONTAINERD_STATE,
        "grpc": {"address": PIPE},
        "debug": {"level": "info"},
        "plugins": plugins(containerd, handlers, settings),
    }
    text = render_toml(document)
    check_config(text, containerd)
    return text


def registry_files(settings: InstanceSettings) -> tuple[WantedFile, ...]:
    """A `hosts.toml` for each registry with mirrors; containerd reads them with every pull."""
    return tuple(
        written(
            rf"{registry_directory(registry)}\hosts.toml",
            render_toml({"host": {url: {"capabilities": ["pull", "resolve"]} for url in urls}}),
        )
        for registry, urls in settings.mirrors
    )


def registry_directory(registry: str) -> str:
    """containerd looks for HOST_PORT_ where a colon cannot be in a name."""
    host, colon, port = registry.rpartition(":")
    return rf"{paths.REGISTRIES}\{f'{host}_{port}_' if colon else registry}"


def containerd_command() -> tuple[str, ...]:
    return (
        rf"{paths.BIN}\{CONTAINERD}.exe",
        "--config",
        paths.CONTAINERD_CONFIG,
        "--log-file",
        rf"{paths.CONTAINERD_LOGS}\containerd.log",
        "--run-service",
    )


def _version_2(
    _: Version, handlers: tuple[Handler, ...], settings: InstanceSettings
) -> dict[str, Value]:
    return {
        "io.containerd.grpc.v1.cri": {
            "sandbox_image": settings.pause_image,
            "image_pull_progress_timeout": f"{settings.pull_progress_seconds}s",
            "containerd": {"snapshotter": "windows", **_runtimes(handlers)},
            "cni": {"bin_dir": paths.CNI_BIN, "conf_dir": paths.CNI_CONFIG},
            "registry": {"config_path": paths.REGISTRIES},
        }
    }


def _version_3(
    containerd: Version, handlers: tuple[Handler, ...], settings: InstanceSettings
) -> dict[str, Value]:
    directories: dict[str, Value] = {"bin_dirs": [paths.CNI_BIN]}
    if containerd < _LIST_OF_DIRECTORIES:
        directories = {"bin_dir": paths.CNI_BIN}
    return {
        "io.containerd.cri.v1.images": {
            "snapshotter": "windows",
            "image_pull_progress_timeout": f"{settings.pull_progress_seconds}s",
            "pinned_images": {"sandbox": settings.pause_image},
            "registry": {"config_path": paths.REGISTRIES},
        },
        "io.containerd.cri.v1.runtime": {
            "containerd": _runtimes(handlers),
            "cni": {**directories, "conf_dir": paths.CNI_CONFIG},
        },
    }


def _runtimes(handlers: tuple[Handler, ...]) -> dict[str, Value]:
    return {
        "default_runtime_name": handlers[0].name,
        "runtimes": {handler.name: _runtime(handler) for handler in handlers},
    }


def _runtime(handler: Handler) -> Value:
    options: dict[str, Value] = {"ScrubLogs": True}
    runtime: dict[str, Value] = {"runtime_type": RUNTIME_TYPE}
    if handler.isolation is Isolation.HYPERVISOR:
        runtime["pod_annotations"] = ["io.microsoft.virtualmachine.*"]
        options |= {"SandboxIsolation": 1, "ScaleCpuLimitsToSandbox": True}
    runtime["container_annotations"] = ["io.microsoft.container.*"]
    return runtime | {"options": options}
