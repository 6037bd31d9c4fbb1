"""Simulated nodes: the kubelet over the simulated runtime, without volumes."""

from pathlib import Path

from tests.support.small_node import pod_of, small_node
from winpod.cri.fake_runtime import FakeRuntime
from winpod.cri.proto import api_pb2 as api
from winpod.kubelet.node.multi_node import SimulatedVolumeManager

SUBNET = api.RuntimeConfig(network_config=api.NetworkConfig(pod_cidr="10.9.0.0/24"))


async def test_pod_runs_on_a_simulated_node(tmp_path: Path) -> None:
    node = small_node(tmp_path)
    volumes = SimulatedVolumeManager(node.objects, node.node_config)
    mount = {"volumeMounts": [{"name": "data", "mountPath": "C:\\data"}]}
    data = [{"name": "data", "emptyDir": {}}]
    client = FakeRuntime(node.node_config.build)
    request = api.UpdateRuntimeConfigRequest(runtime_config=SUBNET)
    await client.call("UpdateRuntimeConfig", request)
    async with node.kubelet(client, volumes=volumes) as kubelet:
        kubelet.update_pod(pod_of("registry.example/app:1", with_each=[mount], volumes=data))
        await node.until(lambda: node.reporter.last("uid-web").phase == "Running")
        assert node.reporter.last("uid-web").containerStatuses[0].ready
    assert "Failed" not in node.reporter.reasons("uid-web")
