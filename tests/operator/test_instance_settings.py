"""Tests of instance settings and their errors."""

import pytest

from winpod.errors import InvalidInput
from winpod.operator.instance_settings import (
    InstanceNetworkSettings,
    InstanceSettings,
    NetworkKind,
    PrePulledImage,
)
from winpod.operator.settings import OperatorSettings, read_settings
from winpod.windows.builds import Build

EVERYTHING = """
instances:
  atMost: 3
  drainSeconds: 600
  joinSeconds: 300
  machineNamespace: machines
  machineUser: capi
  apiServer: https://api.example:6443/
  hypervisor: true
  pauseImage: registry.example/pause:1
  pauseBuild: ltsc2022
  pullProgressSeconds: 600
  mirrors: {docker.io: [https://mirror.example/v2, http://second.example]}
  images:
  - nanoserver:ltsc2022
  - {image: mcr.microsoft.com/windows/servercore:ltsc2019, build: "2019"}
  network:
    kind: win-overlay
    hybridOverlay: true
    vxlanPort: 9898
    pods: 10.128.0.0/14
    services: 172.30.0.0/16
  dns: {servers: [172.30.0.10], domain: example.local}
  labels: {team: a, node.kubernetes.io/x: y}
  cloudProvider: external
"""


def test_all_settings_are_read() -> None:
    assert read_settings(EVERYTHING).instances == InstanceSettings(
        at_most=3,
        drain_seconds=600,
        join_seconds=300,
        machine_namespace="machines",
        machine_user="capi",
        api_server="https://api.example:6443",
        hypervisor=True,
        pause_image="registry.example/pause:1",
        pause_build=Build(10, 0, 20348),
        pull_progress_seconds=600,
        mirrors=(("docker.io", ("https://mirror.example/v2", "http://second.example")),),
        images=(
            PrePulledImage("docker.io/library/nanoserver:ltsc2022"),
            PrePulledImage("mcr.microsoft.com/windows/servercore:ltsc2019", Build(10, 0, 17763)),
        ),
        network=InstanceNetworkSettings(
            NetworkKind.WIN_OVERLAY,
            "OVNKubernetesHybridOverlayNetwork",
            "10.128.0.0/14",
            "172.30.0.0/16",
            True,
            9898,
        ),
        dns_servers=("172.30.0.10",),
        dns_domain="example.local",
        labels=(("node.kubernetes.io/x", "y"), ("team", "a")),
        cloud_provider="external",
    )


def test_image_with_tag_and_digest_is_normalised_like_containerd() -> None:
    """containerd drops the tag if there is a digest; an image it does not list is pulled again."""
    digest = f"sha256:{'a' * 64}"
    images = f"[nano:1@{digest}, {{image: 'r.example/core:2@{digest}', build: '2022'}}, nano:1]"
    found = read_settings(f"instances: {{images: {images}}}").instances.images
    assert [one.image for one in found] == [
        f"docker.io/library/nano@{digest}",
        f"r.example/core@{digest}",
        "docker.io/library/nano:1",
    ]


@pytest.mark.parametrize("text", ["", "instances:", "instances: {network: {kind: none}}"])
def test_missing_settings_have_defaults(text: str) -> None:
    assert read_settings(text) == OperatorSettings()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{atmost: 1}", "instances.atmost is not a setting"),
        ("{atMost: 0}", "instances.atMost is 0, and must be from 1 to 100"),
        ("{atMost: 1.5}", "instances.atMost is 1.5, and must be a whole number"),
        ("{pauseBuild: 1066}", "instances.pauseBuild"),
        ("{pauseImage: 'a b'}", "instances.pauseImage is wrong"),
        ("{mirrors: {docker.io: [mirror.example]}}", "must be a URL such as"),
        ("{images: [{build: '2019'}]}", "instances.images[0].image is required"),
        ("{network: {kind: calico}}", 'instances.network.kind is "calico", and must be one of'),
        (
            "{network: {pods: 10.0.0.0/8}}",
            "instances.network.pods needs a network.kind other than none",
        ),
        ("{network: {kind: sdnbridge}}", "instances.network.name is required"),
        (
            "{network: {kind: sdnbridge, name: l2bridge, pods: 10.0.0.1/8, services: 10.0.0.0/8}}",
            'instances.network.pods is "10.0.0.1/8", and must be a CIDR',
        ),
        (
            "{network: {kind: sdnbridge, hybridOverlay: true}}",
            "instances.network.hybridOverlay needs the kind win-overlay, not sdnbridge",
        ),
        ("{dns: {servers: [dns]}}", 'instances.dns.servers[0] is "dns", and must be an IP address'),
        ("{labels: {kubernetes.io/role: a}}", "is a reserved Kubernetes label"),
        ("{labels: {a.k8s.io/role: a}}", "is a reserved Kubernetes label"),
        ("{apiServer: 'http://api.example'}", "must be a URL such as https://api.example:6443"),
        ("{cloudProvider: aws}", "instances.cloudProvider"),
    ],
)
def test_invalid_setting_names_its_field(text: str, sentence: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        read_settings(f"instances: {text}")
    assert sentence in str(caught.value)
