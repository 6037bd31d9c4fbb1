"""Settings of the operator: a YAML document in which every field has a default.

It is the key `config.yaml` of the ConfigMap `winpod-operator`, and `--config` of commands.
"""

from __future__ import annotations

import re
import string
from dataclasses import dataclass, field
from decimal import Decimal

import yaml

from winpod.errors import InvalidInput
from winpod.field_reader import Field, InvalidField, Quantities
from winpod.operator.instance_settings import InstanceSettings, read_instance_settings
from winpod.placement.model import Toleration, read_tolerations
from winpod.windows.builds import Build

CONFIG_KEY = "config.yaml"
_PLACEHOLDERS = ("release", "number", "build")
_MAX_SIZE = 64 * 1024
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class AdmissionSettings:
    """Settings of admission. `budget_seconds` is the deadline to resolve all images of a pod.

    The operator's namespace is always exempt.
    """

    enabled: bool = True
    fail_open: bool = True
    tag_seconds: float = 300.0
    budget_seconds: float = 5.0
    refuse_unplaceable: bool = True
    exempt_namespaces: tuple[str, ...] = ("kube-system",)


@dataclass(frozen=True, slots=True)
class OperatorSettings:
    """Settings of the operator.

    With `classes` off, admission sets node selectors and tolerations instead of RuntimeClasses. A
    class without nodes is removed `remove_after_seconds` after its last pod. `page_authenticated`
    serves the dashboard beyond loopback to users whose token may list all pods.
    """

    classes: bool = True
    class_name: str = "windows-{release}"
    hypervisor_class_name: str = "windows-{release}-hyperv"
    overhead: Quantities = (("memory", Decimal(200 * 1024**2)),)
    tolerations: tuple[Toleration, ...] = ()
    remove_after_seconds: float = 300.0
    labels: bool = True
    admission: AdmissionSettings = AdmissionSettings()
    page_authenticated: bool = False
    instances: InstanceSettings = field(default_factory=InstanceSettings)


def format_class_name(template: str, build: Build, architecture: str = "amd64") -> str:
    """Format the name of a class; architectures other than amd64 are appended."""
    release = build.release.short_name if build.release else str(build.number)
    name = template.format(release=release, number=build.number, build=build.base)
    return name if architecture == "amd64" else f"{name}-{architecture}"


def read_settings(text: str) -> OperatorSettings:
    document = _read_yaml(text)
    document.reject_unknown_keys("classes", "labels", "admission", "page", "instances")
    classes, labels = document.get("classes"), document.get("labels")
    classes.reject_unknown_keys(
        "enabled", "name", "hypervisorName", "overhead", "tolerations", "removeAfterSeconds"
    )
    labels.reject_unknown_keys("enabled")
    document.get("page").reject_unknown_keys("authenticated")
    default = OperatorSettings()
    settings = OperatorSettings(
        classes=_flag(classes.get("enabled"), default.classes),
        class_name=_template(classes.get("name"), default.class_name),
        hypervisor_class_name=_template(
            classes.get("hypervisorName"), default.hypervisor_class_name
        ),
        overhead=classes.get("overhead").quantities()
        if classes.get("overhead")
        else default.overhead,
        tolerations=read_tolerations(classes.get("tolerations")),
        remove_after_seconds=classes.get("removeAfterSeconds").number(
            default.remove_after_seconds, 0, 86400
        ),
        labels=_flag(labels.get("enabled"), default.labels),
        admission=_admission(document.get("admission")),
        page_authenticated=document.get("page", "authenticated").flag(),
        instances=read_instance_settings(document.get("instances")),
    )
    if settings.class_name == settings.hypervisor_class_name:
        raise InvalidField(
            classes.get("hypervisorName").path,
            "must differ from classes.name",
        )
    return settings


def _read_yaml(text: str) -> Field:
    if len(text) > _MAX_SIZE:
        raise InvalidInput(
            f"the operator's settings have {len(text)} characters; the limit is {_MAX_SIZE}."
        )
    try:
        return Field(yaml.safe_load(text))
    except (yaml.YAMLError, ValueError) as error:
        raise InvalidInput(f"the operator's settings are not YAML: {error}.") from None
    except RecursionError:
        raise InvalidInput("the operator's settings are nested too deeply.") from None


def _admission(value: Field) -> AdmissionSettings:
    value.reject_unknown_keys(
        "enabled",
        "failOpen",
        "tagSeconds",
        "budgetSeconds",
        "refuseUnplaceable",
        "exemptNamespaces",
    )
    default = AdmissionSettings()
    exempt = value.get("exemptNamespaces")
    return AdmissionSettings(
        enabled=_flag(value.get("enabled"), default.enabled),
        fail_open=_flag(value.get("failOpen"), default.fail_open),
        tag_seconds=value.get("tagSeconds").number(default.tag_seconds, 0, 86400),
        budget_seconds=value.get("budgetSeconds").number(default.budget_seconds, 0.1, 25),
        refuse_unplaceable=_flag(value.get("refuseUnplaceable"), default.refuse_unplaceable),
        exempt_namespaces=exempt.text_list() if exempt else default.exempt_namespaces,
    )


def _flag(value: Field, default: bool) -> bool:
    return value.flag() if value else default


def _template(value: Field, default: str) -> str:
    """Read a name template. It is tried on a build, to report a name the API would reject."""
    template = value.text() or default
    try:
        parts = [part for part in string.Formatter().parse(template) if part[1] is not None]
    except ValueError:
        parts = []
    if not parts or any(name not in _PLACEHOLDERS or spec or conv for _, name, spec, conv in parts):
        names = ", ".join(f"{{{name}}}" for name in _PLACEHOLDERS)
        raise InvalidField(
            value.path, f'is "{template}", and must contain one of {names}, and no other braces'
        )
    if not _NAME.fullmatch(format_class_name(template, Build(10, 0, 17763))):
        raise InvalidField(
            value.path,
            f'is "{template}", but class names may only contain a-z, 0-9, dashes and dots',
        )
    return template
