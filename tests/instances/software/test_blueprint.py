"""What an instance should be like, and that a perfect host becomes it and can be left again."""

import base64
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.instances.perfect_host import PerfectHost, parent
from winpod.cluster.instance_settings import (
    InstanceSettings,
    NetworkKind,
    NetworkSettings,
    PrePulled,
)
from winpod.instances import paths
from winpod.instances.errors import BadConfiguration, BadPayload, InstanceUnfit
from winpod.instances.rules.desired import Desired
from winpod.instances.rules.difference import difference
from winpod.instances.rules.removal import removal
from winpod.instances.rules.state import FeatureState, Network, Service, State
from winpod.instances.rules.steps import Do
from winpod.instances.rules.versions import Version
from winpod.instances.software.blueprint import blueprint, everything_of_ours
from winpod.instances.software.joining import Joining
from winpod.instances.software.payload import Payload, PayloadFile
from winpod.instances.software.programs import PROGRAMS, REQUIRED
from winpod.windows.builds import Build
from winpod.windows.command_line import split

W2022 = Build(10, 0, 20348, 1)
TOKEN = "abcdef.0123456789abcdef"
JOINING = Joining(
    "https://api.example:6443",
    "-----BEGIN CERTIFICATE-----\n",
    "win-1",
    "192.0.2.7",
    TOKEN,
    "10.244.3.0/24",
)
HYBRID = NetworkSettings(
    NetworkKind.WIN_OVERLAY,
    "OVNKubernetesHybridOverlayNetwork",
    "10.244.0.0/16",
    "10.96.0.0/12",
    hybrid_overlay=True,
    vxlan_port=9898,
)
SETTINGS = InstanceSettings(network=HYBRID, dns_servers=("10.96.0.10",), labels=(("team", "a"),))
OVERLAY, BRIDGE = (
    NetworkSettings(kind, "pods", "10.244.0.0/16", "10.96.0.0/12")
    for kind in (NetworkKind.SDN_OVERLAY, NetworkKind.SDN_BRIDGE)
)


def payload(*names: str) -> Payload:
    files = {
        name: PayloadFile(PROGRAMS[name], Path(name), f"{number:064x}", 100 << 20)
        for number, name in enumerate(names or PROGRAMS)
    }
    return Payload("6.0.0", "amd64", Version(2, 4, 2), files)


def wanted(
    settings: InstanceSettings = SETTINGS, joining: Joining = JOINING, *names: str
) -> Desired:
    return blueprint(settings, payload(*names), W2022, joining)


def text(desired: Desired, path: str) -> str:
    return (desired.file(path).content or b"").decode()


def fresh(**change: object) -> State:
    features = {"Containers": FeatureState.DISABLED, "Microsoft-Hyper-V": FeatureState.DISABLED}
    state = State(W2022, "Windows Server 2022", "win-1", "1", free_bytes=1 << 40)
    return replace(state, features=features, **change)  # type: ignore[arg-type]


def on_docker() -> State:
    services = (
        Service("docker", r"C:\docker\dockerd.exe"),
        Service("kubelet", r"C:\k\kubelet.exe --windows-service", ("docker",)),
        Service("hybrid-overlay-node", r"C:\k\hybrid-overlay-node.exe", ("kubelet",)),
        Service("kube-proxy", r"C:\k\kube-proxy.exe", ("hybrid-overlay-node",)),
    )
    return fresh(
        services={service.name: service for service in services},
        networks=(Network("1", HYBRID.name), Network("2", f"Base{HYBRID.name}")),
        directories=frozenset({r"C:\k", paths.CNI, paths.CNI_CONFIG}),
        files={r"C:\k\kubelet.exe": "1", r"C:\k\cni\config\cni.conf": "2"},
    )


def converge(host: PerfectHost) -> None:
    while steps := difference(host.read(), host.desired):
        host.do(steps[0])


VARIANTS = [
    InstanceSettings(),
    InstanceSettings(hypervisor=True, images=(PrePulled("mcr.example/base:1"),)),
    SETTINGS,
    InstanceSettings(network=OVERLAY, mirrors=(("docker.io", ("https://m.example",)),)),
    InstanceSettings(network=BRIDGE),
]


@pytest.mark.parametrize("settings", VARIANTS)
@pytest.mark.parametrize("start", [fresh, on_docker])
def test_a_perfect_host_becomes_it_and_is_left_with_nothing_of_ours(
    start: Callable[[], State], settings: InstanceSettings
) -> None:
    host = PerfectHost(start(), wanted(settings))
    converge(host)
    assert host.state.runs("containerd")
    assert host.state.services["kubelet"].depends == ("containerd",)
    host.desired = everything_of_ours(settings)
    while steps := removal(host.read(), host.desired):
        host.do(steps[0])
    assert set(host.state.services) <= {"docker"}
    assert not host.state.files
    assert not host.state.directories
    assert not host.state.networks


@pytest.mark.parametrize("settings", VARIANTS)
def test_every_file_has_its_directory_and_every_program_its_service(
    settings: InstanceSettings,
) -> None:
    desired = wanted(settings)
    assert {parent(file.path) for file in desired.files} <= set(desired.directories)
    assert len({file.path for file in desired.files}) == len(desired.files)
    for path in desired.directories:
        assert parent(path) in ("C:", *desired.directories[: desired.directories.index(path)])
    files = {file.path for file in desired.files}
    for service in desired.services:
        programs = [word for word in split(service.command_line) if word.endswith(".exe")]
        assert programs
        assert set(programs) <= files
        for program in programs:
            assert service.name in desired.file(program).used_by
    assert not {"docker", "com.docker.service"} & set(desired.unwanted_services)


def test_services_start_in_order_and_the_kubelet_needs_containerd_alone() -> None:
    services = wanted().services
    assert [(service.name, service.depends) for service in services] == [
        ("containerd", ()),
        ("kubelet", ("containerd",)),
        ("windows_exporter", ()),
        ("csi-proxy", ()),
        ("hybrid-overlay-node", ("kubelet",)),
        ("kube-proxy", ("hybrid-overlay-node",)),
    ]
    assert {service.restarts for service in services} == {(10_000, 10_000, 10_000)}


def test_containerd_logs_to_the_documents_place() -> None:
    command = split(wanted().service("containerd").command_line)
    assert command == [
        r"C:\k\bin\containerd.exe",
        "--config",
        r"C:\k\containerd\containerd.toml",
        "--log-file",
        r"C:\var\log\containerd\containerd.log",
        "--run-service",
    ]
    assert r"C:\var\log\pods" in wanted().directories


def test_the_kubelet_is_given_containerd_and_no_flag_that_is_gone() -> None:
    runner, log, program, *flags = split(wanted().service("kubelet").command_line)
    assert runner == r"C:\k\bin\kube-log-runner.exe"
    assert log == r"-log-file=C:\var\log\kubelet\kubelet.log"
    assert program == r"C:\k\bin\kubelet.exe"
    assert "--container-runtime-endpoint=npipe://./pipe/containerd-containerd" in flags
    assert "--windows-service" in flags
    assert "--node-ip=192.0.2.7" in flags
    assert "--node-labels=team=a" in flags
    gone = ("--container-runtime=", "--network-plugin", "--pod-infra-container-image", "--docker")
    assert not [flag for flag in flags if flag.startswith(gone)]
    assert TOKEN not in wanted().service("kubelet").command_line


def test_logs_of_the_kubelet_and_kube_proxy_are_rotated_where_the_payload_can() -> None:
    desired = blueprint(SETTINGS, replace(payload(), rotates_logs=True), W2022, JOINING)
    for name in ("kubelet", "kube-proxy"):
        _, log, size, age, program, *_ = split(desired.service(name).command_line)
        assert log == rf"-log-file=C:\var\log\{name}\{name}.log"
        assert (size, age) == ("-log-file-size=100Mi", "-log-file-age=168h")
        assert program == rf"C:\k\bin\{name}.exe"


def test_an_instance_known_by_name_is_given_no_address() -> None:
    desired = wanted(joining=replace(JOINING, address="win-1.example"))
    assert "--node-ip" not in desired.service("kubelet").command_line


def test_the_kubelets_configuration_is_that_of_a_windows_node() -> None:
    config = yaml.safe_load(text(wanted(), paths.KUBELET_CONFIG))
    assert config["registerWithTaints"] == [
        {"key": "os", "value": "Windows", "effect": "NoSchedule"}
    ]
    assert config["systemReserved"] == {"cpu": "500m", "memory": "2Gi", "ephemeral-storage": "1Gi"}
    assert (config["cgroupsPerQOS"], config["enforceNodeAllocatable"]) == (False, [])
    assert (config["clusterDNS"], config["clusterDomain"]) == (["10.96.0.10"], "cluster.local")
    assert (config["rotateCertificates"], config["serverTLSBootstrap"]) == (True, True)
    assert config["resolvConf"] == ""


def test_what_it_joins_with_is_a_secret_until_it_has_joined() -> None:
    desired = wanted()
    file = desired.file(paths.BOOTSTRAP_KUBECONFIG)
    config = yaml.safe_load(text(desired, paths.BOOTSTRAP_KUBECONFIG))
    assert config["users"][0]["user"] == {"token": TOKEN}
    cluster = config["clusters"][0]["cluster"]
    assert cluster["server"] == "https://api.example:6443"
    assert base64.b64decode(cluster["certificate-authority-data"]).decode() == JOINING.authority
    assert file.is_secret
    assert file.unless == (paths.KUBECONFIG, paths.CLIENT_CERTIFICATE)
    assert TOKEN not in repr(desired)
    assert TOKEN not in repr(JOINING)
    steps = difference(fresh(), desired)
    assert not [step for step in steps if TOKEN in repr(step)]
    assert paths.BOOTSTRAP_KUBECONFIG not in {
        one.path for one in wanted(joining=replace(JOINING, token="")).files
    }


def test_a_network_of_ours_waits_for_the_range_that_the_cluster_gives() -> None:
    desired = wanted(joining=replace(JOINING, subnet=""))
    made = {file.path for file in desired.files}
    assert not made & {paths.NETWORK_CONFIG, paths.KUBE_PROXY_CONFIG, paths.VERSION}
    assert "kube-proxy" not in {service.name for service in desired.services}
    assert "kube-proxy" not in desired.unwanted_services
    assert paths.VERSION in {file.path for file in wanted(InstanceSettings()).files}


def test_a_network_of_others_is_left_to_them() -> None:
    desired = wanted(InstanceSettings())
    assert paths.NETWORK_CONFIG not in {file.path for file in desired.files}
    assert {"kube-proxy", "hybrid-overlay-node"} <= set(desired.unwanted_services)


def cni(network: NetworkSettings, joining: Joining = JOINING) -> Any:
    desired = wanted(InstanceSettings(network=network), joining)
    return json.loads(text(desired, paths.NETWORK_CONFIG))


def test_win_overlay_speaks_the_second_interface() -> None:
    config = cni(HYBRID)
    assert (config["type"], config["apiVersion"]) == ("win-overlay", 2)
    assert config["name"] == "OVNKubernetesHybridOverlayNetwork"
    assert config["ipam"] == {
        "type": "host-local",
        "subnet": "10.244.3.0/24",
        "rangeEnd": "10.244.3.253",
    }
    policies = {one["value"]["Type"]: one["value"]["Settings"] for one in config["policies"]}
    assert policies == {
        "OutBoundNAT": {"Exceptions": ["10.244.0.0/16", "10.96.0.0/12"]},
        "SDNRoute": {"DestinationPrefix": "10.96.0.0/12", "NeedEncap": True},
        "ProviderAddress": {"ProviderAddress": "192.0.2.7"},
    }


@pytest.mark.parametrize("network", [OVERLAY, BRIDGE])
def test_the_other_plugins_have_their_own_words_for_it(network: NetworkSettings) -> None:
    config = cni(network)
    assert (config["type"], config["cniVersion"]) == (str(network.kind), "0.2.0")
    types = [one["Value"]["Type"] for one in config["AdditionalArgs"]]
    assert ("ProviderAddress" in types) == (network.kind is NetworkKind.SDN_OVERLAY)
    assert config["ipam"]["routes"] == [{"GW": "10.244.3.1"}]


@pytest.mark.parametrize(
    ("network", "vip"), [(HYBRID, "10.244.3.254"), (OVERLAY, "10.244.3.254"), (BRIDGE, None)]
)
def test_kube_proxy_has_an_address_that_no_pod_gets(
    network: NetworkSettings, vip: str | None
) -> None:
    desired = wanted(InstanceSettings(network=network))
    config = yaml.safe_load(text(desired, paths.KUBE_PROXY_CONFIG))
    assert config["mode"] == "kernelspace"
    assert config["winkernel"]["networkName"] == network.name
    assert config["winkernel"].get("sourceVip") == vip
    assert config["clientConnection"] == {"kubeconfig": paths.KUBECONFIG}


@pytest.mark.parametrize(
    ("subnet", "sentence"), [("fd00::/64", "must be one of IPv4"), ("10.0.0.0/30", "is too small")]
)
def test_a_range_that_no_node_can_use_is_refused(subnet: str, sentence: str) -> None:
    with pytest.raises(BadConfiguration, match=sentence):
        wanted(joining=replace(JOINING, subnet=subnet))


def test_hybrid_overlay_joins_with_the_kubelets_credentials() -> None:
    command = split(wanted().service("hybrid-overlay-node").command_line)
    assert "--node=win-1" in command
    assert f"--bootstrap-kubeconfig={paths.KUBECONFIG}" in command
    assert "--hybrid-overlay-vxlan-port=9898" in command


@pytest.mark.parametrize(
    ("network", "missing"),
    [
        (OVERLAY, "sdnoverlay.exe, host-local.exe, kube-proxy.exe"),
        (HYBRID, "win-overlay.exe, host-local.exe, kube-proxy.exe, hybrid-overlay-node.exe"),
    ],
)
def test_a_payload_without_the_networks_programs_is_refused(
    network: NetworkSettings, missing: str
) -> None:
    with pytest.raises(BadPayload, match=f"needs {missing}, which the payload has not"):
        wanted(InstanceSettings(network=network), JOINING, *REQUIRED)


def test_images_of_a_build_are_pulled_on_hosts_of_it_only() -> None:
    images = (
        PrePulled("a"),
        PrePulled("b", Build(10, 0, 17763)),
        PrePulled("c", Build(10, 0, 20348)),
    )
    assert wanted(InstanceSettings(images=images)).images == ("a", "c")


def test_hyper_v_is_a_feature_where_guests_are_wanted() -> None:
    assert wanted(InstanceSettings()).features == ("Containers",)
    assert wanted(InstanceSettings(hypervisor=True)).features == (
        "Containers",
        "Microsoft-Hyper-V",
    )


def test_the_same_input_gives_the_same_files() -> None:
    assert wanted() == wanted()


def test_a_payload_of_the_required_programs_makes_a_node() -> None:
    desired = wanted(InstanceSettings(), JOINING, *REQUIRED)
    assert [service.name for service in desired.services] == ["containerd", "kubelet"]


def test_a_host_without_room_for_the_payload_is_left_alone() -> None:
    steps = difference(fresh(), wanted())
    assert sum(step.do is Do.PUT_FILE for step in steps) == len(wanted().files)
    with pytest.raises(InstanceUnfit, match=r"need 1500 MiB and 512 MiB to spare"):
        difference(fresh(free_bytes=1 << 30), wanted())
