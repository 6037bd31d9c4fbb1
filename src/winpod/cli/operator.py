"""`winpod operator`: the brain of a cluster that has Windows nodes."""

from __future__ import annotations

import asyncio
import logging
import signal
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from winpod.cli.log_lines import start_logging
from winpod.cluster.leading import unique_identity
from winpod.cluster.operator import Operator, Place
from winpod.instances.operator.part import instances_part
from winpod.node.access import SERVICE_ACCOUNT, read_kubeconfig, service_account_access

_log = logging.getLogger("winpod")


class LogFormat(StrEnum):
    TEXT = "text"
    JSON = "json"


def command(
    kubeconfig: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="The cluster, and who acts there; in a pod, its service account."
        ),
    ] = None,
    namespace: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="Where its settings and its lease are; in a pod, the pod's."
        ),
    ] = "",
    identity: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Its name, which no other has; else this machine's, with something random.",
        ),
    ] = "",
    address: Annotated[
        str, typer.Option(metavar="IP", help="Where metrics and health are.")
    ] = "0.0.0.0",  # noqa: S104 - probes come from the node
    port: Annotated[int, typer.Option(metavar="PORT", help="The same.")] = 8080,
    webhook: Annotated[
        bool,
        typer.Option("--webhook/--no-webhook", help="Whether the API server asks about pods."),
    ] = True,
    webhook_port: Annotated[int, typer.Option(metavar="PORT", help="Where it asks.")] = 8443,
    webhook_client_ca: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Answer there only who has a certificate of this authority; else, everybody.",
        ),
    ] = None,
    page_port: Annotated[
        int, typer.Option(metavar="PORT", help="Where the page is, on this machine's loopback.")
    ] = 8081,
    payload: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Make nodes of Windows Server instances, with the files in it; else, leave them.",
        ),
    ] = None,
    log_format: Annotated[
        LogFormat, typer.Option("--log-format", help="Lines for people, or an object a line.")
    ] = LogFormat.TEXT,
) -> None:
    """Look after a cluster's Windows nodes: RuntimeClasses, admission, upgrades, and instances.

    Several may run at once: all of them answer, and one acts.
    """
    start_logging(as_json=log_format is LogFormat.JSON)
    logging.getLogger("asyncssh").setLevel(logging.WARNING)
    access = read_kubeconfig(kubeconfig) if kubeconfig else service_account_access()
    place = Place(
        namespace=namespace or _own_namespace(),
        identity=identity or unique_identity(),
        address=address,
        port=port,
        has_webhook=webhook,
        webhook_port=webhook_port,
        webhook_client_ca=webhook_client_ca,
        page_port=page_port,
    )
    more = [partial(instances_part, payload)] if payload else []
    asyncio.run(_until_stopped(Operator(access, place, more)))


def _own_namespace() -> str:
    try:
        return (SERVICE_ACCOUNT / "namespace").read_text().strip()
    except OSError:
        return "winpod-system"


async def _until_stopped(operator: Operator) -> None:
    running = asyncio.create_task(operator.run())
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, running.cancel)
    try:
        await running
    except asyncio.CancelledError:
        _log.info("the operator stops; what it made stays")
