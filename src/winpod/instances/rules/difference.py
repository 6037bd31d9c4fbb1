"""The steps from what an instance is to what it should be, in the order they are done in.

Everything follows from the two and nothing is remembered: whoever was interrupted reads the
instance again and goes on. A service stops before its files or its command line change, and so is
found stopped afterwards, and started.
"""

from __future__ import annotations

from collections.abc import Iterable

from winpod.instances import paths
from winpod.instances.rules.desired import Desired, Question, WantedFile, WantedService
from winpod.instances.rules.fitness import refuse_unfit
from winpod.instances.rules.state import UNREADABLE, FeatureState, Running, Service, Start, State
from winpod.instances.rules.steps import Do, Step
from winpod.instances.rules.stopping import (
    CONTAINERD,
    DOCKER,
    KUBELET,
    is_ours,
    runs_on_docker,
    to_stop,
)


def what_to_ask(desired: Desired) -> Question:
    wanted = [path for file in desired.files for path in (file.path, *file.unless)]
    services = [service.name for service in desired.services]
    return Question(
        directories=_once(*desired.directories, *desired.owned),
        files=_once(*wanted, *desired.unwanted_files),
        services=_once(*services, *desired.unwanted_services, *DOCKER),
        features=desired.features,
        images=bool(desired.images),
    )


def difference(state: State, desired: Desired) -> tuple[Step, ...]:
    """No steps where nothing is to be done. Raises where no steps would do."""
    files = tuple(file for file in desired.files if _is_missing(state, file))
    refuse_unfit(state, desired, files)
    plan = _Plan(state, desired)
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


class _Plan:
    """Steps so far, and which services are down and gone after them."""

    def __init__(self, state: State, desired: Desired) -> None:
        self.state, self.desired = state, desired
        self.steps: list[Step] = []
        self.down = {n for n, one in state.services.items() if one.state is Running.STOPPED}
        self.gone: set[str] = set()

    def remove_services(self) -> None:
        """The kubelet goes last: it is what tells that an instance still runs on Docker."""
        names, why = list(self.desired.unwanted_services), "it is not wanted here"
        if runs_on_docker(self.state):
            wanted = [service.name for service in reversed(self.desired.services)]
            names += [name for name in wanted if name not in (CONTAINERD, KUBELET)] + [KUBELET]
            why = "an instance that ran on Docker gets its services anew"
        for name in names:
            service = self.state.service(name)
            if service and (is_ours(service) or name == KUBELET):
                self.stop([name], "it is to be removed")
                self.add(Do.REMOVE_SERVICE, service.name, "no such service", "it is there", why)
                self.gone.add(name.lower())

    def remove_networks(self) -> None:
        """Those of a kubelet that is no longer installed."""
        if KUBELET in self.state.services and KUBELET not in self.gone:
            return
        left = [one for one in self.state.networks if one.name in self.desired.networks]
        if left:
            users = [one.name for one in self.desired.services if one.name != CONTAINERD]
            self.stop(users, "it uses a network that is to be removed")
        for network in left:
            why = f"it is {network.name}, left of a kubelet that is not installed"
            self.add(Do.REMOVE_NETWORK, network.id, "no such network", network.name, why)

    def enable_features(self) -> None:
        """They share one restart."""
        reasons: list[str] = []
        for feature in self.desired.features:
            is_on = self.state.features.get(feature, FeatureState.ABSENT)
            if is_on is FeatureState.DISABLED:
                self.add(Do.ENABLE_FEATURE, feature, "enabled", is_on, "containers need it")
            if is_on is not FeatureState.ENABLED:
                reasons.append(f"the feature {feature}")
        if reasons:
            why = f"for {' and '.join(reasons)}"
            self.add(Do.REBOOT, "", "Windows started anew", "not started since the change", why)

    def remove_pods(self, files: Iterable[WantedFile]) -> None:
        """Those that a drain left, where they keep a file; the kubelet makes them anew."""
        used = [file.path for file in files if file.used_by_pods]
        if used and self.state.pods:
            self.stop([KUBELET], f"its pods use {used[0]}, which is to be changed")
            for pod in sorted(self.state.pods):
                why = f"it uses {used[0]}, which is to be changed"
                self.add(Do.REMOVE_POD, pod, "no such pod", "it is there", why)

    def stop_changed(self, files: Iterable[WantedFile]) -> None:
        for wanted in self.desired.services:
            found = self.found(wanted)
            if found and _runs_otherwise(found, wanted):
                self.stop([wanted.name], "what it runs is to be changed")
        for file in files:
            self.stop(file.used_by, f"it uses {file.path}, which is to be changed")

    def make_directories(self) -> None:
        for path in self.desired.directories:
            if path not in self.state.directories:
                self.add(Do.MAKE_DIRECTORY, path, "a directory", "nothing", "it is missing")

    def put(self, files: Iterable[WantedFile]) -> None:
        for file in files:
            found = self.state.files.get(file.path)
            why = "it is another file" if found else "it is missing"
            self.add(Do.PUT_FILE, file.path, _hash(file.sha256), _hash(found), why)

    def remove_files(self) -> None:
        for path in self.desired.unwanted_files:
            if path in self.state.files:
                why = "an older version left it"
                self.add(Do.REMOVE_FILE, path, "no such file", "it is there", why)

    def install_services(self) -> None:
        for wanted in self.desired.services:
            found = self.found(wanted)
            if found is None:
                text = wanted.command_line
                self.add(Do.CREATE_SERVICE, wanted.name, text, "no such service", "it is missing")
            elif changes := _changes(found, wanted):
                expected = ", ".join(f"{what} {wish}" for what, wish, _ in changes)
                is_now = ", ".join(f"{what} {has}" for what, _, has in changes)
                why = f"its {' and '.join(what for what, *_ in changes)} must change"
                self.add(Do.CHANGE_SERVICE, wanted.name, expected, is_now, why)

    def start_services(self) -> None:
        """Images are there before the kubelet runs; from then on they are the kubelet's."""
        for wanted in self.desired.services:
            name = wanted.name.lower()
            found = self.found(wanted)
            if found and found.state is Running.RUNNING and name not in self.down:
                continue
            if name == KUBELET:
                self.pull_images()
            is_now = found.state if found else Running.STOPPED
            self.add(Do.START_SERVICE, wanted.name, "running", is_now, "it does not run")

    def pull_images(self) -> None:
        for image in self.desired.images:
            if image not in self.state.images:
                why = "pods are not to wait for it"
                self.add(Do.PULL_IMAGE, image, "the image", "no such image", why)

    def stop(self, names: Iterable[str], why: str) -> None:
        for service in to_stop(self.state, names):
            name = service.name.lower()
            if name not in self.down and name not in self.gone:
                self.down.add(name)
                self.add(Do.STOP_SERVICE, service.name, "stopped", service.state, why)

    def found(self, wanted: WantedService) -> Service | None:
        return None if wanted.name.lower() in self.gone else self.state.service(wanted.name)

    def add(self, do: Do, target: str, expected: str, found: str, why: str) -> None:
        self.steps.append(Step(do, target, str(expected), str(found), why))


def _is_missing(state: State, file: WantedFile) -> bool:
    if file.unless and all(path in state.files for path in file.unless):
        return False
    return state.files.get(file.path, "").lower() != file.sha256


def _runs_otherwise(found: Service, wanted: WantedService) -> bool:
    return any(what in ("command line", "dependencies") for what, *_ in _changes(found, wanted))


def _changes(found: Service, wanted: WantedService) -> list[tuple[str, str, str]]:
    """What of a service is not as wanted: its name, the wish, and what there is."""
    pairs = [
        ("command line", wanted.command_line, found.command_line.strip()),
        ("dependencies", _names(wanted.depends), _names(found.depends)),
        ("start", str(Start.AUTO), str(found.start)),
        ("description", wanted.description, found.description),
        ("restarts", _restarts(wanted), _restarts(found)),
    ]
    return [(what, wish, has) for what, wish, has in pairs if wish != has]


def _names(names: Iterable[str]) -> str:
    return "/".join(sorted(name.lower() for name in names)) or "none"


def _restarts(service: Service | WantedService) -> str:
    delays = "/".join(str(delay) for delay in service.restarts) or "none"
    return f"{delays} ms, counted anew after {service.reset_seconds} s"


def _hash(sha256: str | None) -> str:
    if sha256 in (None, UNREADABLE):
        return sha256 or "no such file"
    return f"SHA256 {sha256[:12]}"


def _once(*names: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))
