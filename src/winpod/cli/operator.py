"""`winpod operator`: run the operator for the Windows nodes of a cluster."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from winpod.cli.extras import requires_extra
from winpod.cli.log_format import LogOptions, start_logging
from winpod.cli.options import with_options
from winpod.k8s.kubeconfig import SERVICE_ACCOUNT, in_cluster_config, read_kubeconfig
from winpod.k8s.leader_election import unique_identity
from winpod.labels import OPERATOR_NAMESPACE
from winpod.operator.manager import ManagedTask, ManagerContext, OperatorManager, OperatorOptions

_log = logging.getLogger("winpod")


@with_options
def command(
    *,
    kubeconfig: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Kubeconfig of the cluster (default: the pod's service account)."
        ),
    ] = None,
    options: OperatorOptions,
    payload: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Configure Windows Server instances as nodes with this payload (default: off).",
        ),
    ] = None,
    log: LogOptions,
) -> None:
    """Run the operator for the Windows nodes of a cluster.

    It manages RuntimeClasses, pod admission, upgrades and instances. With several replicas all
    serve the webhook, and the leader reconciles.
    """
    start_logging(log)
    logging.getLogger("asyncssh").setLevel(logging.WARNING)
    access = read_kubeconfig(kubeconfig) if kubeconfig else in_cluster_config()
    options = replace(
        options,
        namespace=options.namespace or _own_namespace(),
        identity=options.identity or unique_identity(),
    )
    extensions = [_instances(payload)] if payload else []
    asyncio.run(_until_stopped(OperatorManager(access, options, extensions)))


def _instances(payload: Path) -> Callable[[ManagerContext], ManagedTask]:
    with requires_extra("operator --payload", "instances"):
        from winpod.instances.operator.setup import setup_instances
    return partial(setup_instances, payload)


def _own_namespace() -> str:
    try:
        return (SERVICE_ACCOUNT / "namespace").read_text().strip()
    except OSError:
        return OPERATOR_NAMESPACE


async def _until_stopped(operator: OperatorManager) -> None:
    running = asyncio.create_task(operator.run())
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, running.cancel)
    try:
        await running
    except asyncio.CancelledError:
        _log.info("Operator is shutting down; its objects are kept")
