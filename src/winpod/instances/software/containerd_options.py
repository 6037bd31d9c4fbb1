"""Table of the containerd options on Windows, and validation of a configuration against it.

containerd accepts any TOML file and ignores misspelled options, handlers that cannot start and
snapshotters that do not exist. Here each is an error with its path.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping

from winpod.errors import InvalidInput
from winpod.field_reader import Field, InvalidField
from winpod.images.references import parse_reference
from winpod.instances.errors import InvalidConfiguration
from winpod.instances.planner.versions import Version
from winpod.labels import RUNHCS_RUNTIME_TYPE

Rule = Callable[[Field], None]
SNAPSHOTTERS = ("windows",)
LOG_LEVELS = ("trace", "debug", "info", "warn", "error", "fatal", "panic")
_ADVICE = "Check pauseImage, mirrors and hypervisor in the settings."
_PATH = re.compile(r"[A-Za-z]:\\[^<>\"|?*]+")
_PIPE = re.compile(r"\\\\\.\\pipe\\[^\\/]+")
_DURATION = re.compile(r"(?:\d+(?:\.\d+)?(?:ns|us|µs|ms|s|m|h))+")
_HANDLER = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


def check_config(text: str, containerd: Version) -> None:
    """Raise for the first value that this containerd would reject, or accept and ignore."""
    try:
        document = Field(tomllib.loads(text))
        _table(_TABLES_OF[2 if containerd.major < 2 else 3](containerd))(document)
    except tomllib.TOMLDecodeError as error:
        raise InvalidConfiguration(
            f"containerd's configuration is not TOML: {error}.", _ADVICE
        ) from None
    except InvalidInput as error:
        raise InvalidConfiguration(f"containerd's configuration: {error}", _ADVICE) from None


def _flag(at: Field) -> None:
    at.flag()


def _text(at: Field) -> None:
    at.required_text()


def _number(minimum: int, maximum: int) -> Rule:
    def check(at: Field) -> None:
        if isinstance(at.value, float):
            raise at.error("a whole number")
        at.number(minimum, minimum, maximum)

    return check


def _one_of(*names: str) -> Rule:
    def check(at: Field) -> None:
        at.required_text()
        at.one_of(*names)

    return check


def _like(pattern: re.Pattern[str], example: str) -> Rule:
    def check(at: Field) -> None:
        if not pattern.fullmatch(at.required_text()):
            raise InvalidField(at.path, f'is "{at.text()}", and must be like {example}')

    return check


def _list_of(rule: Rule) -> Rule:
    def check(at: Field) -> None:
        for item in at.items():
            rule(item)

    return check


def _image(at: Field) -> None:
    try:
        parse_reference(at.required_text())
    except InvalidField:
        raise
    except InvalidInput as error:
        raise InvalidField(at.path, f"is invalid: {str(error).rstrip('.')}") from None


def _table(rules: Mapping[str, Rule]) -> Rule:
    def check(at: Field) -> None:
        at.reject_unknown_keys(*rules)
        for name in at.key_names():
            rules[name](at.get(name))

    return check


_path = _like(_PATH, r"C:\k\containerd")
_duration = _like(_DURATION, "30m or 1800s")
_DAEMON: dict[str, Rule] = {
    "root": _path,
    "state": _path,
    "grpc": _table({"address": _like(_PIPE, r"\\.\pipe\containerd-containerd")}),
    "debug": _table({"level": _one_of(*LOG_LEVELS)}),
}
_OPTIONS: dict[str, Rule] = {
    "Debug": _flag,
    "DebugType": _number(0, 2),
    "SandboxPlatform": _one_of("windows/amd64", "windows/arm64"),
    "SandboxIsolation": _number(0, 1),
    "VmProcessorCount": _number(1, 2048),
    "VmMemorySizeInMb": _number(256, 1 << 24),
    "ScaleCpuLimitsToSandbox": _flag,
    "DefaultContainerScratchSizeInGb": _number(20, 1 << 16),
    "DefaultVmScratchSizeInGb": _number(10, 1 << 16),
    "LogLevel": _one_of(*LOG_LEVELS),
    "NoInheritHostTimezone": _flag,
    "ScrubLogs": _flag,
}
_RUNTIME: dict[str, Rule] = {
    "runtime_type": _one_of(RUNHCS_RUNTIME_TYPE),
    "runtime_path": _path,
    "pod_annotations": _list_of(_text),
    "container_annotations": _list_of(_text),
    "snapshotter": _one_of(*SNAPSHOTTERS),
    "options": _table(_OPTIONS),
}


def _runtimes(at: Field) -> None:
    for name in at.key_names():
        runtime = at.get(name)
        if not _HANDLER.fullmatch(name):
            raise InvalidField(runtime.path, "is not a valid handler name of a RuntimeClass")
        _table(_RUNTIME)(runtime)
        runtime.get("runtime_type").required_text()
        options = runtime.get("options")
        has_guest = options.get("SandboxIsolation").value == 1
        if has_guest != ("hypervisor" in name):
            raise InvalidField(
                options.get("SandboxIsolation").path,
                "must be 1 for handlers named hypervisor, and only for those",
            )
        if options.get("ScaleCpuLimitsToSandbox").flag() and not has_guest:
            raise InvalidField(
                options.get("ScaleCpuLimitsToSandbox").path, "needs SandboxIsolation to be 1"
            )


def _handlers(extra: Mapping[str, Rule]) -> Rule:
    def check(at: Field) -> None:
        _table({"default_runtime_name": _text, "runtimes": _runtimes, **extra})(at)
        default = at.get("default_runtime_name")
        if default.required_text() not in at.get("runtimes").key_names():
            raise InvalidField(
                default.path, f'is "{default.text()}", which is not one of its runtimes'
            )

    return check


def _version_2(_: Version) -> dict[str, Rule]:
    cri = {
        "sandbox_image": _image,
        "image_pull_progress_timeout": _duration,
        "max_concurrent_downloads": _number(1, 100),
        "containerd": _handlers({"snapshotter": _one_of(*SNAPSHOTTERS)}),
        "cni": _table({"bin_dir": _path, "conf_dir": _path}),
        "registry": _table({"config_path": _path}),
    }
    plugins = {"io.containerd.grpc.v1.cri": _table(cri)}
    return {"version": _number(2, 2), "plugins": _table(plugins), **_DAEMON}


def _version_3(containerd: Version) -> dict[str, Rule]:
    images = {
        "snapshotter": _one_of(*SNAPSHOTTERS),
        "image_pull_progress_timeout": _duration,
        "max_concurrent_downloads": _number(1, 100),
        "pinned_images": _table({"sandbox": _image}),
        "registry": _table({"config_path": _path}),
    }
    has_list = containerd >= Version(2, 1, 0)
    directories = {"bin_dirs": _list_of(_path)} if has_list else {"bin_dir": _path}
    plugins = {
        "io.containerd.cri.v1.images": _table(images),
        "io.containerd.cri.v1.runtime": _table(
            {"containerd": _handlers({}), "cni": _table({**directories, "conf_dir": _path})}
        ),
    }
    return {"version": _number(3, 3), "plugins": _table(plugins), **_DAEMON}


_TABLES_OF = {2: _version_2, 3: _version_3}
