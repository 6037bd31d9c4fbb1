"""Values that an API server refuses though they are of the right type: a table of them.

Without it they would be taken, and fail later on, where no file and no line is known: a secret that
is not base64 when a pod starts, a schedule when a job is due, a share of pods in a controller.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from ipaddress import IPv4Address

from winpod.node.play.cron import parse_schedule, parse_zone
from winpod.windows.errors import InvalidInput
from winpod.windows.reading import At, InvalidField, Path

Rule = Callable[[At], object]
EACH = "*"
"""Every item of a list, or every value of a mapping."""


@dataclass(frozen=True, slots=True)
class Row:
    """What values at a path have to be; `wrong` is one that is refused, for the test."""

    path: Path
    rule: Rule
    wrong: object


def _one_of(*names: str) -> Rule:
    return lambda at: at.one_of(*names)


def _at_least(least: int, most: int | None = None) -> Rule:
    span = f"from {least} to {most}" if most else f"{least} or more"

    def check(at: At) -> None:
        if at.value < least or (most is not None and at.value > most):
            raise InvalidField(at.path, f"is {at.value}, and must be {span}")

    return check


def _quantity(at: At) -> None:
    at.amount()


_SHARE = re.compile(r"\d+%", re.ASCII)


def _share(at: At) -> None:
    """A number of pods, or a percentage of them."""
    value = at.value
    if not (isinstance(value, int) and value >= 0) and not _SHARE.fullmatch(str(value)):
        raise InvalidField(at.path, f'is "{value}", and must be a number or a share such as 25%')


def _base64(at: At) -> None:
    text = at.text().replace("\r", "").replace("\n", "")
    try:
        base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidField(at.path, "is not base64") from None


def _parsed(parse: Callable[[str], object]) -> Rule:
    def check(at: At) -> None:
        try:
            parse(at.text())
        except InvalidInput as error:
            raise InvalidField(at.path, f"is wrong: {str(error).rstrip('.')}") from None

    return check


def _address(at: At) -> None:
    if at.text() not in ("", "None"):
        try:
            IPv4Address(at.text())
        except ValueError:
            raise InvalidField(at.path, f'is "{at.text()}", which is no address') from None


def _below(prefix: Path, *rows: Row) -> tuple[Row, ...]:
    return tuple(Row((*prefix, *row.path), row.rule, row.wrong) for row in rows)


_COUNT, _PORT = _at_least(0), _at_least(1, 65535)
_PROTOCOL = _one_of("TCP", "UDP", "SCTP")
_REPLICAS = Row(("spec", "replicas"), _COUNT, -1)
_MIN_READY = Row(("spec", "minReadySeconds"), _COUNT, -1)

_PROBE = tuple(
    Row((probe, name), _COUNT, -1)
    for probe in ("livenessProbe", "readinessProbe", "startupProbe")
    for name in (
        "initialDelaySeconds",
        "periodSeconds",
        "timeoutSeconds",
        "successThreshold",
        "failureThreshold",
    )
)
_CONTAINER = (
    Row(("imagePullPolicy",), _one_of("Always", "IfNotPresent", "Never"), "Sometimes"),
    Row(("resources", "limits", EACH), _quantity, "1 Gi"),
    Row(("resources", "requests", EACH), _quantity, "much"),
    Row(("ports", EACH, "containerPort"), _PORT, 70000),
    Row(("ports", EACH, "protocol"), _PROTOCOL, "HTTP"),
    *_PROBE,
)
POD = _below(
    ("spec",),
    Row(("restartPolicy",), _one_of("Always", "OnFailure", "Never"), "Sometimes"),
    Row(("terminationGracePeriodSeconds",), _COUNT, -1),
    Row(("activeDeadlineSeconds",), _at_least(1), 0),
    Row(
        ("dnsPolicy",),
        _one_of("ClusterFirst", "ClusterFirstWithHostNet", "Default", "None"),
        "Cluster",
    ),
    Row(("volumes", EACH, "emptyDir", "sizeLimit"), _quantity, "1 Gi"),
    *_below(("containers", EACH), *_CONTAINER),
    *_below(("initContainers", EACH), *_CONTAINER),
)
"""Of a pod, or of the template of one."""

_CLAIM = _below(
    ("spec",),
    Row(("resources", "requests", EACH), _quantity, "1 Gi"),
    Row(("volumeMode",), _one_of("Filesystem", "Block"), "Disk"),
    Row(
        ("accessModes", EACH),
        _one_of("ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany", "ReadWriteOncePod"),
        "ReadWrite",
    ),
)
_JOB = _below(
    ("spec",),
    Row(("parallelism",), _COUNT, -1),
    Row(("completions",), _COUNT, -1),
    Row(("backoffLimit",), _COUNT, -1),
    Row(("activeDeadlineSeconds",), _COUNT, -1),
    Row(("ttlSecondsAfterFinished",), _COUNT, -1),
    Row(("completionMode",), _one_of("NonIndexed", "Indexed"), "Numbered"),
)

BY_KIND: dict[str, tuple[Row, ...]] = {
    "ConfigMap": (Row(("binaryData", EACH), _base64, "not base64"),),
    "Secret": (Row(("data", EACH), _base64, "not base64"),),
    "PersistentVolume": _below(
        ("spec",),
        Row(("capacity", EACH), _quantity, "1 Gi"),
        Row(("volumeMode",), _one_of("Filesystem", "Block"), "Disk"),
    ),
    "PersistentVolumeClaim": _CLAIM,
    "Service": _below(
        ("spec",),
        Row(("type",), _one_of("ClusterIP", "NodePort", "LoadBalancer", "ExternalName"), "Ingress"),
        Row(("clusterIP",), _address, "10.0"),
        Row(("sessionAffinity",), _one_of("None", "ClientIP"), "Cookie"),
        Row(("ports", EACH, "port"), _PORT, 0),
        Row(("ports", EACH, "nodePort"), _at_least(30000, 32767), 80),
        Row(("ports", EACH, "protocol"), _PROTOCOL, "HTTP"),
    ),
    "Deployment": (
        _REPLICAS,
        _MIN_READY,
        *_below(
            ("spec", "strategy"),
            Row(("type",), _one_of("RollingUpdate", "Recreate"), "Rolling"),
            Row(("rollingUpdate", "maxSurge"), _share, "25 %"),
            Row(("rollingUpdate", "maxUnavailable"), _share, "some"),
        ),
    ),
    "ReplicaSet": (_REPLICAS, _MIN_READY),
    "StatefulSet": (
        _REPLICAS,
        _MIN_READY,
        Row(("spec", "podManagementPolicy"), _one_of("OrderedReady", "Parallel"), "Ordered"),
        Row(("spec", "updateStrategy", "type"), _one_of("RollingUpdate", "OnDelete"), "Recreate"),
        Row(("spec", "updateStrategy", "rollingUpdate", "partition"), _COUNT, -1),
        *_below(("spec", "volumeClaimTemplates", EACH), *_CLAIM),
    ),
    "DaemonSet": (
        _MIN_READY,
        *_below(
            ("spec", "updateStrategy"),
            Row(("type",), _one_of("RollingUpdate", "OnDelete"), "Recreate"),
            Row(("rollingUpdate", "maxSurge"), _share, "25 %"),
            Row(("rollingUpdate", "maxUnavailable"), _share, "some"),
        ),
    ),
    "Job": _JOB,
    "CronJob": (
        Row(("spec", "schedule"), _parsed(parse_schedule), "every day"),
        Row(("spec", "timeZone"), _parsed(parse_zone), "Atlantis/Capital"),
        Row(("spec", "concurrencyPolicy"), _one_of("Allow", "Forbid", "Replace"), "Once"),
        Row(("spec", "startingDeadlineSeconds"), _COUNT, -1),
        Row(("spec", "successfulJobsHistoryLimit"), _COUNT, -1),
        Row(("spec", "failedJobsHistoryLimit"), _COUNT, -1),
        *_below(("spec", "jobTemplate"), *_JOB),
    ),
}
"""Beside what is in their templates."""

WITH_SPEC = ("Service", "PersistentVolumeClaim", "PersistentVolume")


def check_values(kind: str, template: Path | None, document: object) -> None:
    """The first value that is refused is an InvalidField; types are checked before."""
    at = At(document)
    if kind in WITH_SPEC and not at.get("spec"):
        raise InvalidField(("spec",), "is required")
    rows = (*BY_KIND.get(kind, ()), *(() if template is None else _below(template, *POD)))
    for row in rows:
        for value in _values(at, row.path):
            row.rule(value)


def _values(at: At, path: Path) -> Iterator[At]:
    """Those that are there."""
    if not at:
        return
    if not path:
        yield at
    elif path[0] != EACH:
        yield from _values(at.get(str(path[0])), path[1:])
    elif isinstance(at.value, list):
        for item in at.items():
            yield from _values(item, path[1:])
    else:
        for name in at.names():
            yield from _values(at.get(name), path[1:])
