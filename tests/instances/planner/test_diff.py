"""Steps of configuration and removal: their order, and that they terminate from any state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.perfect_host import PerfectHost, parent
from winpod.instances import paths
from winpod.instances.errors import DowngradeRefused, InstanceUnsuitable
from winpod.instances.planner.desired import DesiredFile, DesiredService, DesiredState, inline_file
from winpod.instances.planner.diff import diff, fact_query, removal_steps
from winpod.instances.planner.state import (
    FeatureState,
    InstanceState,
    Network,
    ObservedService,
    ServiceState,
    StartType,
    runs_on_docker,
)
from winpod.instances.planner.steps import Step, StepKind
from winpod.windows.builds import Build

DOCKER = ObservedService("docker", r"C:\Program Files\Docker\dockerd.exe --run-service")
OLD = ("windows-instance-config-daemon", "azure-cloud-node-manager")
EXE = {name: rf"C:\k\bin\{name}.exe" for name in ("containerd", "kubelet", "kube-proxy")}
OVERLAY = "hybrid-overlay-node"
SHIM = r"C:\k\bin\shim.exe"

DESIRED = DesiredState(
    version="2.0.0",
    features=("Containers", "Microsoft-Hyper-V"),
    directories=(r"C:\k", r"C:\k\bin", r"C:\k\containerd", r"C:\var", r"C:\var\log"),
    managed_directories=(r"C:\k\bin", r"C:\k\containerd"),
    files=(
        inline_file(EXE["containerd"], "containerd 2", ("containerd",)),
        inline_file(EXE["kubelet"], "kubelet 2", ("kubelet",)),
        replace(inline_file(SHIM, "shim 2", ("containerd",)), used_by_pods=True),
        inline_file(paths.CONTAINERD_CONFIG, "config", ("containerd",)),
        inline_file(
            r"C:\k\bin\secret", "s", ("kubelet",), is_secret=True, unless=(r"C:\k\bin\joined",)
        ),
        inline_file(paths.VERSION, "2.0.0\n"),
    ),
    unwanted_files=(r"C:\k\kubelet.exe",),
    services=(
        DesiredService("containerd", EXE["containerd"] + " --run-service"),
        DesiredService("kubelet", EXE["kubelet"] + " --windows-service", ("containerd",)),
        DesiredService(OVERLAY, r"C:\k\bin\hybrid-overlay-node.exe", ("kubelet",)),
        DesiredService("kube-proxy", EXE["kube-proxy"], (OVERLAY,)),
    ),
    unwanted_services=OLD,
    networks=("OVNKubernetesHybridOverlayNetwork",),
    images=("mcr.microsoft.com/windows/nanoserver:ltsc2022",),
)


def fresh(**change: object) -> InstanceState:
    state = InstanceState(
        build=Build(10, 0, 20348, 1),
        product="Windows Server 2022 Datacenter",
        hostname="win-1",
        booted="1",
        features=dict.fromkeys(DESIRED.features, FeatureState.DISABLED),
        free_bytes=50 << 30,
    )
    return replace(state, **change)  # type: ignore[arg-type]


Decide = Callable[[InstanceState, DesiredState], tuple[Step, ...]]


def drive(host: PerfectHost, steps: Decide = diff, limit: int = 120) -> list[Step]:
    """Do the first step and observe again, until no step is left."""
    done: list[Step] = []
    while pending := steps(host.read(), host.desired):
        first = pending[0]
        assert not done or (first.kind, first.target) != (done[-1].kind, done[-1].target)
        host.do(first)
        done.append(first)
        assert len(done) < limit, [str(step) for step in done[-6:]]
    return done


def converged() -> PerfectHost:
    host = PerfectHost(fresh(), DESIRED)
    drive(host)
    return host


def titles(steps: tuple[Step, ...] | list[Step]) -> list[str]:
    return [step.title for step in steps]


def test_new_instance_gets_features_with_one_reboot() -> None:
    steps = diff(fresh(), DESIRED)
    assert titles(steps) == [
        "enable the feature Containers",
        "enable the feature Microsoft-Hyper-V",
        "restart the host",
        *(f"make the directory {path}" for path in DESIRED.directories),
        *(f"put the file {file.path}" for file in DESIRED.files[:-1]),
        *(f"create the service {service.name}" for service in DESIRED.services),
        "start the service containerd",
        "pull the image mcr.microsoft.com/windows/nanoserver:ltsc2022",
        "start the service kubelet",
        "start the service hybrid-overlay-node",
        "start the service kube-proxy",
        rf"put the file {paths.VERSION}",
    ]


def test_converged_instance_has_no_steps() -> None:
    assert diff(converged().read(), DESIRED) == ()


def test_pending_feature_only_needs_a_reboot() -> None:
    features = dict.fromkeys(DESIRED.features, FeatureState.PENDING)
    steps = diff(fresh(features=features), DESIRED)
    assert titles(steps)[0] == "restart the host"


@pytest.mark.parametrize("file", DESIRED.files[:2], ids=lambda file: file.path)
def test_file_is_replaced_while_its_service_and_dependents_are_stopped(
    file: DesiredFile,
) -> None:
    host = converged()
    host.state = replace(host.state, files={**host.state.files, file.path: "0" * 64})
    above = (
        [OVERLAY, "kubelet"] if file.used_by == ("kubelet",) else [OVERLAY, "kubelet", "containerd"]
    )
    assert titles(drive(host)) == [
        *(f"stop the service {name}" for name in ["kube-proxy", *above]),
        f"put the file {file.path}",
        *(f"start the service {name}" for name in [*reversed(above), "kube-proxy"]),
    ]


def test_file_used_by_pods_is_replaced_after_they_are_removed() -> None:
    host = converged()
    host.state = replace(host.state, files={**host.state.files, SHIM: "0" * 64})
    planned = diff(host.read(), DESIRED)
    assert titles(planned) == titles(drive(host))
    assert titles(planned)[:6] == [
        "stop the service kube-proxy",
        "stop the service hybrid-overlay-node",
        "stop the service kubelet",
        "remove the pod of-a-daemon-set",
        "stop the service containerd",
        f"put the file {SHIM}",
    ]
    assert host.pods == {"of-a-daemon-set"}


def test_change_without_effect_on_a_running_service_stops_nothing() -> None:
    host = converged()
    kubelet = host.state.services["kubelet"]
    changed = replace(kubelet, start=StartType.MANUAL, restarts=(10,), description="mine")
    host.state = replace(host.state, services={**host.state.services, "kubelet": changed})
    (step,) = diff(host.read(), DESIRED)
    assert str(step) == (
        "change the service kubelet: its start and description and restarts must change"
    )
    assert "10 ms" in step.found
    assert "10000/10000/10000 ms" in step.expected


def test_images_are_not_pulled_while_the_kubelet_runs() -> None:
    host = converged()
    host.stored_images.clear()
    assert diff(host.read(), DESIRED) == ()
    host.do(Step(StepKind.STOP_SERVICE, "kube-proxy", "", "", ""))
    host.do(Step(StepKind.STOP_SERVICE, OVERLAY, "", "", ""))
    host.do(Step(StepKind.STOP_SERVICE, "kubelet", "", "", ""))
    assert titles(diff(host.read(), DESIRED))[0].startswith("pull the image")


def test_bootstrap_credentials_are_not_put_after_joining() -> None:
    host = converged()
    files = {**host.state.files, r"C:\k\bin\joined": "1", r"C:\k\bin\secret": "another"}
    host.state = replace(host.state, files=files)
    assert diff(host.read(), DESIRED) == ()


def test_step_without_effect_is_first_again() -> None:
    host = PerfectHost(fresh(), DESIRED)
    while steps := diff(host.read(), DESIRED):
        assert diff(host.read(), DESIRED)[0] == steps[0]
        host.do(steps[0])
        again = diff(host.read(), DESIRED)
        assert (steps[0].kind, steps[0].target) not in {(one.kind, one.target) for one in again}


def on_docker() -> InstanceState:
    kubelet = ObservedService("kubelet", r"C:\k\kubelet.exe --windows-service", ("docker",))
    proxy = ObservedService("kube-proxy", r"C:\k\kube-proxy.exe", (OVERLAY,))
    overlay = ObservedService(OVERLAY, r"C:\k\hybrid-overlay-node.exe", ("kubelet",))
    return fresh(
        features=dict.fromkeys(DESIRED.features, FeatureState.ENABLED),
        services={one.name: one for one in (DOCKER, kubelet, proxy, overlay)},
        networks=(Network("1", DESIRED.networks[0]), Network("2", "nat")),
        files={r"C:\k\kubelet.exe": "1"},
        directories=frozenset({r"C:\k"}),
    )


def test_migration_from_docker_recreates_services_and_keeps_docker() -> None:
    host = PerfectHost(on_docker(), DESIRED)
    done = titles(drive(host))
    assert done[:7] == [
        "stop the service kube-proxy",
        "remove the service kube-proxy",
        "stop the service hybrid-overlay-node",
        "remove the service hybrid-overlay-node",
        "stop the service kubelet",
        "remove the service kubelet",
        "remove the network 1",
    ]
    assert titles(diff(on_docker(), DESIRED)) == done
    assert host.state.services["docker"] == DOCKER
    assert host.state.services["kubelet"].depends == ("containerd",)
    assert {network.name for network in host.state.networks} == {"nat", *DESIRED.networks}
    assert r"C:\k\kubelet.exe" not in host.state.files


@pytest.mark.parametrize(
    ("command_line", "depends", "expected"),
    [
        (r"C:\k\kubelet.exe", ("Docker",), True),
        (r"C:\k\kubelet.exe --network-plugin=cni", (), True),
        (r"C:\k\kubelet.exe --container-runtime=docker", (), True),
        (r"C:\k\kubelet.exe --container-runtime=remote", ("containerd",), False),
        (r"C:\k\kubelet.exe", (), False),
    ],
)
def test_dockershim_kubelet_is_recognised(
    command_line: str, depends: tuple[str, ...], expected: bool
) -> None:
    kubelet = ObservedService("kubelet", command_line, depends)
    assert runs_on_docker(fresh(services={"kubelet": kubelet})) is expected


def test_unmanaged_service_of_a_known_name_is_left() -> None:
    foreign_state = ObservedService(OLD[0], r"C:\Program Files\theirs.exe")
    host = converged()
    host.state = replace(host.state, services={**host.state.services, OLD[0]: foreign_state})
    assert diff(host.read(), DESIRED) == ()
    drive(host, removal_steps)
    assert set(host.state.services) == {OLD[0]}


def test_removal_removes_all_of_winpod_and_nothing_else() -> None:
    host = PerfectHost(on_docker(), DESIRED)
    drive(host)
    before = host.read()
    done = drive(host, removal_steps)
    after = host.read()
    assert dict(after.services) == {"docker": DOCKER}
    assert [network.name for network in after.networks] == ["nat"]
    assert not after.files
    assert not after.directories
    assert not host.pods
    assert (after.hostname, after.features) == (before.hostname, before.features)
    assert titles(done)[-4:] == [
        r"remove the directory C:\k\containerd",
        r"remove the directory C:\var\log",
        r"remove the directory C:\var",
        r"remove the directory C:\k",
    ]


def test_removal_keeps_a_shared_directory_with_foreign_files() -> None:
    host = converged()
    host.state = replace(host.state, files={**host.state.files, r"C:\k\mine.txt": "1"})
    drive(host, removal_steps)
    assert host.state.files == {r"C:\k\mine.txt": "1"}
    assert host.state.directories == {r"C:\k"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"build": Build(10, 0, 14393)}, "10.0.14393 (Windows Server 2016), and pods need"),
        (
            {"features": {"Containers": FeatureState.ENABLED}},
            "does not have the feature Microsoft-Hyper-V",
        ),
        ({"free_bytes": 100 << 20}, "drive C: has 100 MiB free"),
    ],
)
def test_unsuitable_instance_is_rejected(change: dict[str, object], message: str) -> None:
    with pytest.raises(InstanceUnsuitable) as caught:
        diff(fresh(**change), DESIRED)
    assert message in str(caught.value)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("installed", "is_refused"),
    [("2.0.1", True), ("10.0.0", True), ("2.0.0", False), ("", False), ("damaged", False)],
)
def test_downgrade_is_rejected(installed: str, is_refused: bool) -> None:
    state = fresh(version=installed)
    if not is_refused:
        assert diff(state, DESIRED)
        return
    with pytest.raises(DowngradeRefused, match=f"has version {installed}, and 2.0.0 is older"):
        diff(state, DESIRED)


def test_fact_query_covers_what_diff_compares() -> None:
    query = fact_query(DESIRED)
    assert {file.path for file in DESIRED.files} < set(query.files)
    assert r"C:\k\bin\joined" in query.files
    assert r"C:\k\kubelet.exe" in query.files
    assert {"docker", "com.docker.service", *OLD, "kubelet"} < set(query.services)
    assert query.directories == DESIRED.directories
    assert query.features == DESIRED.features


NAMES = ("containerd", "kubelet", OVERLAY, "kube-proxy", *OLD)
FOREIGN = ("docker", "user-service")


@st.composite
def states(draw: st.DrawFn) -> InstanceState:
    """Any state Windows can be in: dependencies of running services run, no cycles."""
    services: dict[str, ObservedService] = {}
    for name in [*draw(st.permutations(FOREIGN)), *draw(st.permutations(NAMES))]:
        if not draw(st.booleans()):
            continue
        lines = [rf"C:\k\{name}.exe"]
        lines += [one.command_line for one in DESIRED.services if one.name == name]
        if name in FOREIGN:
            lines = [rf"C:\theirs\{name}.exe"]
        depends = (
            tuple(draw(st.sets(st.sampled_from(sorted(services)), max_size=2))) if services else ()
        )
        if name in FOREIGN:
            depends = ()
        may_run = all(services[one].state is ServiceState.RUNNING for one in depends)
        services[name] = ObservedService(
            name,
            draw(st.sampled_from(lines)),
            depends,
            draw(st.sampled_from(StartType)),
            draw(st.sampled_from(ServiceState if may_run else [ServiceState.STOPPED])),
            restarts=draw(st.sampled_from([(), (10,), (10_000,) * 3])),
            reset_seconds=draw(st.sampled_from([0, 300])),
        )
    directories = {
        one for one in DESIRED.directories if draw(st.booleans()) or one in (r"C:\k", r"C:\var")
    }
    files: dict[str, str] = {}
    for file in DESIRED.files:
        if parent(file.path) in directories and draw(st.booleans()):
            files[file.path] = draw(st.sampled_from([file.sha256, "0" * 64]))
    if draw(st.booleans()):
        files[r"C:\k\kubelet.exe"] = "1"
    usable = [FeatureState.ENABLED, FeatureState.DISABLED, FeatureState.PENDING]
    return fresh(
        version=draw(st.sampled_from(["", "1.9.9", "2.0.0"])),
        features={name: draw(st.sampled_from(usable)) for name in DESIRED.features},
        services=services,
        networks=tuple(
            Network(str(number), name)
            for number, name in enumerate([*DESIRED.networks, "nat"])
            if draw(st.booleans())
        ),
        directories=frozenset(directories),
        files=files,
    )


quick = settings(
    max_examples=30, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)


def foreign_state(state: InstanceState) -> object:
    services = {name: one.command_line for name, one in state.services.items() if name in FOREIGN}
    return services, {one for one in state.networks if one.name == "nat"}


@quick
@given(states())
def test_converges_from_any_state(state: InstanceState) -> None:
    host = PerfectHost(state, DESIRED)
    drive(host)
    assert foreign_state(host.read()) == foreign_state(state)


@quick
@given(states())
def test_plan_without_reboot_equals_executed_steps(state: InstanceState) -> None:
    ready = replace(
        state,
        features=dict.fromkeys(DESIRED.features, FeatureState.ENABLED),
    )
    planned = diff(ready, DESIRED)
    done = drive(PerfectHost(ready, DESIRED))
    assert [step for step in titles(planned) if not step.startswith("pull")] == [
        step for step in titles(done) if not step.startswith("pull")
    ]


@quick
@given(states(), st.integers(0, 40))
def test_reboot_at_any_step_does_not_change_the_result(state: InstanceState, after: int) -> None:
    host = PerfectHost(state, DESIRED)
    for _ in range(after):
        if steps := diff(host.read(), DESIRED):
            host.do(steps[0])
    host.reboot()
    drive(host)
    assert foreign_state(host.read()) == foreign_state(state)


def test_removal_stops_dependencies_of_containerd_after_it() -> None:
    overlay = ObservedService(OVERLAY, r"C:\k\hybrid-overlay-node.exe")
    containerd = ObservedService("containerd", EXE["containerd"], (OVERLAY,))
    state = fresh(services={one.name: one for one in (overlay, containerd)})
    assert titles(drive(PerfectHost(state, DESIRED), removal_steps))[:2] == [
        "stop the service containerd",
        f"stop the service {OVERLAY}",
    ]


@quick
@given(states(), st.integers(0, 40))
def test_removal_from_any_point_is_complete(state: InstanceState, after: int) -> None:
    host = PerfectHost(state, DESIRED)
    for _ in range(after):
        if steps := diff(host.read(), DESIRED):
            host.do(steps[0])
    drive(host, removal_steps)
    left = host.read()
    assert set(left.services) <= set(FOREIGN)
    assert not left.files
    assert not left.directories
    assert foreign_state(left) == foreign_state(state)
