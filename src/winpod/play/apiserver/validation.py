"""Table of values that the API server rejects although their type is right.

Without it they would fail later, without a file and line: a Secret that is not base64 when a pod
starts, a schedule when a job is due, a percentage in a controller.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from ipaddress import IPv4Address

from winpod.errors import InvalidInput
from winpod.field_reader import Field, FieldPath, InvalidField
from winpod.play.cron_schedule import parse_schedule, parse_time_zone

Rule = Callable[[Field], object]
EACH = "*"
"""Every item of a list, or every value of a map."""


@dataclass(frozen=True, slots=True)
class ValidationRule:
    """Rule for the values at a path; `invalid_example` is one that is rejected, for the tests."""

    path: FieldPath
    rule: Rule
    invalid_example: object


def _one_of(*names: str) -> Rule:
    return lambda at: at.one_of(*names)


def _at_least(minimum: int, maximum: int | None = None) -> Rule:
    allowed = f"from {minimum} to {maximum}" if maximum else f"{minimum} or more"

    def check(at: Field) -> None:
        if at.value < minimum or (maximum is not None and at.value > maximum):
            raise InvalidField(at.path, f"is {at.value}, and must be {allowed}")

    return check


def _quantity(at: Field) -> None:
    at.quantity()


_PERCENT = re.compile(r"\d+%", re.ASCII)


def _int_or_percent(at: Field) -> None:
    """Accept a number of pods, or a percentage."""
    value = at.value
    if not (isinstance(value, int) and value >= 0) and not _PERCENT.fullmatch(str(value)):
        raise InvalidField(
            at.path, f'is "{value}", and must be a number or a percentage such as 25%'
        )


def _base64(at: Field) -> None:
    text = at.text().replace("\r", "").replace("\n", "")
    try:
        base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidField(at.path, "is not base64") from None


def _parsed(parse: Callable[[str], object]) -> Rule:
    def check(at: Field) -> None:
        try:
            parse(at.text())
        except InvalidInput as error:
            raise InvalidField(at.path, f"is invalid: {str(error).rstrip('.')}") from None

    return check


def _address(at: Field) -> None:
    if at.text() not in ("", "None"):
        try:
            IPv4Address(at.text())
        except ValueError:
            raise InvalidField(at.path, f'is "{at.text()}", which is not an IPv4 address') from None


def _below(prefix: FieldPath, *rows: ValidationRule) -> tuple[ValidationRule, ...]:
    return tuple(
        ValidationRule((*prefix, *row.path), row.rule, row.invalid_example) for row in rows
    )


_COUNT, _PORT = _at_least(0), _at_least(1, 65535)
_PROTOCOL = _one_of("TCP", "UDP", "SCTP")
_REPLICAS = ValidationRule(("spec", "replicas"), _COUNT, -1)
_MIN_READY = ValidationRule(("spec", "minReadySeconds"), _COUNT, -1)

_PROBE = tuple(
    ValidationRule((probe, name), _COUNT, -1)
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
    ValidationRule(("imagePullPolicy",), _one_of("Always", "IfNotPresent", "Never"), "Sometimes"),
    ValidationRule(("resources", "limits", EACH), _quantity, "1 Gi"),
    ValidationRule(("resources", "requests", EACH), _quantity, "much"),
    ValidationRule(("ports", EACH, "containerPort"), _PORT, 70000),
    ValidationRule(("ports", EACH, "protocol"), _PROTOCOL, "HTTP"),
    *_PROBE,
)
POD = _below(
    ("spec",),
    ValidationRule(("restartPolicy",), _one_of("Always", "OnFailure", "Never"), "Sometimes"),
    ValidationRule(("terminationGracePeriodSeconds",), _COUNT, -1),
    ValidationRule(("activeDeadlineSeconds",), _at_least(1), 0),
    ValidationRule(
        ("dnsPolicy",),
        _one_of("ClusterFirst", "ClusterFirstWithHostNet", "Default", "None"),
        "Cluster",
    ),
    ValidationRule(("volumes", EACH, "emptyDir", "sizeLimit"), _quantity, "1 Gi"),
    *_below(("containers", EACH), *_CONTAINER),
    *_below(("initContainers", EACH), *_CONTAINER),
)
"""Rules for pods and pod templates."""

_CLAIM = _below(
    ("spec",),
    ValidationRule(("resources", "requests", EACH), _quantity, "1 Gi"),
    ValidationRule(("volumeMode",), _one_of("Filesystem", "Block"), "Disk"),
    ValidationRule(
        ("accessModes", EACH),
        _one_of("ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany", "ReadWriteOncePod"),
        "ReadWrite",
    ),
)
_JOB = _below(
    ("spec",),
    ValidationRule(("parallelism",), _COUNT, -1),
    ValidationRule(("completions",), _COUNT, -1),
    ValidationRule(("backoffLimit",), _COUNT, -1),
    ValidationRule(("activeDeadlineSeconds",), _COUNT, -1),
    ValidationRule(("ttlSecondsAfterFinished",), _COUNT, -1),
    ValidationRule(("completionMode",), _one_of("NonIndexed", "Indexed"), "Numbered"),
)

BY_KIND: dict[str, tuple[ValidationRule, ...]] = {
    "ConfigMap": (ValidationRule(("binaryData", EACH), _base64, "not base64"),),
    "Secret": (ValidationRule(("data", EACH), _base64, "not base64"),),
    "PersistentVolume": _below(
        ("spec",),
        ValidationRule(("capacity", EACH), _quantity, "1 Gi"),
        ValidationRule(("volumeMode",), _one_of("Filesystem", "Block"), "Disk"),
    ),
    "PersistentVolumeClaim": _CLAIM,
    "Service": _below(
        ("spec",),
        ValidationRule(
            ("type",), _one_of("ClusterIP", "NodePort", "LoadBalancer", "ExternalName"), "Ingress"
        ),
        ValidationRule(("clusterIP",), _address, "10.0"),
        ValidationRule(("sessionAffinity",), _one_of("None", "ClientIP"), "Cookie"),
        ValidationRule(("ports", EACH, "port"), _PORT, 0),
        ValidationRule(("ports", EACH, "nodePort"), _at_least(30000, 32767), 80),
        ValidationRule(("ports", EACH, "protocol"), _PROTOCOL, "HTTP"),
    ),
    "Deployment": (
        _REPLICAS,
        _MIN_READY,
        *_below(
            ("spec", "strategy"),
            ValidationRule(("type",), _one_of("RollingUpdate", "Recreate"), "Rolling"),
            ValidationRule(("rollingUpdate", "maxSurge"), _int_or_percent, "25 %"),
            ValidationRule(("rollingUpdate", "maxUnavailable"), _int_or_percent, "some"),
        ),
    ),
    "ReplicaSet": (_REPLICAS, _MIN_READY),
    "StatefulSet": (
        _REPLICAS,
        _MIN_READY,
        ValidationRule(
            ("spec", "podManagementPolicy"), _one_of("OrderedReady", "Parallel"), "Ordered"
        ),
        ValidationRule(
            ("spec", "updateStrategy", "type"), _one_of("RollingUpdate", "OnDelete"), "Recreate"
        ),
        ValidationRule(("spec", "updateStrategy", "rollingUpdate", "partition"), _COUNT, -1),
        *_below(("spec", "volumeClaimTemplates", EACH), *_CLAIM),
    ),
    "DaemonSet": (
        _MIN_READY,
        *_below(
            ("spec", "updateStrategy"),
            ValidationRule(("type",), _one_of("RollingUpdate", "OnDelete"), "Recreate"),
            ValidationRule(("rollingUpdate", "maxSurge"), _int_or_percent, "25 %"),
            ValidationRule(("rollingUpdate", "maxUnavailable"), _int_or_percent, "some"),
        ),
    ),
    "Job": _JOB,
    "CronJob": (
        ValidationRule(("spec", "schedule"), _parsed(parse_schedule), "every day"),
        ValidationRule(("spec", "timeZone"), _parsed(parse_time_zone), "Atlantis/Capital"),
        ValidationRule(
            ("spec", "concurrencyPolicy"), _one_of("Allow", "Forbid", "Replace"), "Once"
        ),
        ValidationRule(("spec", "startingDeadlineSeconds"), _COUNT, -1),
        ValidationRule(("spec", "successfulJobsHistoryLimit"), _COUNT, -1),
        ValidationRule(("spec", "failedJobsHistoryLimit"), _COUNT, -1),
        *_below(("spec", "jobTemplate"), *_JOB),
    ),
}
"""Rules by kind, in addition to those of pod templates."""

WITH_SPEC = ("Service", "PersistentVolumeClaim", "PersistentVolume")


def check_values(kind: str, template: FieldPath | None, document: object) -> None:
    """Raise InvalidField for the first value that is rejected; types are checked before."""
    at = Field(document)
    if kind in WITH_SPEC and not at.get("spec"):
        raise InvalidField(("spec",), "is required")
    rows = (*BY_KIND.get(kind, ()), *(() if template is None else _below(template, *POD)))
    for row in rows:
        for value in _values(at, row.path):
            row.rule(value)


def _values(at: Field, path: FieldPath) -> Iterator[Field]:
    """Yield the existing values at a path."""
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
        for name in at.key_names():
            yield from _values(at.get(name), path[1:])
