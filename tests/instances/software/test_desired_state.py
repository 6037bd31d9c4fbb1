"""Desired state of an instance; a perfect host converges to it and can be cleaned again."""

import base64
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.perfect_host import PerfectHost, parent
from winpod.instances import paths
from winpod.instances.errors import InstanceUnsuitable, InvalidConfiguration, InvalidPayload
from winpod.instances.planner.desired import DesiredState
from winpod.instances.planner.diff import diff, removal_steps
from winpod.instances.planner.state import FeatureState, InstanceState, Network, ObservedService
from winpod.instances.planner.steps import StepKind
from winpod.instances.planner.versions import Version
from winpod.instances.software.desired_state import build_desired_state, desired_removal
from winpod.instances.software.kubelet_config import JoinConfig
from winpod.instances.software.payload import Payload, PayloadFile
from winpod.instances.software.programs import PROGRAMS, REQUIRED
from winpod.operator.instance_settings import (
    InstanceNetworkSettings,
    InstanceSettings,
    NetworkKind,
    PrePulledImage,
)
from winpod.windows.builds import Build
from winpod.windows.command_line import split

W2022 = Build(10, 0, 20348, 1)
TOKEN = "abcdef.0123456789abcdef"
JOIN = JoinConfig(
    "https://api.example:6443",
    "-----BEGIN CERTIFICATE-----\n",
    "win-1",
    "192.0.2.7",
    TOKEN,
    "10.244.3.0/24",
)
HYBRID = InstanceNetworkSettings(
    NetworkKind.WIN_OVERLAY,
    "OVNKubernetesHybridOverlayNetwork",
    "10.244.0.0/16",
    "10.96.0.0/12",
    hybrid_overlay=True,
    vxlan_port=9898,
)
SETTINGS = InstanceSettings(network=HYBRID, dns_servers=("10.96.0.10",), labels=(("team", "a"),))
OVERLAY, BRIDGE = (
    InstanceNetworkSettings(kind, "pods", "10.244.0.0/16", "10.96.0.0/12")
    for kind in (NetworkKind.SDN_OVERLAY, NetworkKind.SDN_BRIDGE)
)


def payload(*names: str) -> Payload:
    files = {
        name: PayloadFile(PROGRAMS[name], Path(name), f"{number:064x}", 100 << 20)
        for number, name in enumerate(names or PROGRAMS)
    }
    return Payload("6.0.0", "amd64", Version(2, 4, 2), files)


def desired_state(
    settings: InstanceSettings = SETTINGS, join: JoinConfig = JOIN, *names: str
) -> DesiredState:
    return build_desired_state(settings, payload(*names), W2022, join)


def text(desired: DesiredState, path: str) -> str:
    return (desired.file(path).content or b"").decode()


def fresh(**change: object) -> InstanceState:
    features = {"Containers": FeatureState.DISABLED, "Microsoft-Hyper-V": FeatureState.DISABLED}
    state = InstanceState(W2022, "Windows Server 2022", "win-1", "1", free_bytes=1 << 40)
    return replace(state, features=features, **change)  # type: ignore[arg-type]


def on_docker() -> InstanceState:
    services = (
        ObservedService("docker", r"C:\docker\dockerd.exe"),
        ObservedService("kubelet", r"C:\k\kubelet.exe --windows-service", ("docker",)),
        ObservedService("hybrid-overlay-node", r"C:\k\hybrid-overlay-node.exe", ("kubelet",)),
        ObservedService("kube-proxy", r"C:\k\kube-proxy.exe", ("hybrid-overlay-node",)),
    )
    return fresh(
        services={service.name: service for service in services},
        networks=(Network("1", HYBRID.name), Network("2", f"Base{HYBRID.name}")),
        directories=frozenset({r"C:\k", paths.CNI, paths.CNI_CONFIG}),
        files={r"C:\k\kubelet.exe": "1", r"C:\k\cni\config\cni.conf": "2"},
    )


def converge(host: PerfectHost) -> None:
    while steps := diff(host.read(), host.desired):
        host.do(steps[0])


VARIANTS = [
    InstanceSettings(),
    InstanceSettings(hypervisor=True, images=(PrePulledImage("mcr.example/base:1"),)),
    SETTINGS,
    InstanceSettings(network=OVERLAY, mirrors=(("docker.io", ("https://m.example",)),)),
    InstanceSettings(network=BRIDGE),
]


@pytest.mark.parametrize("settings", VARIANTS)
@pytest.mark.parametrize("start", [fresh, on_docker])
def test_perfect_host_converges_and_is_cleaned(
    start: Callable[[], InstanceState], settings: InstanceSettings
) -> None:
    host = PerfectHost(start(), desired_state(settings))
    converge(host)
    assert host.state.runs("containerd")
    assert host.state.services["kubelet"].depends == ("containerd",)
    host.desired = desired_removal(settings)
    while steps := removal_steps(host.read(), host.desired):
        host.do(steps[0])
    assert set(host.state.services) <= {"docker"}
    assert not host.state.files
    assert not host.state.directories
    assert not host.state.networks


@pytest.mark.parametrize("settings", VARIANTS)
def test_every_file_has_its_directory_and_every_program_its_service(
    settings: InstanceSettings,
) -> None:
    desired = desired_state(settings)
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


def test_services_start_in_order_and_kubelet_depends_on_containerd_only() -> None:
    services = desired_state().services
    assert [(service.name, service.depends) for service in services] == [
        ("containerd", ()),
        ("kubelet", ("containerd",)),
        ("windows_exporter", ()),
        ("csi-proxy", ()),
        ("hybrid-overlay-node", ("kubelet",)),
        ("kube-proxy", ("hybrid-overlay-node",)),
    ]
    assert {service.restarts for service in services} == {(10_000, 10_000, 10_000)}


def test_containerd_logs_to_the_documented_file() -> None:
    command = split(desired_state().service("containerd").command_line)
    assert command == [
        r"C:\k\bin\containerd.exe",
        "--config",
        r"C:\k\containerd\containerd.toml",
        "--log-file",
        r"C:\var\log\containerd\containerd.log",
        "--run-service",
    ]
    assert r"C:\var\log\pods" in desired_state().directories


def test_kubelet_uses_containerd_and_no_removed_flag() -> None:
    runner, log, program, *flags = split(desired_state().service("kubelet").command_line)
    assert runner == r"C:\k\bin\kube-log-runner.exe"
    assert log == r"-log-file=C:\var\log\kubelet\kubelet.log"
    assert program == r"C:\k\bin\kubelet.exe"
    assert "--container-runtime-endpoint=npipe://./pipe/containerd-containerd" in flags
    assert "--windows-service" in flags
    assert "--node-ip=192.0.2.7" in flags
    assert "--node-labels=team=a" in flags
    gone = ("--container-runtime=", "--network-plugin", "--pod-infra-container-image", "--docker")
    assert not [flag for flag in flags if flag.startswith(gone)]
    assert TOKEN not in desired_state().service("kubelet").command_line


def test_logs_are_rotated_if_the_payload_supports_it() -> None:
    desired = build_desired_state(SETTINGS, replace(payload(), rotates_logs=True), W2022, JOIN)
    for name in ("kubelet", "kube-proxy"):
        _, log, size, age, program, *_ = split(desired.service(name).command_line)
        assert log == rf"-log-file=C:\var\log\{name}\{name}.log"
        assert (size, age) == ("-log-file-size=100Mi", "-log-file-age=168h")
        assert program == rf"C:\k\bin\{name}.exe"


def test_instance_with_a_name_as_address_has_no_node_ip() -> None:
    desired = desired_state(join=replace(JOIN, address="win-1.example"))
    assert "--node-ip" not in desired.service("kubelet").command_line


def test_kubelet_config_is_that_of_a_windows_node() -> None:
    config = yaml.safe_load(text(desired_state(), paths.KUBELET_CONFIG))
    assert config["registerWithTaints"] == [
        {"key": "os", "value": "Windows", "effect": "NoSchedule"}
    ]
    assert config["systemReserved"] == {"cpu": "500m", "memory": "2Gi", "ephemeral-storage": "1Gi"}
    assert (config["cgroupsPerQOS"], config["enforceNodeAllocatable"]) == (False, [])
    assert (config["clusterDNS"], config["clusterDomain"]) == (["10.96.0.10"], "cluster.local")
    assert (config["rotateCertificates"], config["serverTLSBootstrap"]) == (True, True)
    assert config["resolvConf"] == ""


def test_bootstrap_kubeconfig_is_secret_and_needed_until_joined() -> None:
    desired = desired_state()
    file = desired.file(paths.BOOTSTRAP_KUBECONFIG)
    config = yaml.safe_load(text(desired, paths.BOOTSTRAP_KUBECONFIG))
    assert config["users"][0]["user"] == {"token": TOKEN}
    cluster = config["clusters"][0]["cluster"]
    assert cluster["server"] == "https://api.example:6443"
    assert base64.b64decode(cluster["certificate-authority-data"]).decode() == JOIN.authority
    assert file.is_secret
    assert file.unless == (paths.KUBECONFIG, paths.CLIENT_CERTIFICATE)
    assert TOKEN not in repr(desired)
    assert TOKEN not in repr(JOIN)
    steps = diff(fresh(), desired)
    assert not [step for step in steps if TOKEN in repr(step)]
    assert paths.BOOTSTRAP_KUBECONFIG not in {
        one.path for one in desired_state(join=replace(JOIN, token="")).files
    }


def test_managed_network_waits_for_the_pod_cidr() -> None:
    desired = desired_state(join=replace(JOIN, subnet=""))
    made = {file.path for file in desired.files}
    assert not made & {paths.NETWORK_CONFIG, paths.KUBE_PROXY_CONFIG, paths.VERSION}
    assert "kube-proxy" not in {service.name for service in desired.services}
    assert "kube-proxy" not in desired.unwanted_services
    assert paths.VERSION in {file.path for file in desired_state(InstanceSettings()).files}


def test_network_kind_none_is_left_to_the_cluster() -> None:
    desired = desired_state(InstanceSettings())
    assert paths.NETWORK_CONFIG not in {file.path for file in desired.files}
    assert {"kube-proxy", "hybrid-overlay-node"} <= set(desired.unwanted_services)


def cni(network: InstanceNetworkSettings, join: JoinConfig = JOIN) -> Any:
    desired = desired_state(InstanceSettings(network=network), join)
    return json.loads(text(desired, paths.NETWORK_CONFIG))


def test_win_overlay_uses_hns_v2() -> None:
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
def test_sdn_plugins_use_additional_args(network: InstanceNetworkSettings) -> None:
    config = cni(network)
    assert (config["type"], config["cniVersion"]) == (str(network.kind), "0.2.0")
    types = [one["Value"]["Type"] for one in config["AdditionalArgs"]]
    assert ("ProviderAddress" in types) == (network.kind is NetworkKind.SDN_OVERLAY)
    assert config["ipam"]["routes"] == [{"GW": "10.244.3.1"}]


@pytest.mark.parametrize(
    ("network", "vip"), [(HYBRID, "10.244.3.254"), (OVERLAY, "10.244.3.254"), (BRIDGE, None)]
)
def test_source_vip_is_outside_the_ipam_range(
    network: InstanceNetworkSettings, vip: str | None
) -> None:
    desired = desired_state(InstanceSettings(network=network))
    config = yaml.safe_load(text(desired, paths.KUBE_PROXY_CONFIG))
    assert config["mode"] == "kernelspace"
    assert config["winkernel"]["networkName"] == network.name
    assert config["winkernel"].get("sourceVip") == vip
    assert config["clientConnection"] == {"kubeconfig": paths.KUBECONFIG}


@pytest.mark.parametrize(
    ("subnet", "message"), [("fd00::/64", "must be an IPv4 range"), ("10.0.0.0/30", "is too small")]
)
def test_unusable_pod_cidr_is_rejected(subnet: str, message: str) -> None:
    with pytest.raises(InvalidConfiguration, match=message):
        desired_state(join=replace(JOIN, subnet=subnet))


def test_hybrid_overlay_bootstraps_with_the_kubelet_credentials() -> None:
    command = split(desired_state().service("hybrid-overlay-node").command_line)
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
def test_payload_without_network_programs_is_rejected(
    network: InstanceNetworkSettings, missing: str
) -> None:
    with pytest.raises(InvalidPayload, match=f"needs {missing}, missing in the payload"):
        desired_state(InstanceSettings(network=network), JOIN, *REQUIRED)


def test_images_of_a_build_are_pulled_only_on_that_build() -> None:
    images = (
        PrePulledImage("a"),
        PrePulledImage("b", Build(10, 0, 17763)),
        PrePulledImage("c", Build(10, 0, 20348)),
    )
    assert desired_state(InstanceSettings(images=images)).images == ("a", "c")


def test_hyper_v_is_enabled_for_hypervisor_isolation() -> None:
    assert desired_state(InstanceSettings()).features == ("Containers",)
    assert desired_state(InstanceSettings(hypervisor=True)).features == (
        "Containers",
        "Microsoft-Hyper-V",
    )


def test_desired_state_is_deterministic() -> None:
    assert desired_state() == desired_state()


def test_required_programs_are_enough_for_a_node() -> None:
    desired = desired_state(InstanceSettings(), JOIN, *REQUIRED)
    assert [service.name for service in desired.services] == ["containerd", "kubelet"]


def test_host_without_disk_space_is_rejected() -> None:
    steps = diff(fresh(), desired_state())
    assert sum(step.kind is StepKind.PUT_FILE for step in steps) == len(desired_state().files)
    with pytest.raises(InstanceUnsuitable, match=r"need 1500 MiB plus a reserve of 512 MiB"):
        diff(fresh(free_bytes=1 << 30), desired_state())
