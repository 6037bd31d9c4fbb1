"""Kubelet API handlers for pods, stats, configuration and health."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from aiohttp import web

from winpod.k8s.models import core_v1 as v1
from winpod.k8s.models.meta_v1 import ObjectMeta
from winpod.k8s.pods import metadata_of, with_fields
from winpod.kubelet.eviction.thresholds import format_thresholds
from winpod.kubelet.kubelet import PodEntry
from winpod.kubelet.logs.rotation import MAX_BYTES, MAX_FILES
from winpod.kubelet.node_config import Capacity, NodeConfig
from winpod.kubelet.server.context import CONTAINER, ServerContext
from winpod.kubelet.server.stats_summary import StatsSummary
from winpod.quantities import format_duration


class ServerHandlers:
    def __init__(self, context: ServerContext, summary: StatsSummary) -> None:
        self._context = context
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
        entries = self._context.pods.pods()
        return _pod_list([with_fields(e.pod, status=e.status) for e in entries])

    async def _running_pods(self, request: web.Request) -> web.Response:
        del request
        running = (running_pod(entry) for entry in self._context.pods.pods())
        return _pod_list([pod for pod in running if pod])

    async def _stats(self, request: web.Request) -> web.Response:
        only = request.query.get("only_cpu_and_memory") == "true"
        return web.json_response(await self._summary.summarize(only_cpu_and_memory=only))

    async def _settings(self, request: web.Request) -> web.Response:
        del request
        return web.json_response(
            {"kubeletconfig": kubelet_configuration(self._context.node_config)}
        )

    async def _health(self, request: web.Request) -> web.Response:
        del request
        return web.Response(text="ok")

    async def _checkpoint(self, request: web.Request) -> web.Response:
        del request
        return web.Response(status=501, text="Windows containers cannot be checkpointed.\n")


def _pod_list(pods: list[v1.Pod]) -> web.Response:
    items = [with_fields(pod, apiVersion=None, kind=None).to_dict() for pod in pods]
    return web.json_response(
        {"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items}
    )


def running_pod(entry: PodEntry) -> v1.Pod | None:
    """Return a pod with the containers that run in the runtime."""
    running = entry.runtime_pod.running_containers()
    if not running:
        return None
    metadata = metadata_of(entry.pod)
    return v1.Pod(
        metadata=ObjectMeta(name=metadata.name, namespace=metadata.namespace, uid=metadata.uid),
        spec=v1.PodSpec(containers=[v1.Container(name=c.name, image=c.image) for c in running]),
        status=v1.PodStatus(),
    )


def kubelet_configuration(node_config: NodeConfig) -> dict[str, Any]:
    """Return the KubeletConfiguration fields that affect pods."""
    return {
        "kind": "KubeletConfiguration",
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "clusterDomain": node_config.cluster_domain,
        "clusterDNS": list(node_config.cluster_dns),
        "maxPods": node_config.max_pods,
        "podCIDR": node_config.pod_cidr,
        "podLogsDir": str(node_config.log_root),
        "containerLogMaxSize": f"{MAX_BYTES >> 20}Mi",
        "containerLogMaxFiles": MAX_FILES,
        "systemReserved": _amounts(node_config.reserved.system),
        "kubeReserved": _amounts(node_config.reserved.kube),
        "evictionHard": format_thresholds(node_config.thresholds),
        "evictionPressureTransitionPeriod": format_duration(
            node_config.thresholds.transition_period
        ),
        "imageMinimumGCAge": format_duration(node_config.thresholds.image_age),
        "imageGCHighThresholdPercent": int(node_config.thresholds.image_high * 100),
        "imageGCLowThresholdPercent": int(node_config.thresholds.image_low * 100),
        "enforceNodeAllocatable": ["pods"],
        "registerNode": True,
    }


def _amounts(share: Capacity) -> dict[str, str]:
    amounts = {
        "cpu": share.cpus,
        "memory": Decimal(share.memory_bytes),
        "ephemeral-storage": Decimal(share.disk_bytes),
    }
    return {name: f"{amount:f}" for name, amount in amounts.items() if amount}
