"""The kubelet API over simulated containers, without authorization.

Authorization is tested in tests/e2e, with a real API server.
"""

import asyncio
import json
import shutil
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession, TCPConnector, web
from prometheus_client.parser import text_string_to_metric_families

from tests.support.known_objects import read
from tests.support.pushed_images import push
from tests.support.small_node import SmallNode, pod_of, pulled, small_node
from tests.support.streaming_client import StandInClient, exec_client
from winpod.clock import utc_now
from winpod.cri.proto.api_pb2 import StopContainerRequest
from winpod.cri.rpc import CriClient
from winpod.k8s.certificates import CertificateSubject, PrivateKey, write_chain
from winpod.k8s.models import core_v1 as v1
from winpod.kubelet.eviction.thresholds import EvictionThresholds, parse_thresholds
from winpod.kubelet.kubelet import Kubelet
from winpod.kubelet.server.context import ServerContext
from winpod.kubelet.server.handlers import kubelet_configuration
from winpod.kubelet.server.server import KubeletServer
from winpod.kubelet.server.tls import TlsFiles

UID = "uid-web"


class AllowAll:
    """Authorizer that allows everything."""

    async def authorize(self, request: web.Request) -> None:
        pass


@dataclass
class Api:
    """A client of the kubelet API, and its node."""

    url: str
    trust: ssl.SSLContext
    http: ClientSession
    node: SmallNode
    kubelet: Kubelet
    cri: CriClient
    image: str
    certificate: Path

    async def get(self, path: str, status: int = 200, **query: str) -> str:
        async with self.http.get(self.url + path, params=query) as response:
            text = await response.text()
            assert response.status == status, text
            return text

    async def json(self, path: str, **query: str) -> Any:
        return json.loads(await self.get(path, 200, **query))

    async def run(self, *commands: str, **spec: Any) -> None:
        self.kubelet.update_pod(pod_of(self.image, "web", *commands, **spec))
        await self.node.until(lambda: self.node.reporter.last(UID).phase == "Running")

    async def stop(self) -> None:
        found = self.kubelet.find_container("shop", "web", "app")
        assert found
        await self.cri.call("StopContainer", StopContainerRequest(container_id=found.id))

    def log(self, restart: int = 0) -> Path:
        return self.node.node_config.log_root / f"shop_web_{UID}/app/{restart}.log"


def new_certificate(file: Path) -> ssl.SSLContext:
    key = PrivateKey.new()
    chain = key.self_signed(CertificateSubject("win-1", addresses=("127.0.0.1",)), utc_now())
    write_chain(file, chain, key)
    return ssl.create_default_context(cadata=chain.decode())


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[tuple[SmallNode, CriClient]]:
    node = small_node(tmp_path)
    async with node.runtime.running() as client:
        yield node, client


@pytest.fixture
async def api(
    client: tuple[SmallNode, CriClient], home: Path, registry: str, tmp_path: Path
) -> AsyncIterator[Api]:
    node, cri = client
    image = await pulled(cri, await push(home, f"{registry}/app:1", "2022"))
    file = tmp_path / "serving.pem"
    trust = new_certificate(file)
    async with node.kubelet(cri) as kubelet:
        serving = KubeletServer(
            ServerContext(node.node_config, kubelet.runtime, kubelet, node.objects), AllowAll()
        )
        await serving.start(TlsFiles(file, file), "127.0.0.1", 0)
        async with ClientSession(connector=TCPConnector(ssl=trust)) as http:
            url = f"https://127.0.0.1:{serving.port}"
            yield Api(url, trust, http, node, kubelet, cri, image, file)
        await serving.close()


def write(log: Path, *lines: str) -> None:
    with log.open("a") as file:
        file.writelines(f"{line}\n" for line in lines)


async def test_log_supports_all_kubectl_flags(api: Api) -> None:
    await api.run()
    log = api.log()
    write(log, "2126-01-31T12:00:00.5Z stdout F one", "2126-01-31T12:00:01.5Z stderr P tw")
    write(log, "2126-01-31T12:00:02.5Z stderr F o", "2126-01-31T12:00:03.5Z stdout F three")
    path = "/containerLogs/shop/web/app"
    assert await api.get(path) == "simulated: serve\none\ntwo\nthree\n"
    assert await api.get(path, tailLines="2") == "two\nthree\n"
    assert await api.get(path, sinceTime="2126-01-31T12:00:01Z") == "two\nthree\n"
    assert await api.get(path, sinceTime="2126-01-31T12:00:01Z", stream="Stderr") == "two\n"
    assert await api.get(path, tailLines="2", limitBytes="5") == "two\nt"
    assert await api.get(path, tailLines="2", timestamps="true") == (
        "2126-01-31T12:00:01.5Z two\n2126-01-31T12:00:03.5Z three\n"
    )
    assert "must be a number" in await api.get(path, 422, tailLines="x")


async def test_follow_ends_with_container_and_survives_rotation(api: Api) -> None:
    await api.run("serve", restartPolicy="Never")
    following = asyncio.create_task(api.get("/containerLogs/shop/web/app", follow="true"))
    await asyncio.sleep(0.3)
    rotate(api.log())
    write(api.log(), "2126-01-31T12:00:00Z stdout F after")
    await api.stop()
    text = await following
    assert text == "simulated: serve\nafter\n"


def rotate(log: Path) -> None:
    log.rename(log.with_name("old"))


async def test_previous_log_is_available_until_removal(api: Api) -> None:
    await api.run()
    path = "/containerLogs/shop/web/app"
    assert "previous terminated container" in await api.get(path, 400, previous="true")
    await api.stop()
    await api.node.until(
        lambda: (
            api.node.reporter.last(UID).containerStatuses[0].restartCount == 1
            and api.node.reporter.last(UID).containerStatuses[0].state.running
        )
    )
    write(api.log(0), "2126-01-31T12:00:00Z stdout F first")
    write(api.log(1), "2126-01-31T12:00:00Z stdout F second")
    assert (await api.get(path, previous="true")).endswith("first\n")
    assert (await api.get(path)).endswith("second\n")


async def test_unknown_pod_or_container_is_not_found(api: Api) -> None:
    await api.run()
    assert await api.get("/containerLogs/shop/nobody/app", 404) == "pod does not exist\n"
    assert 'container "no" not found' in await api.get("/containerLogs/shop/web/no", 404)
    assert await api.get("/exec/shop/web/other-uid/app", 404, output="1") == "pod does not exist\n"
    await api.get("/unknown", 404)
    async with api.http.post(f"{api.url}/checkpoint/shop/web/app") as response:
        assert response.status == 501


async def test_exec_over_websocket(api: Api) -> None:
    await api.run()
    url = f"{api.url}/exec/shop/web/{UID}/app?command=ver&command=/?&output=1&error=1"
    async with api.http.ws_connect(url, protocols=("v5.channel.k8s.io",)) as socket:
        assert socket.protocol == "v5.channel.k8s.io"
        messages = [message.data async for message in socket]
    assert b"".join(data[1:] for data in messages if data[0] == 1) == b"simulated: ver /?\r\n"
    assert json.loads(messages[-1][1:])["status"] == "Success"


async def test_exec_over_spdy(api: Api) -> None:
    await api.run()
    url = f"{api.url}/exec/shop/web/app?command=ver&output=1"
    async with exec_client(url, "stdout", trust=api.trust) as (spdy, ids):
        got = await spdy.collect()
    assert got[ids["stdout"]] == b"simulated: ver\r\n"
    assert json.loads(got[ids["error"]])["status"] == "Success"


async def test_attach_ends_with_container(api: Api) -> None:
    await api.run("simulate 0 3", restartPolicy="Never")
    url = f"{api.url}/attach/shop/web/app?output=1&error=1"
    async with api.http.ws_connect(url, protocols=("v5.channel.k8s.io",)) as socket:
        messages = [message.data async for message in socket]
    assert json.loads(messages[-1][1:])["status"] == "Success"


async def test_port_forward_to_pod(api: Api) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"heard " + await reader.read())
        writer.close()

    await api.run()
    async with await asyncio.start_server(answer, "127.0.0.1", 0) as listening:
        port = listening.sockets[0].getsockname()[1]
        url = f"{api.url}/portForward/shop/web"
        async with await StandInClient.connect(
            url, "portforward.k8s.io", trust=api.trust
        ) as forward:
            headers = {"port": str(port), "requestid": "0"}
            await forward.open(streamtype="error", **headers)
            data = await forward.open(streamtype="data", **headers)
            await forward.write(data, b"you", fin=True)
            async for frame in forward.received():
                if getattr(frame, "data", b""):
                    assert getattr(frame, "data", b"") == b"heard you"
                    break


async def test_invalid_stream_request_is_rejected(api: Api) -> None:
    await api.run()
    assert "at least 1 of stdin" in await api.get("/exec/shop/web/app", 400, command="ver")
    query = {"command": "ver", "output": "1"}
    assert "Upgrade request required" in await api.get("/exec/shop/web/app", 400, **query)
    headers = {"Connection": "Upgrade", "Upgrade": "SPDY/3.1"}
    async with api.http.post(
        f"{api.url}/exec/shop/web/app", params=query, headers=headers
    ) as response:
        assert response.status == 400
        assert "X-Stream-Protocol-Version" in await response.text()


async def test_run_returns_command_output(api: Api) -> None:
    await api.run()
    async with api.http.post(f"{api.url}/run/shop/web/app?cmd=ver+/?") as response:
        assert (response.status, await response.text()) == (200, "simulated: ver /?\r\n")


async def test_pods_are_listed_with_their_statuses(api: Api) -> None:
    await api.run()
    listed = await api.json("/pods")
    assert (listed["kind"], len(listed["items"])) == ("PodList", 1)
    assert listed["items"][0]["metadata"]["name"] == "web"
    assert listed["items"][0]["status"]["phase"] == "Running"
    running = (await api.json("/runningpods/"))["items"]
    assert [pod["spec"]["containers"][0]["name"] for pod in running] == ["app"]


async def test_configz_and_healthz(api: Api) -> None:
    configuration = (await api.json("/configz"))["kubeletconfig"]
    assert configuration["maxPods"] == 110
    assert configuration["evictionHard"]["memory.available"] == str(500 << 20)
    thresholds = parse_thresholds("nodefs.available<2Gi,imagefs.available<5%", EvictionThresholds())
    thresholds = replace(
        thresholds, transition_period=timedelta(seconds=90), image_low=Decimal("0.7")
    )
    configuration = kubelet_configuration(replace(api.node.node_config, thresholds=thresholds))
    assert configuration["evictionHard"] == {
        "memory.available": str(500 << 20),
        "nodefs.available": str(2 << 30),
        "imagefs.available": "5%",
    }
    assert configuration["evictionPressureTransitionPeriod"] == "1m30s"
    assert (
        configuration["imageGCHighThresholdPercent"],
        configuration["imageGCLowThresholdPercent"],
    ) == (85, 70)
    assert await api.get("/healthz") == "ok"


async def test_summary_reports_node_pod_and_volume_usage(api: Api) -> None:
    volumes = [{"name": "scratch", "emptyDir": {}}]
    await api.run(volumes=volumes)
    scratch = api.node.node_config.root / "pods" / UID / "volumes/scratch"
    fill(scratch / "data", 100_000)
    summary = await api.json("/stats/summary")
    assert summary["node"]["nodeName"] == "win-1"
    assert summary["node"]["systemContainers"][0]["name"] == "pods"
    assert summary["node"]["fs"]["capacityBytes"] > 0
    assert summary["node"]["runtime"]["imageFs"]["usedBytes"] > 0
    (pod,) = summary["pods"]
    assert pod["podRef"] == {"name": "web", "namespace": "shop", "uid": UID}
    (container,) = pod["containers"]
    assert container["name"] == "app"
    assert container["memory"]["workingSetBytes"] > 0
    assert container["memory"]["usageBytes"] >= container["memory"]["workingSetBytes"]
    assert container["logs"]["usedBytes"] > 0
    assert pod["volume"][0]["usedBytes"] >= 100_000
    assert pod["ephemeral-storage"]["usedBytes"] >= 100_000
    brief = await api.json("/stats/summary", only_cpu_and_memory="true")
    assert "fs" not in brief["node"]
    assert "rootfs" not in brief["pods"][0]["containers"][0]


async def test_volumes_are_measured_by_type_like_kubelet(api: Api, tmp_path: Path) -> None:
    api.node.objects.claims["shop/data"] = claim("local-1")
    api.node.objects.claims["shop/web-cache"] = claim("local-1")
    api.node.objects.claims["shop/shared"] = claim("of-host")
    api.node.objects.volumes["local-1"] = volume(local={"path": str(tmp_path)})
    api.node.objects.volumes["of-host"] = volume(hostPath={"path": str(tmp_path)})
    api.node.objects.config_maps["shop/settings"] = read(v1.ConfigMap, {"data": {"a": "b" * 5000}})
    await api.run(
        volumes=[
            {"name": "settings", "configMap": {"name": "settings"}},
            {"name": "data", "persistentVolumeClaim": {"claimName": "data"}},
            {"name": "cache", "ephemeral": {"volumeClaimTemplate": {"spec": {}}}},
            {"name": "shared", "persistentVolumeClaim": {"claimName": "shared"}},
            {"name": "machine", "hostPath": {"path": str(tmp_path)}},
        ]
    )
    (pod,) = (await api.json("/stats/summary"))["pods"]
    volumes_by_name = {volume["name"]: volume for volume in pod["volume"]}
    assert volumes_by_name.keys() == {"settings", "data", "cache"}
    assert volumes_by_name["data"]["pvcRef"] == {"name": "data", "namespace": "shop"}
    assert volumes_by_name["cache"]["pvcRef"] == {"name": "web-cache", "namespace": "shop"}
    assert volumes_by_name["data"]["capacityBytes"] == shutil.disk_usage(tmp_path).total
    assert volumes_by_name["data"]["usedBytes"] > 1 << 20
    assert (
        5000
        < volumes_by_name["settings"]["usedBytes"]
        <= pod["ephemeral-storage"]["usedBytes"]
        < 1 << 20
    )
    metrics = await samples(api, "/metrics")
    counted = metrics["kubelet_volume_stats_capacity_bytes"]
    assert [labels["persistentvolumeclaim"] for labels, _ in counted] == ["data", "web-cache"]
    assert counted[0][1] == volumes_by_name["data"]["capacityBytes"]


def claim(name: str) -> v1.PersistentVolumeClaim:
    return read(v1.PersistentVolumeClaim, {"spec": {"volumeName": name}})


def volume(**kind: dict[str, str]) -> v1.PersistentVolume:
    return read(v1.PersistentVolume, {"spec": kind})


async def test_summary_reports_machine_network_and_tasks(api: Api) -> None:
    node = (await api.json("/stats/summary"))["node"]
    names = [interface["name"] for interface in node["network"]["interfaces"]]
    assert "lo" not in names
    assert node["network"].get("name", "") == (names[0] if names else "")
    assert 0 < node["rlimit"]["curproc"] < node["rlimit"]["maxpid"]


def fill(file: Path, size: int) -> None:
    file.write_bytes(b"x" * size)


async def samples(api: Api, path: str) -> dict[str, list[tuple[dict[str, str], float]]]:
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(await api.get(path)):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


async def test_resource_metrics_for_metrics_server(api: Api) -> None:
    await api.run()
    found = await samples(api, "/metrics/resource")
    of_container = {"container": "app", "namespace": "shop", "pod": "web"}
    for name in (
        "container_cpu_usage_seconds_total",
        "container_memory_working_set_bytes",
        "container_start_time_seconds",
    ):
        assert [labels for labels, _ in found[name]] == [of_container]
    for name in ("pod_cpu_usage_seconds_total", "pod_memory_working_set_bytes"):
        assert [labels for labels, _ in found[name]] == [{"namespace": "shop", "pod": "web"}]
    assert found["node_memory_working_set_bytes"][0][1] > 0
    assert "node_cpu_usage_seconds_total" in found
    assert found["resource_scrape_error"] == [({}, 0.0)]


async def test_cadvisor_metrics_come_from_runtime(api: Api) -> None:
    await api.run()
    found = await samples(api, "/metrics/cadvisor")
    labels = [labels for labels, _ in found["container_memory_working_set_bytes"]]
    assert {one["container"] for one in labels} == {"", "app"}
    assert {one["pod"] for one in labels} == {"web"}


async def test_own_and_probe_metrics(api: Api) -> None:
    probe = {"exec": {"command": ["ver"]}, "periodSeconds": 1}
    await api.run(with_each=[{"readinessProbe": probe}])
    await api.node.until(lambda: api.node.reporter.last(UID).containerStatuses[0].ready)
    await api.get("/unknown/of/anybody", 404)
    found = await samples(api, "/metrics")
    assert found["kubelet_node_name"] == [({"node": "win-1"}, 1.0)]
    assert found["kubelet_running_pods"] == [({}, 1.0)]
    assert ({"container_state": "running"}, 1.0) in found["kubelet_running_containers"]
    assert ({"method": "GET", "path": "", "status": "404"}, 1.0) in (
        found["kubelet_http_requests_total"]
    )
    asked = {"probe_type": "Readiness", "result": "successful", "container": "app"}
    of_pod = {"pod": "web", "namespace": "shop", "pod_uid": UID}
    counted = (await samples(api, "/metrics/probes"))["prober_probe_total"]
    assert [labels for labels, _ in counted] == [{**asked, **of_pod}]


async def test_latency_metrics(api: Api) -> None:
    await api.run()
    found = await samples(api, "/metrics")
    assert found["kubelet_pod_start_duration_seconds_count"] == [({}, 1.0)]
    assert 0 < found["kubelet_pod_start_duration_seconds_sum"][0][1] < api.node.patience
    calls = found["kubelet_runtime_operations_duration_seconds_count"]
    for name in ("run_podsandbox", "image_status", "create_container", "start_container"):
        assert ({"operation_type": name}, 1.0) in calls
    mounts = found["winpod_node_pod_volumes_duration_seconds_count"]
    assert mounts == [({"operation_type": "mount"}, 1.0)]


async def test_replaced_serving_certificate_is_used(api: Api) -> None:
    trust = new_certificate(api.certificate)
    async with asyncio.timeout(120):
        while True:
            async with ClientSession(connector=TCPConnector(ssl=trust)) as http:
                try:
                    async with http.get(f"{api.url}/healthz") as response:
                        assert response.status == 200
                        return
                except OSError:
                    await asyncio.sleep(0.1)


async def test_disconnected_log_follower_is_cleaned_up(api: Api) -> None:
    await api.run()
    path = f"{api.url}/containerLogs/shop/web/app?follow=true"
    before = len(asyncio.all_tasks())
    async with api.http.get(path) as response:
        assert await response.content.readline() == b"simulated: serve\n"
        assert len(asyncio.all_tasks()) > before
        response.close()
    async with asyncio.timeout(120):
        while len(asyncio.all_tasks()) > before + 1:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
