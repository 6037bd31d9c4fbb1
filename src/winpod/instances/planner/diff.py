"""Steps from the observed to the desired state, in execution order, and steps of removal.

Steps depend on the two states only, nothing is recorded: after an interruption the instance is read
again and the remaining steps follow. A service is stopped before its files or command line change,
is therefore observed as stopped afterwards, and gets started. An instance that no steps can make
suitable is rejected before anything is changed.

Removal takes services first (dependents before dependencies, and before containerd the pods that a
drain left), then networks, files and directories. Host name, features, Docker and the content of
shared directories stay.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from winpod.errors import InvalidInput
from winpod.instances import paths
from winpod.instances.errors import DowngradeRefused, InstanceUnsuitable
from winpod.instances.planner.desired import DesiredFile, DesiredService, DesiredState, FactQuery
from winpod.instances.planner.state import (
    CONTAINERD,
    DOCKER,
    KUBELET,
    UNREADABLE,
    FeatureState,
    InstanceState,
    ObservedService,
    ServiceState,
    StartType,
    is_managed_service,
    runs_on_docker,
    services_to_stop,
)
from winpod.instances.planner.steps import Step, StepKind
from winpod.instances.planner.versions import Version

MINIMUM_BUILD = 17763
_SPARE_BYTES = 512 << 20


def require_suitable(
    state: InstanceState, desired: DesiredState, missing: tuple[DesiredFile, ...]
) -> None:
    if state.build.number < MINIMUM_BUILD:
        raise InstanceUnsuitable(
            f"the instance has {state.build.describe()}, and pods need Windows Server 2019 "
            f"(10.0.{MINIMUM_BUILD}) or later.",
            "Install a later Windows Server, or remove the instance.",
        )
    installed = _installed(state)
    if installed and installed > Version.parse(desired.version):
        raise DowngradeRefused(state.version, desired.version)
    for feature in desired.features:
        if state.features.get(feature, FeatureState.ABSENT) is FeatureState.ABSENT:
            raise InstanceUnsuitable(
                f"{state.product} does not have the feature {feature}.",
                "Use an edition of Windows Server that has it."
                if feature == "Containers"
                else "Use a machine that has it, or set hypervisor to false.",
            )
    required = sum(file.size for file in missing)
    if missing and required + _SPARE_BYTES > state.free_bytes:
        raise InstanceUnsuitable(
            f"drive C: has {state.free_bytes >> 20} MiB free, and the files to install need "
            f"{required >> 20} MiB plus a reserve of {_SPARE_BYTES >> 20} MiB.",
            "Free disk space on the instance, or use a larger disk.",
        )


def _installed(state: InstanceState) -> Version | None:
    """Return the installed version; None if the version file is damaged, it is then rewritten."""
    try:
        return Version.parse(state.version)
    except InvalidInput:
        return None


def fact_query(desired: DesiredState) -> FactQuery:
    files = [path for file in desired.files for path in (file.path, *file.unless)]
    services = [service.name for service in desired.services]
    return FactQuery(
        directories=_unique(*desired.directories, *desired.managed_directories),
        files=_unique(*files, *desired.unwanted_files),
        services=_unique(*services, *desired.unwanted_services, *DOCKER),
        features=desired.features,
        images=bool(desired.images),
    )


def diff(state: InstanceState, desired: DesiredState) -> tuple[Step, ...]:
    """Return the steps to the desired state, none if it is reached; raise if the instance is
    unsuitable.
    """
    files = tuple(file for file in desired.files if _is_missing(state, file))
    require_suitable(state, desired, files)
    plan = _StepBuilder(state, desired)
    plan.remove_services()
    plan.remove_networks()
    plan.enable_features()
    plan.remove_pods(files)
    plan.stop_changed(files)
    plan.make_directories()
    plan.put([file for file in files if file.path != paths.VERSION])
    plan.remove_files()
    plan.install_services()
    plan.start_services()
    plan.put([file for file in files if file.path == paths.VERSION])
    return tuple(plan.steps)


class _StepBuilder:
    """Collects steps, tracking which services are stopped and removed by them."""

    def __init__(self, state: InstanceState, desired: DesiredState) -> None:
        self.state, self.desired = state, desired
        self.steps: list[Step] = []
        self.down = {
            n for n, service in state.services.items() if service.state is ServiceState.STOPPED
        }
        self.gone: set[str] = set()

    def remove_services(self) -> None:
        """Remove obsolete services.

        The kubelet goes last, because its command line shows that an instance still runs on Docker.
        """
        names, why = list(self.desired.unwanted_services), "it is obsolete"
        if runs_on_docker(self.state):
            current = [service.name for service in reversed(self.desired.services)]
            names += [name for name in current if name not in (CONTAINERD, KUBELET)] + [KUBELET]
            why = "services are recreated when migrating from Docker"
        for name in names:
            service = self.state.service(name)
            if service and (is_managed_service(service) or name == KUBELET):
                self.stop([name], "it will be removed")
                self.add(StepKind.REMOVE_SERVICE, service.name, "no such service", "present", why)
                self.gone.add(name.lower())

    def remove_networks(self) -> None:
        """Remove the networks of a kubelet that is no longer installed."""
        if KUBELET in self.state.services and KUBELET not in self.gone:
            return
        leftover = [item for item in self.state.networks if item.name in self.desired.networks]
        if leftover:
            users = [item.name for item in self.desired.services if item.name != CONTAINERD]
            self.stop(users, "it uses a network that will be removed")
        for network in leftover:
            why = f"{network.name} belongs to a kubelet that is not installed"
            self.add(StepKind.REMOVE_NETWORK, network.id, "no such network", network.name, why)

    def enable_features(self) -> None:
        """Enable the features, with one reboot for all."""
        reasons: list[str] = []
        for feature in self.desired.features:
            current = self.state.features.get(feature, FeatureState.ABSENT)
            if current is FeatureState.DISABLED:
                self.add(StepKind.ENABLE_FEATURE, feature, "enabled", current, "containers need it")
            if current is not FeatureState.ENABLED:
                reasons.append(f"the feature {feature}")
        if reasons:
            why = f"for {' and '.join(reasons)}"
            self.add(StepKind.REBOOT, "", "host rebooted", "not rebooted since the change", why)

    def remove_pods(self, files: Iterable[DesiredFile]) -> None:
        """Remove pods that a drain left if they hold a changed file; the kubelet recreates them."""
        used = [file.path for file in files if file.used_by_pods]
        if used and self.state.pods:
            self.stop([KUBELET], f"its pods use {used[0]}, which will be replaced")
            for pod in sorted(self.state.pods):
                why = f"it uses {used[0]}, which will be replaced"
                self.add(StepKind.REMOVE_POD, pod, "no such pod", "present", why)

    def stop_changed(self, files: Iterable[DesiredFile]) -> None:
        for desired in self.desired.services:
            observed = self.observed(desired)
            if observed and _needs_restart(observed, desired):
                self.stop([desired.name], "its command line or dependencies will change")
        for file in files:
            self.stop(file.used_by, f"it uses {file.path}, which will be replaced")

    def make_directories(self) -> None:
        for path in self.desired.directories:
            if path not in self.state.directories:
                self.add(StepKind.MAKE_DIRECTORY, path, "a directory", "nothing", "it is missing")

    def put(self, files: Iterable[DesiredFile]) -> None:
        for file in files:
            current = self.state.files.get(file.path)
            why = "its content differs" if current else "it is missing"
            self.add(StepKind.PUT_FILE, file.path, _hash(file.sha256), _hash(current), why)

    def remove_files(self) -> None:
        for path in self.desired.unwanted_files:
            if path in self.state.files:
                why = "an older version left it"
                self.add(StepKind.REMOVE_FILE, path, "no such file", "present", why)

    def install_services(self) -> None:
        for desired in self.desired.services:
            observed = self.observed(desired)
            if observed is None:
                command_line = desired.command_line
                self.add(
                    StepKind.CREATE_SERVICE,
                    desired.name,
                    command_line,
                    "no such service",
                    "it is missing",
                )
            elif changes := _changes(observed, desired):
                expected = ", ".join(
                    f"{what} {expected_value}" for what, expected_value, _ in changes
                )
                current = ", ".join(f"{what} {value}" for what, _, value in changes)
                why = f"its {' and '.join(what for what, *_ in changes)} must change"
                self.add(StepKind.CHANGE_SERVICE, desired.name, expected, current, why)

    def start_services(self) -> None:
        """Start services; images are pulled before the kubelet runs, afterwards it manages them."""
        for desired in self.desired.services:
            name = desired.name.lower()
            observed = self.observed(desired)
            if observed and observed.state is ServiceState.RUNNING and name not in self.down:
                continue
            if name == KUBELET:
                self.pull_images()
            current = observed.state if observed else ServiceState.STOPPED
            self.add(StepKind.START_SERVICE, desired.name, "running", current, "it is not running")

    def pull_images(self) -> None:
        for image in self.desired.images:
            if image not in self.state.images:
                why = "pods should not wait for the pull"
                self.add(StepKind.PULL_IMAGE, image, "the image", "no such image", why)

    def stop(self, names: Iterable[str], why: str) -> None:
        for service in services_to_stop(self.state, names):
            name = service.name.lower()
            if name not in self.down and name not in self.gone:
                self.down.add(name)
                self.add(StepKind.STOP_SERVICE, service.name, "stopped", service.state, why)

    def observed(self, desired: DesiredService) -> ObservedService | None:
        return None if desired.name.lower() in self.gone else self.state.service(desired.name)

    def add(self, kind: StepKind, target: str, expected: str, observed: str, why: str) -> None:
        self.steps.append(Step(kind, target, str(expected), str(observed), why))


def _is_missing(state: InstanceState, file: DesiredFile) -> bool:
    if file.unless and all(path in state.files for path in file.unless):
        return False
    return state.files.get(file.path, "").lower() != file.sha256


def _needs_restart(observed: ObservedService, desired: DesiredService) -> bool:
    return any(what in ("command line", "dependencies") for what, *_ in _changes(observed, desired))


def _changes(observed: ObservedService, desired: DesiredService) -> list[tuple[str, str, str]]:
    """List what differs: the property, the expected and the actual value."""
    pairs = [
        ("command line", desired.command_line, observed.command_line.strip()),
        ("dependencies", _names(desired.depends), _names(observed.depends)),
        ("start", str(StartType.AUTO), str(observed.start)),
        ("description", desired.description, observed.description),
        ("restarts", _restarts(desired), _restarts(observed)),
    ]
    return [(what, expected, actual) for what, expected, actual in pairs if expected != actual]


def _names(names: Iterable[str]) -> str:
    return "/".join(sorted(name.lower() for name in names)) or "none"


def _restarts(service: ObservedService | DesiredService) -> str:
    delays = "/".join(str(delay) for delay in service.restarts) or "none"
    return f"{delays} ms, reset after {service.reset_seconds} s"


def _hash(sha256: str | None) -> str:
    if sha256 in (None, UNREADABLE):
        return sha256 or "no such file"
    return f"SHA256 {sha256[:12]}"


def _unique(*names: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))


_REMOVAL_REASON = "winpod is being removed"


def removal_steps(state: InstanceState, desired: DesiredState) -> tuple[Step, ...]:
    """Return the steps of removal.

    A shared directory is included once it is empty, which only a later observation can show.
    """
    return (
        *_services(state, desired),
        *_networks(state, desired),
        *_files(state, desired),
        *_directories(state, desired),
    )


def _services(state: InstanceState, desired: DesiredState) -> Iterator[Step]:
    names = [service.name for service in reversed(desired.services)] + [*desired.unwanted_services]
    managed = [
        service
        for name in names
        if (service := state.service(name)) and is_managed_service(service)
    ]
    stops = services_to_stop(state, [service.name for service in managed])
    yield from (_stop(service) for service in stops if not _stops_after_containerd(state, service))
    if any(service.name.lower() == CONTAINERD for service in managed):
        for pod in sorted(state.pods):
            yield Step(StepKind.REMOVE_POD, pod, "no such pod", "present", _REMOVAL_REASON)
    yield from (_stop(service) for service in stops if _stops_after_containerd(state, service))
    for service in managed:
        yield Step(
            StepKind.REMOVE_SERVICE, service.name, "no such service", "present", _REMOVAL_REASON
        )


def _stops_after_containerd(state: InstanceState, service: ObservedService) -> bool:
    """Whether it is containerd, or containerd was made to depend on it."""
    return any(
        other.name.lower() == CONTAINERD for other in services_to_stop(state, [service.name])
    )


def _stop(service: ObservedService) -> Step:
    why = "it will be removed"
    return Step(StepKind.STOP_SERVICE, service.name, "stopped", str(service.state), why)


def _networks(state: InstanceState, desired: DesiredState) -> Iterator[Step]:
    for network in state.networks:
        if network.name in desired.networks:
            why = f"{network.name} was created by winpod"
            yield Step(StepKind.REMOVE_NETWORK, network.id, "no such network", network.name, why)


def _files(state: InstanceState, desired: DesiredState) -> Iterator[Step]:
    for path in (*(file.path for file in desired.files), *desired.unwanted_files):
        if path in state.files and not _is_beneath(path, desired.managed_directories):
            yield Step(StepKind.REMOVE_FILE, path, "no such file", "present", _REMOVAL_REASON)


def _directories(state: InstanceState, desired: DesiredState) -> Iterator[Step]:
    for path in desired.managed_directories:
        if path in state.directories:
            yield Step(
                StepKind.REMOVE_DIRECTORY, path, "no such directory", "present", _REMOVAL_REASON
            )
    for path in reversed(desired.directories):
        is_shared = path not in desired.managed_directories and not _is_beneath(
            path, desired.managed_directories
        )
        if is_shared and path in state.empty:
            yield Step(
                StepKind.REMOVE_DIRECTORY,
                path,
                "no such directory",
                "empty directory",
                _REMOVAL_REASON,
            )


def _is_beneath(path: str, directories: tuple[str, ...]) -> bool:
    return any(path.startswith(f"{directory}\\") for directory in directories)
