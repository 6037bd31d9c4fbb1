"""What may be written about instances, and the sentence for what may not."""

import pytest

from winpod.cluster.instance_settings import (
    InstanceSettings,
    NetworkKind,
    NetworkSettings,
    PrePulled,
)
from winpod.cluster.settings import Settings, read_settings
from winpod.windows.builds import Build
from winpod.windows.errors import InvalidInput

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


def test_everything_can_be_written() -> None:
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
            PrePulled("docker.io/library/nanoserver:ltsc2022"),
            PrePulled("mcr.microsoft.com/windows/servercore:ltsc2019", Build(10, 0, 17763)),
        ),
        network=NetworkSettings(
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


def test_an_image_with_a_tag_and_a_digest_is_the_one_that_containerd_lists() -> None:
    """containerd keeps no tag beside a digest, and what it does not list would be pulled again."""
    digest = f"sha256:{'a' * 64}"
    images = f"[nano:1@{digest}, {{image: 'r.example/core:2@{digest}', build: '2022'}}, nano:1]"
    found = read_settings(f"instances: {{images: {images}}}").instances.images
    assert [one.image for one in found] == [
        f"docker.io/library/nano@{digest}",
        f"r.example/core@{digest}",
        "docker.io/library/nano:1",
    ]


@pytest.mark.parametrize("text", ["", "instances:", "instances: {network: {kind: none}}"])
def test_what_is_not_written_has_its_default(text: str) -> None:
    assert read_settings(text) == Settings()


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
        ("{network: {pods: 10.0.0.0/8}}", "instances.network.pods is for a network of ours"),
        ("{network: {kind: sdnbridge}}", "instances.network.name is required"),
        (
            "{network: {kind: sdnbridge, name: l2bridge, pods: 10.0.0.1/8, services: 10.0.0.0/8}}",
            'instances.network.pods is "10.0.0.1/8", and must be a range of addresses',
        ),
        (
            "{network: {kind: sdnbridge, hybridOverlay: true}}",
            "instances.network.hybridOverlay needs the kind win-overlay, not sdnbridge",
        ),
        ("{dns: {servers: [dns]}}", 'instances.dns.servers[0] is "dns", and must be an address'),
        ("{labels: {kubernetes.io/role: a}}", "is a label of Kubernetes' own"),
        ("{labels: {a.k8s.io/role: a}}", "is a label of Kubernetes' own"),
        ("{apiServer: 'http://api.example'}", "must be a URL such as https://api.example:6443"),
        ("{cloudProvider: aws}", "instances.cloudProvider"),
    ],
)
def test_what_may_not_be_written_is_a_sentence_about_its_field(text: str, sentence: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        read_settings(f"instances: {text}")
    assert sentence in str(caught.value)
