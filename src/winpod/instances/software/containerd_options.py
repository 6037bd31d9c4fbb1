"""Which tables and options a containerd on Windows follows, and of which kind each is.

containerd accepts any file that is TOML, and says nothing of a misspelled option, a handler that
cannot start or a snapshotter that does not exist. Here each is a sentence about its place.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping

from winpod.images.references import parse_reference
from winpod.instances.errors import BadConfiguration
from winpod.instances.rules.versions import Version
from winpod.windows.errors import InvalidInput
from winpod.windows.reading import At, InvalidField

Rule = Callable[[At], None]
SNAPSHOTTERS = ("windows",)
LOG_LEVELS = ("trace", "debug", "info", "warn", "error", "fatal", "panic")
_ADVICE = "See what the settings say of pauseImage, mirrors and hypervisor."
_PATH = re.compile(r"[A-Za-z]:\\[^<>\"|?*]+")
_PIPE = re.compile(r"\\\\\.\\pipe\\[^\\/]+")
_DURATION = re.compile(r"(?:\d+(?:\.\d+)?(?:ns|us|µs|ms|s|m|h))+")
_HANDLER = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


def check_config(text: str, containerd: Version) -> None:
    """Raises for the first thing that this containerd would refuse, or take and not follow."""
    try:
        document = At(tomllib.loads(text))
        _table(_TABLES_OF[2 if containerd.major < 2 else 3](containerd))(document)
    except tomllib.TOMLDecodeError as error:
        raise BadConfiguration(
            f"containerd's configuration is not TOML: {error}.", _ADVICE
        ) from None
    except InvalidInput as error:
        raise BadConfiguration(f"containerd's configuration: {error}", _ADVICE) from None


def _flag(at: At) -> None:
    at.flag()


def _text(at: At) -> None:
    at.required_text()


def _number(least: int, most: int) -> Rule:
    def check(at: At) -> None:
        if isinstance(at.value, float):
            raise at.wrong("a whole number")
        at.number(least, least, most)

    return check


def _one_of(*names: str) -> Rule:
    def check(at: At) -> None:
        at.required_text()
        at.one_of(*names)

    return check


def _like(pattern: re.Pattern[str], example: str) -> Rule:
    def check(at: At) -> None:
        if not pattern.fullmatch(at.required_text()):
            raise InvalidField(at.path, f'is "{at.text()}", and must be like {example}')

    return check


def _list_of(rule: Rule) -> Rule:
    def check(at: At) -> None:
        for item in at.items():
            rule(item)

    return check


def _image(at: At) -> None:
    try:
        parse_reference(at.required_text())
    except InvalidField:
        raise
    except InvalidInput as error:
        raise InvalidField(at.path, f"is wrong: {str(error).rstrip('.')}") from None


def _table(rules: Mapping[str, Rule]) -> Rule:
    def check(at: At) -> None:
        at.allow(*rules)
        for name in at.names():
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
    "runtime_type": _one_of("io.containerd.runhcs.v1"),
    "runtime_path": _path,
    "pod_annotations": _list_of(_text),
    "container_annotations": _list_of(_text),
    "snapshotter": _one_of(*SNAPSHOTTERS),
    "options": _table(_OPTIONS),
}


def _runtimes(at: At) -> None:
    for name in at.names():
        runtime = at.get(name)
        if not _HANDLER.fullmatch(name):
            raise InvalidField(runtime.path, "has a name that no RuntimeClass can name")
        _table(_RUNTIME)(runtime)
        runtime.get("runtime_type").required_text()
        options = runtime.get("options")
        has_guest = options.get("SandboxIsolation").value == 1
        if has_guest != ("hypervisor" in name):
            raise InvalidField(
                options.get("SandboxIsolation").path,
                "must be 1 for a handler that is called hypervisor, and for no other",
            )
        if options.get("ScaleCpuLimitsToSandbox").flag() and not has_guest:
            raise InvalidField(
                options.get("ScaleCpuLimitsToSandbox").path, "needs SandboxIsolation to be 1"
            )


def _handlers(more: Mapping[str, Rule]) -> Rule:
    def check(at: At) -> None:
        _table({"default_runtime_name": _text, "runtimes": _runtimes, **more})(at)
        default = at.get("default_runtime_name")
        if default.required_text() not in at.get("runtimes").names():
            raise InvalidField(default.path, f'is "{default.text()}", which is no runtime of it')

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
