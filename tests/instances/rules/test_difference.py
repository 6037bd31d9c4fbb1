"""What is done to an instance, in which order, and that it ends, from any state it may be in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.instances.perfect_host import PerfectHost, parent
from winpod.instances import paths
from winpod.instances.errors import DowngradeRefused, InstanceUnfit
from winpod.instances.rules.desired import Desired, WantedFile, WantedService, written
from winpod.instances.rules.difference import difference, what_to_ask
from winpod.instances.rules.removal import removal
from winpod.instances.rules.state import FeatureState, Network, Running, Service, Start, State
from winpod.instances.rules.steps import Do, Step
from winpod.instances.rules.stopping import runs_on_docker
from winpod.windows.builds import Build

DOCKER = Service("docker", r"C:\Program Files\Docker\dockerd.exe --run-service")
OLD = ("windows-instance-config-daemon", "azure-cloud-node-manager")
EXE = {name: rf"C:\k\bin\{name}.exe" for name in ("containerd", "kubelet", "kube-proxy")}
OVERLAY = "hybrid-overlay-node"
SHIM = r"C:\k\bin\shim.exe"

DESIRED = Desired(
    version="2.0.0",
    features=("Containers", "Microsoft-Hyper-V"),
    directories=(r"C:\k", r"C:\k\bin", r"C:\k\containerd", r"C:\var", r"C:\var\log"),
    owned=(r"C:\k\bin", r"C:\k\containerd"),
    files=(
        written(EXE["containerd"], "containerd 2", ("containerd",)),
        written(EXE["kubelet"], "kubelet 2", ("kubelet",)),
        replace(written(SHIM, "shim 2", ("containerd",)), used_by_pods=True),
        written(paths.CONTAINERD_CONFIG, "config", ("containerd",)),
        written(
            r"C:\k\bin\secret", "s", ("kubelet",), is_secret=True, unless=(r"C:\k\bin\joined",)
        ),
        written(paths.VERSION, "2.0.0\n"),
    ),
    unwanted_files=(r"C:\k\kubelet.exe",),
    services=(
        WantedService("containerd", EXE["containerd"] + " --run-service"),
        WantedService("kubelet", EXE["kubelet"] + " --windows-service", ("containerd",)),
        WantedService(OVERLAY, r"C:\k\bin\hybrid-overlay-node.exe", ("kubelet",)),
        WantedService("kube-proxy", EXE["kube-proxy"], (OVERLAY,)),
    ),
    unwanted_services=OLD,
    networks=("OVNKubernetesHybridOverlayNetwork",),
    images=("mcr.microsoft.com/windows/nanoserver:ltsc2022",),
)


def fresh(**change: object) -> State:
    state = State(
        build=Build(10, 0, 20348, 1),
        product="Windows Server 2022 Datacenter",
        hostname="win-1",
        booted="1",
        features=dict.fromkeys(DESIRED.features, FeatureState.DISABLED),
        free_bytes=50 << 30,
    )
    return replace(state, **change)  # type: ignore[arg-type]


Decide = Callable[[State, Desired], tuple[Step, ...]]


def drive(host: PerfectHost, steps: Decide = difference, most: int = 120) -> list[Step]:
    """As it is done: the first step, then everything is read again."""
    done: list[Step] = []
    while todo := steps(host.read(), host.desired):
        first = todo[0]
        assert not done or (first.do, first.target) != (done[-1].do, done[-1].target)
        host.do(first)
        done.append(first)
        assert len(done) < most, [str(step) for step in done[-6:]]
    return done


def converged() -> PerfectHost:
    host = PerfectHost(fresh(), DESIRED)
    drive(host)
    return host


def titles(steps: tuple[Step, ...] | list[Step]) -> list[str]:
    return [step.title for step in steps]


def test_a_new_instance_gets_features_and_starts_anew_once() -> None:
    steps = difference(fresh(), DESIRED)
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


def test_an_instance_that_is_as_it_should_be_has_no_steps() -> None:
    assert difference(converged().read(), DESIRED) == ()


def test_a_feature_that_waits_for_a_restart_is_not_enabled_again() -> None:
    features = dict.fromkeys(DESIRED.features, FeatureState.PENDING)
    steps = difference(fresh(features=features), DESIRED)
    assert titles(steps)[0] == "restart the host"


@pytest.mark.parametrize("file", DESIRED.files[:2], ids=lambda file: file.path)
def test_a_file_is_replaced_while_its_service_and_those_above_it_are_stopped(
    file: WantedFile,
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


def test_a_file_that_pods_use_is_replaced_once_the_last_of_them_are_gone() -> None:
    host = converged()
    host.state = replace(host.state, files={**host.state.files, SHIM: "0" * 64})
    planned = difference(host.read(), DESIRED)
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


def test_a_change_that_a_running_service_does_not_notice_stops_nothing() -> None:
    host = converged()
    kubelet = host.state.services["kubelet"]
    changed = replace(kubelet, start=Start.MANUAL, restarts=(10,), description="mine")
    host.state = replace(host.state, services={**host.state.services, "kubelet": changed})
    (step,) = difference(host.read(), DESIRED)
    assert str(step) == (
        "change the service kubelet: its start and description and restarts must change"
    )
    assert "10 ms" in step.found
    assert "10000/10000/10000 ms" in step.expected


def test_images_are_the_kubelets_once_it_runs() -> None:
    host = converged()
    host.stored_images.clear()
    assert difference(host.read(), DESIRED) == ()
    host.do(Step(Do.STOP_SERVICE, "kube-proxy", "", "", ""))
    host.do(Step(Do.STOP_SERVICE, OVERLAY, "", "", ""))
    host.do(Step(Do.STOP_SERVICE, "kubelet", "", "", ""))
    assert titles(difference(host.read(), DESIRED))[0].startswith("pull the image")


def test_credentials_to_join_with_are_not_put_once_the_kubelet_has_its_own() -> None:
    host = converged()
    files = {**host.state.files, r"C:\k\bin\joined": "1", r"C:\k\bin\secret": "another"}
    host.state = replace(host.state, files=files)
    assert difference(host.read(), DESIRED) == ()


def test_a_step_that_did_nothing_is_the_first_again() -> None:
    host = PerfectHost(fresh(), DESIRED)
    while steps := difference(host.read(), DESIRED):
        assert difference(host.read(), DESIRED)[0] == steps[0]
        host.do(steps[0])
        again = difference(host.read(), DESIRED)
        assert (steps[0].do, steps[0].target) not in {(one.do, one.target) for one in again}


def on_docker() -> State:
    kubelet = Service("kubelet", r"C:\k\kubelet.exe --windows-service", ("docker",))
    proxy = Service("kube-proxy", r"C:\k\kube-proxy.exe", (OVERLAY,))
    overlay = Service(OVERLAY, r"C:\k\hybrid-overlay-node.exe", ("kubelet",))
    return fresh(
        features=dict.fromkeys(DESIRED.features, FeatureState.ENABLED),
        services={one.name: one for one in (DOCKER, kubelet, proxy, overlay)},
        networks=(Network("1", DESIRED.networks[0]), Network("2", "nat")),
        files={r"C:\k\kubelet.exe": "1"},
        directories=frozenset({r"C:\k"}),
    )


def test_an_instance_on_docker_loses_our_services_and_networks_first_and_keeps_docker() -> None:
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
    assert titles(difference(on_docker(), DESIRED)) == done
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
def test_a_kubelet_from_dockers_time_is_recognised(
    command_line: str, depends: tuple[str, ...], expected: bool
) -> None:
    kubelet = Service("kubelet", command_line, depends)
    assert runs_on_docker(fresh(services={"kubelet": kubelet})) is expected


def test_a_service_of_a_known_name_that_is_not_ours_is_left() -> None:
    theirs = Service(OLD[0], r"C:\Program Files\theirs.exe")
    host = converged()
    host.state = replace(host.state, services={**host.state.services, OLD[0]: theirs})
    assert difference(host.read(), DESIRED) == ()
    drive(host, removal)
    assert set(host.state.services) == {OLD[0]}


def test_removal_leaves_nothing_of_ours_and_everything_else() -> None:
    host = PerfectHost(on_docker(), DESIRED)
    drive(host)
    before = host.read()
    done = drive(host, removal)
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


def test_removal_leaves_a_shared_directory_with_somebody_elses_file() -> None:
    host = converged()
    host.state = replace(host.state, files={**host.state.files, r"C:\k\mine.txt": "1"})
    drive(host, removal)
    assert host.state.files == {r"C:\k\mine.txt": "1"}
    assert host.state.directories == {r"C:\k"}


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"build": Build(10, 0, 14393)}, "10.0.14393 (Windows Server 2016), and pods need"),
        ({"features": {"Containers": FeatureState.ENABLED}}, "has no feature Microsoft-Hyper-V"),
        ({"free_bytes": 100 << 20}, "drive C: has 100 MiB left"),
    ],
)
def test_nothing_is_touched_where_no_step_would_do(
    change: dict[str, object], sentence: str
) -> None:
    with pytest.raises(InstanceUnfit) as caught:
        difference(fresh(**change), DESIRED)
    assert sentence in str(caught.value)
    assert caught.value.advice


@pytest.mark.parametrize(
    ("installed", "is_refused"),
    [("2.0.1", True), ("10.0.0", True), ("2.0.0", False), ("", False), ("damaged", False)],
)
def test_a_downgrade_is_refused(installed: str, is_refused: bool) -> None:
    state = fresh(version=installed)
    if not is_refused:
        assert difference(state, DESIRED)
        return
    with pytest.raises(DowngradeRefused, match=f"has version {installed}, and 2.0.0 is older"):
        difference(state, DESIRED)


def test_what_is_asked_for_covers_what_is_compared() -> None:
    question = what_to_ask(DESIRED)
    assert {file.path for file in DESIRED.files} < set(question.files)
    assert r"C:\k\bin\joined" in question.files
    assert r"C:\k\kubelet.exe" in question.files
    assert {"docker", "com.docker.service", *OLD, "kubelet"} < set(question.services)
    assert question.directories == DESIRED.directories
    assert question.features == DESIRED.features


NAMES = ("containerd", "kubelet", OVERLAY, "kube-proxy", *OLD)
KEPT = ("docker", "user-service")


@st.composite
def states(draw: st.DrawFn) -> State:
    """Any mixture that Windows can be in: what runs has what it depends on, and no rings."""
    services: dict[str, Service] = {}
    for name in [*draw(st.permutations(KEPT)), *draw(st.permutations(NAMES))]:
        if not draw(st.booleans()):
            continue
        lines = [rf"C:\k\{name}.exe"]
        lines += [one.command_line for one in DESIRED.services if one.name == name]
        if name in KEPT:
            lines = [rf"C:\theirs\{name}.exe"]
        depends = (
            tuple(draw(st.sets(st.sampled_from(sorted(services)), max_size=2))) if services else ()
        )
        if name in KEPT:
            depends = ()
        may_run = all(services[one].state is Running.RUNNING for one in depends)
        services[name] = Service(
            name,
            draw(st.sampled_from(lines)),
            depends,
            draw(st.sampled_from(Start)),
            draw(st.sampled_from(Running if may_run else [Running.STOPPED])),
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


def theirs(state: State) -> object:
    services = {name: one.command_line for name, one in state.services.items() if name in KEPT}
    return services, {one for one in state.networks if one.name == "nat"}


@quick
@given(states())
def test_from_any_state_it_ends_as_it_should_be(state: State) -> None:
    host = PerfectHost(state, DESIRED)
    drive(host)
    assert theirs(host.read()) == theirs(state)


@quick
@given(states())
def test_the_plan_without_a_restart_is_exactly_what_is_done(state: State) -> None:
    ready = replace(
        state,
        features=dict.fromkeys(DESIRED.features, FeatureState.ENABLED),
    )
    planned = difference(ready, DESIRED)
    done = drive(PerfectHost(ready, DESIRED))
    assert [step for step in titles(planned) if not step.startswith("pull")] == [
        step for step in titles(done) if not step.startswith("pull")
    ]


@quick
@given(states(), st.integers(0, 40))
def test_a_restart_of_the_host_at_any_step_changes_nothing_of_how_it_ends(
    state: State, after: int
) -> None:
    host = PerfectHost(state, DESIRED)
    for _ in range(after):
        if steps := difference(host.read(), DESIRED):
            host.do(steps[0])
    host.reboot()
    drive(host)
    assert theirs(host.read()) == theirs(state)


def test_removal_stops_what_containerd_was_made_to_depend_on_after_containerd() -> None:
    overlay = Service(OVERLAY, r"C:\k\hybrid-overlay-node.exe")
    containerd = Service("containerd", EXE["containerd"], (OVERLAY,))
    state = fresh(services={one.name: one for one in (overlay, containerd)})
    assert titles(drive(PerfectHost(state, DESIRED), removal))[:2] == [
        "stop the service containerd",
        f"stop the service {OVERLAY}",
    ]


@quick
@given(states(), st.integers(0, 40))
def test_removal_from_any_point_leaves_nothing_of_ours(state: State, after: int) -> None:
    host = PerfectHost(state, DESIRED)
    for _ in range(after):
        if steps := difference(host.read(), DESIRED):
            host.do(steps[0])
    drive(host, removal)
    left = host.read()
    assert set(left.services) <= set(KEPT)
    assert not left.files
    assert not left.directories
    assert theirs(left) == theirs(state)
