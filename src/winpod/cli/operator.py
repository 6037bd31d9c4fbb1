"""`winpod operator`: run the operator for the Windows nodes of a cluster."""

from __future__ import annotations

import asyncio
import logging
import signal
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from winpod.cli.log_format import start_logging
from winpod.instances.operator.setup import setup_instances
from winpod.k8s.kubeconfig import SERVICE_ACCOUNT, in_cluster_config, read_kubeconfig
from winpod.k8s.leader_election import unique_identity
from winpod.operator.manager import OperatorManager, OperatorOptions

_log = logging.getLogger("winpod")


class LogFormat(StrEnum):
    TEXT = "text"
    JSON = "json"


def command(
    kubeconfig: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Kubeconfig of the cluster (default: the pod's service account)."
        ),
    ] = None,
    namespace: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Namespace of the settings and the lease (default: the pod's namespace).",
        ),
    ] = "",
    identity: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Unique leader election identity (default: host name and a random suffix).",
        ),
    ] = "",
    address: Annotated[
        str, typer.Option(metavar="IP", help="Listen address for metrics and health.")
    ] = "0.0.0.0",  # noqa: S104 - probes come from the node
    port: Annotated[int, typer.Option(metavar="PORT", help="Port for metrics and health.")] = 8080,
    webhook: Annotated[
        bool,
        typer.Option("--webhook/--no-webhook", help="Serve the pod admission webhook."),
    ] = True,
    webhook_port: Annotated[
        int, typer.Option(metavar="PORT", help="Port of the admission webhook.")
    ] = 8443,
    webhook_client_ca: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="CA for webhook client certificates (default: none required).",
        ),
    ] = None,
    page_port: Annotated[
        int, typer.Option(metavar="PORT", help="Port of the dashboard, on loopback.")
    ] = 8081,
    payload: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Configure Windows Server instances as nodes with this payload (default: off).",
        ),
    ] = None,
    log_format: Annotated[
        LogFormat, typer.Option("--log-format", help="Log format.")
    ] = LogFormat.TEXT,
) -> None:
    """Run the operator for the Windows nodes of a cluster.

    It manages RuntimeClasses, pod admission, upgrades and instances. With several replicas all
    serve the webhook, and the leader reconciles.
    """
    start_logging(as_json=log_format is LogFormat.JSON)
    logging.getLogger("asyncssh").setLevel(logging.WARNING)
    access = read_kubeconfig(kubeconfig) if kubeconfig else in_cluster_config()
    options = OperatorOptions(
        namespace=namespace or _own_namespace(),
        identity=identity or unique_identity(),
        address=address,
        port=port,
        has_webhook=webhook,
        webhook_port=webhook_port,
        webhook_client_ca=webhook_client_ca,
        page_port=page_port,
    )
    extensions = [partial(setup_instances, payload)] if payload else []
    asyncio.run(_until_stopped(OperatorManager(access, options, extensions)))


def _own_namespace() -> str:
    try:
        return (SERVICE_ACCOUNT / "namespace").read_text().strip()
    except OSError:
        return "winpod-system"


async def _until_stopped(operator: OperatorManager) -> None:
    running = asyncio.create_task(operator.run())
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, running.cancel)
    try:
        await running
    except asyncio.CancelledError:
        _log.info("Operator is shutting down; its objects are kept")
