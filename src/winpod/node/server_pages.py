"""The pages of the node's API that tell what there is: pods, settings, health."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from aiohttp import web
from lightkube.models import core_v1 as v1
from lightkube.models.meta_v1 import ObjectMeta

from winpod.node.engine import PodFound
from winpod.node.facts import NodeFacts, Share
from winpod.node.log_rotation import MAX_BYTES, MAX_FILES
from winpod.node.pods import with_fields
from winpod.node.requests import metadata_of
from winpod.node.server_parts import CONTAINER, Parts
from winpod.node.summary import Summary
from winpod.node.thresholds import show_duration, show_thresholds


class Pages:
    def __init__(self, parts: Parts, summary: Summary) -> None:
        self._parts = parts
        self._summary = summary

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/pods", self._pods),
            web.get("/runningpods", self._running_pods),
            web.get("/runningpods/", self._running_pods),
            web.get("/stats/summary", self._stats),
            web.post("/stats/summary", self._stats),
            web.get("/configz", self._settings),
            web.get("/healthz", self._health),
            web.get("/healthz/ping", self._health),
            web.get("/healthz/syncloop", self._health),
            web.post(f"/checkpoint/{CONTAINER}", self._checkpoint),
        ]

    async def _pods(self, request: web.Request) -> web.Response:
        del request
        found = self._parts.pods.pods()
        return _pod_list([with_fields(one.pod, status=one.status) for one in found])

    async def _running_pods(self, request: web.Request) -> web.Response:
        del request
        running = (running_pod(found) for found in self._parts.pods.pods())
        return _pod_list([pod for pod in running if pod])

    async def _stats(self, request: web.Request) -> web.Response:
        only = request.query.get("only_cpu_and_memory") == "true"
        return web.json_response(await self._summary.tell(only_cpu_and_memory=only))

    async def _settings(self, request: web.Request) -> web.Response:
        del request
        return web.json_response({"kubeletconfig": settings(self._parts.facts)})

    async def _health(self, request: web.Request) -> web.Response:
        del request
        return web.Response(text="ok")

    async def _checkpoint(self, request: web.Request) -> web.Response:
        del request
        return web.Response(status=501, text="a Windows container cannot be checkpointed.\n")


def _pod_list(pods: list[v1.Pod]) -> web.Response:
    items = [with_fields(pod, apiVersion=None, kind=None).to_dict() for pod in pods]
    return web.json_response(
        {"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items}
    )


def running_pod(found: PodFound) -> v1.Pod | None:
    """What the runtime runs of a pod, as far as a pod can say it."""
    running = found.seen.running()
    if not running:
        return None
    metadata = metadata_of(found.pod)
    return v1.Pod(
        metadata=ObjectMeta(name=metadata.name, namespace=metadata.namespace, uid=metadata.uid),
        spec=v1.PodSpec(containers=[v1.Container(name=c.name, image=c.image) for c in running]),
        status=v1.PodStatus(),
    )


def settings(facts: NodeFacts) -> dict[str, Any]:
    """In the words of a KubeletConfiguration, those that decide about pods."""
    return {
        "kind": "KubeletConfiguration",
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "clusterDomain": facts.cluster_domain,
        "clusterDNS": list(facts.cluster_dns),
        "maxPods": facts.max_pods,
        "podCIDR": facts.pod_cidr,
        "podLogsDir": str(facts.log_root),
        "containerLogMaxSize": f"{MAX_BYTES >> 20}Mi",
        "containerLogMaxFiles": MAX_FILES,
        "systemReserved": _amounts(facts.reserved.system),
        "kubeReserved": _amounts(facts.reserved.kube),
        "evictionHard": show_thresholds(facts.thresholds),
        "evictionPressureTransitionPeriod": show_duration(facts.thresholds.hold),
        "imageMinimumGCAge": show_duration(facts.thresholds.image_age),
        "imageGCHighThresholdPercent": int(facts.thresholds.image_high * 100),
        "imageGCLowThresholdPercent": int(facts.thresholds.image_low * 100),
        "enforceNodeAllocatable": ["pods"],
        "registerNode": True,
    }


def _amounts(share: Share) -> dict[str, str]:
    amounts = {
        "cpu": share.cpus,
        "memory": Decimal(share.memory_bytes),
        "ephemeral-storage": Decimal(share.disk_bytes),
    }
    return {name: f"{amount:f}" for name, amount in amounts.items() if amount}
