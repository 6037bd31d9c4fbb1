"""`winpod doctor`: check the requirements of this machine."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

import typer

from winpod.cli.options import Format, Output, Root
from winpod.compute.preflight import Check, Level
from winpod.config import read_config
from winpod.cri.assemble import RuntimeLocation, diagnose


def command(root: Root = None, output: Output = Format.TEXT) -> None:
    """Check that this machine can run Windows containers.

    Kernel features are probed, not derived from the kernel version. The exit code is 1 if a check
    failed; degraded features do not count as failures.
    """
    config = read_config()
    location = RuntimeLocation(
        (root or config.root).absolute(),
        config.host_build,
        network=config.network,
        runtime=config.runtime,
        hypervisor=config.hypervisor,
    )
    checks = list(diagnose(location))
    if output is Format.JSON:
        print(json.dumps([asdict(check) for check in checks], indent=2))
    else:
        _print(checks)
    if any(check.level is Level.FAILED for check in checks):
        raise typer.Exit(1)


def _print(checks: Sequence[Check]) -> None:
    width = max(len(check.name) for check in checks)
    for check in checks:
        print(f"{check.level:8}  {check.name:{width}}  {check.found}")
        if check.remedy and check.level is not Level.OK:
            print(f"{'':8}  {'':{width}}  → {check.remedy}")
