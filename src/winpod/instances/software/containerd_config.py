"""containerd configuration: file version 2 for containerd 1.7, version 3 for 2.x.

The result is checked against `containerd_options`, because containerd starts with any file and
ignores unknown options.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from winpod.instances import paths
from winpod.instances.errors import InvalidConfiguration
from winpod.instances.planner.desired import DesiredFile, inline_file
from winpod.instances.planner.state import CONTAINERD
from winpod.instances.planner.versions import Version
from winpod.instances.software.containerd_options import check_config
from winpod.labels import RUNHCS_RUNTIME_TYPE
from winpod.operator.instance_settings import InstanceSettings
from winpod.windows.handlers import Handler
from winpod.windows.isolation import Isolation

Value = str | int | bool | list[str] | Mapping[str, "Value"]
_BARE = re.compile(r"[A-Za-z0-9_-]+")


def render_toml(document: Mapping[str, Value]) -> str:
    """Render TOML: values first, then tables, keys in the given order."""
    return "\n".join(_lines(document, ())) + "\n"


def _lines(table: Mapping[str, Value], path: tuple[str, ...]) -> list[str]:
    values = [(key, value) for key, value in table.items() if not isinstance(value, Mapping)]
    lines = [f"{_key(key)} = {json.dumps(value, ensure_ascii=False)}" for key, value in values]
    if path and (lines or not table):
        lines.insert(0, f"\n[{'.'.join(map(_key, path))}]")
    for key, value in table.items():
        if isinstance(value, Mapping):
            lines += _lines(value, (*path, key))
    return lines


def _key(key: str) -> str:
    return key if _BARE.fullmatch(key) else json.dumps(key)


PIPE = r"\\.\pipe\containerd-containerd"
_MINIMUM = Version(1, 7, 0)
_BIN_DIRS_SINCE = Version(2, 1, 0)


def containerd_config(
    containerd: Version, handlers: tuple[Handler, ...], settings: InstanceSettings
) -> str:
    if containerd < _MINIMUM:
        raise InvalidConfiguration(
            f"the payload has containerd {containerd}, which has no timeout for pulls without "
            "progress.",
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


def registry_files(settings: InstanceSettings) -> tuple[DesiredFile, ...]:
    """Return a `hosts.toml` for each registry with mirrors; containerd reads them at every pull."""
    return tuple(
        inline_file(
            rf"{registry_directory(registry)}\hosts.toml",
            render_toml({"host": {url: {"capabilities": ["pull", "resolve"]} for url in urls}}),
        )
        for registry, urls in settings.mirrors
    )


def registry_directory(registry: str) -> str:
    """Return the directory of a registry: `HOST_PORT_`, as Windows paths cannot contain a colon."""
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
    if containerd < _BIN_DIRS_SINCE:
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
    runtime: dict[str, Value] = {"runtime_type": RUNHCS_RUNTIME_TYPE}
    if handler.isolation is Isolation.HYPERVISOR:
        runtime["pod_annotations"] = ["io.microsoft.virtualmachine.*"]
        options |= {"SandboxIsolation": 1, "ScaleCpuLimitsToSandbox": True}
    runtime["container_annotations"] = ["io.microsoft.container.*"]
    return runtime | {"options": options}
