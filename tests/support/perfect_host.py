"""In-memory Windows Server that runs each step at once, and fails where Windows would fail.

It knows steps and the desired files and services, but not the rules that order them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from winpod.instances.planner.desired import DesiredState
from winpod.instances.planner.state import (
    FeatureState,
    InstanceState,
    Network,
    ObservedService,
    ServiceState,
    StartType,
)
from winpod.instances.planner.steps import Step

MAKES_NETWORKS = "hybrid-overlay-node"


def parent(path: str) -> str:
    return path.rpartition("\\")[0]


@dataclass
class PerfectHost:
    state: InstanceState
    desired: DesiredState
    stored_images: set[str] = field(default_factory=set)
    pods: set[str] = field(default_factory=set)

    def read(self) -> InstanceState:
        answers = self.state.runs("containerd")
        images, pods = (self.stored_images, self.pods) if answers else ((), ())
        directories = self.state.directories
        full = {parent(path) for path in (*directories, *self.state.files)}
        return replace(
            self.state, images=frozenset(images), pods=frozenset(pods), empty=directories - full
        )

    def do(self, step: Step) -> None:
        getattr(self, f"_{step.kind.name.lower()}")(step.target)

    def reboot(self) -> None:
        self._reboot("")

    def _change(self, **what: object) -> None:
        self.state = replace(self.state, **what)  # type: ignore[arg-type]

    def _set(self, service: ObservedService) -> None:
        self._change(services={**self.state.services, service.name.lower(): service})

    def _service(self, name: str) -> ObservedService:
        service = self.state.service(name)
        assert service, f"1060: no service {name}"
        return service

    def _enable_feature(self, name: str) -> None:
        assert self.state.features[name] is FeatureState.DISABLED
        self._change(features={**self.state.features, name: FeatureState.PENDING})

    def _reboot(self, _: str) -> None:
        features = {
            name: FeatureState.ENABLED if one is FeatureState.PENDING else one
            for name, one in self.state.features.items()
        }
        down = {n: replace(s, state=ServiceState.STOPPED) for n, s in self.state.services.items()}
        self._change(
            features=features,
            services=down,
            booted=self.state.booted + "+",
        )
        for _ in down:
            for service in list(self.state.services.values()):
                if service.start is StartType.AUTO and self._can_start(service):
                    self._run(service)

    def _can_start(self, service: ObservedService) -> bool:
        return all(self.state.runs(name) for name in service.depends)

    def _run(self, service: ObservedService) -> None:
        self._set(replace(service, state=ServiceState.RUNNING))
        if service.name == "kubelet" and self.state.runs("containerd"):
            self.pods.add("of-a-daemon-set")
        if service.name == MAKES_NETWORKS:
            there = {network.name for network in self.state.networks}
            new = [Network(f"id-{n}", n) for n in self.desired.networks if n not in there]
            self._change(networks=(*self.state.networks, *new))

    def _stop_service(self, name: str) -> None:
        users = [one.name for one in self.state.services.values() if one.depends_on(name)]
        running = [one for one in users if self.state.runs(one)]
        assert not running, f"1051: {running} depend on {name}"
        self._set(replace(self._service(name), state=ServiceState.STOPPED))

    def _remove_service(self, name: str) -> None:
        assert self._service(name).state is ServiceState.STOPPED
        left = {key: one for key, one in self.state.services.items() if key != name.lower()}
        self._change(services=left)

    def _remove_pod(self, id: str) -> None:
        assert self.state.runs("containerd"), "containerd does not run"
        assert not self.state.runs("kubelet"), "the kubelet would create it again"
        self.pods.remove(id)

    def _remove_network(self, id: str) -> None:
        assert not self.state.runs(MAKES_NETWORKS), "the network is in use"
        self._change(networks=tuple(one for one in self.state.networks if one.id != id))

    def _make_directory(self, path: str) -> None:
        assert path not in self.state.directories
        self._change(directories=self.state.directories | {path})

    def _remove_directory(self, path: str) -> None:
        self._change(
            directories=frozenset(
                one for one in self.state.directories if not f"{one}\\".startswith(f"{path}\\")
            ),
            files={
                name: hash
                for name, hash in self.state.files.items()
                if not name.startswith(f"{path}\\")
            },
        )

    def _put_file(self, path: str) -> None:
        file = self.desired.file(path)
        assert parent(path) in self.state.directories, f"3: not found: {parent(path)}"
        assert not [one for one in file.used_by if self.state.runs(one)], f"32: {path} is in use"
        assert not (file.used_by_pods and self.read().pods), f"32: pods use {path}"
        self._change(files={**self.state.files, path: file.sha256})

    def _remove_file(self, path: str) -> None:
        assert path in self.state.files
        files = {name: hash for name, hash in self.state.files.items() if name != path}
        self._change(files=files)

    def _create_service(self, name: str) -> None:
        assert not self.state.service(name), f"1073: {name} exists"
        self._install(name)

    def _change_service(self, name: str) -> None:
        now = self._service(name)
        wanted = self.desired.service(name)
        if now.state is not ServiceState.STOPPED:
            assert now.command_line == wanted.command_line, "it would keep the old command line"
        self._install(name, now.state)

    def _install(self, name: str, state: ServiceState = ServiceState.STOPPED) -> None:
        wanted = self.desired.service(name)
        self._set(
            ObservedService(
                wanted.name,
                wanted.command_line,
                wanted.depends,
                StartType.AUTO,
                state,
                wanted.description,
                wanted.restarts,
                wanted.reset_seconds,
            )
        )

    def _start_service(self, name: str) -> None:
        service = self._service(name)
        assert self._can_start(service), f"1075: {service.depends} are not all running"
        self._run(service)

    def _pull_image(self, name: str) -> None:
        assert self.state.runs("containerd")
        self.stored_images.add(name)
