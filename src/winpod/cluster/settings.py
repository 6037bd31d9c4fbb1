"""What a cluster's people decide about the operator: one YAML text, every field with a default.

It is the key `config.yaml` of the ConfigMap `winpod-operator`, and commands take it as `--config`.
"""

from __future__ import annotations

import re
import string
from dataclasses import dataclass, field
from decimal import Decimal

import yaml

from winpod.cluster.instance_settings import InstanceSettings, read_instances
from winpod.windows.builds import Build
from winpod.windows.errors import InvalidInput
from winpod.windows.objects import Toleration, read_tolerations
from winpod.windows.reading import Amounts, At, InvalidField

CONFIG_MAP, CONFIG_KEY = "winpod-operator", "config.yaml"
_PLACES = ("release", "number", "build")
_LONGEST = 64 * 1024
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class Admission:
    """`budget_seconds` is for all images of a pod; the operator's namespace is always exempt."""

    enabled: bool = True
    fail_open: bool = True
    tag_seconds: float = 300.0
    budget_seconds: float = 5.0
    refuse_unplaceable: bool = True
    exempt_namespaces: tuple[str, ...] = ("kube-system",)


@dataclass(frozen=True, slots=True)
class Settings:
    """`classes` off: admission writes node selectors and tolerations instead.

    A class whose last node has gone is removed `remove_after_seconds` after its last pod.
    `page_authenticated` shows the page beyond loopback, to those whose token may list all pods.
    """

    classes: bool = True
    class_name: str = "windows-{release}"
    hypervisor_class_name: str = "windows-{release}-hyperv"
    overhead: Amounts = (("memory", Decimal(200 * 1024**2)),)
    tolerations: tuple[Toleration, ...] = ()
    remove_after_seconds: float = 300.0
    labels: bool = True
    admission: Admission = Admission()
    page_authenticated: bool = False
    instances: InstanceSettings = field(default_factory=InstanceSettings)


def fill_name(template: str, build: Build, architecture: str = "amd64") -> str:
    """The name of a class; nodes of another architecture than usual have it in theirs."""
    release = build.release.short_name if build.release else str(build.number)
    name = template.format(release=release, number=build.number, build=build.base)
    return name if architecture == "amd64" else f"{name}-{architecture}"


def read_settings(text: str) -> Settings:
    document = _read_yaml(text)
    document.allow("classes", "labels", "admission", "page", "instances")
    classes, labels = document.get("classes"), document.get("labels")
    classes.allow(
        "enabled", "name", "hypervisorName", "overhead", "tolerations", "removeAfterSeconds"
    )
    labels.allow("enabled")
    document.get("page").allow("authenticated")
    default = Settings()
    settings = Settings(
        classes=_flag(classes.get("enabled"), default.classes),
        class_name=_template(classes.get("name"), default.class_name),
        hypervisor_class_name=_template(
            classes.get("hypervisorName"), default.hypervisor_class_name
        ),
        overhead=classes.get("overhead").amounts() if classes.get("overhead") else default.overhead,
        tolerations=read_tolerations(classes.get("tolerations")),
        remove_after_seconds=classes.get("removeAfterSeconds").number(
            default.remove_after_seconds, 0, 86400
        ),
        labels=_flag(labels.get("enabled"), default.labels),
        admission=_admission(document.get("admission")),
        page_authenticated=document.get("page", "authenticated").flag(),
        instances=read_instances(document.get("instances")),
    )
    if settings.class_name == settings.hypervisor_class_name:
        raise InvalidField(
            classes.get("hypervisorName").path,
            "is the same as classes.name, and two classes cannot have one name",
        )
    return settings


def _read_yaml(text: str) -> At:
    if len(text) > _LONGEST:
        raise InvalidInput(
            f"the operator's settings have {len(text)} characters, and at most {_LONGEST} are read."
        )
    try:
        return At(yaml.safe_load(text))
    except (yaml.YAMLError, ValueError) as error:
        raise InvalidInput(f"the operator's settings are not YAML: {error}.") from None
    except RecursionError:
        raise InvalidInput("the operator's settings are nested too deeply.") from None


def _admission(at: At) -> Admission:
    at.allow(
        "enabled",
        "failOpen",
        "tagSeconds",
        "budgetSeconds",
        "refuseUnplaceable",
        "exemptNamespaces",
    )
    default = Admission()
    exempt = at.get("exemptNamespaces")
    return Admission(
        enabled=_flag(at.get("enabled"), default.enabled),
        fail_open=_flag(at.get("failOpen"), default.fail_open),
        tag_seconds=at.get("tagSeconds").number(default.tag_seconds, 0, 86400),
        budget_seconds=at.get("budgetSeconds").number(default.budget_seconds, 0.1, 25),
        refuse_unplaceable=_flag(at.get("refuseUnplaceable"), default.refuse_unplaceable),
        exempt_namespaces=exempt.texts() if exempt else default.exempt_namespaces,
    )


def _flag(at: At, default: bool) -> bool:
    return at.flag() if at else default


def _template(at: At, default: str) -> str:
    """Tried on a build, so that a name the API would refuse is refused here, with its field."""
    template = at.text() or default
    try:
        parts = [part for part in string.Formatter().parse(template) if part[1] is not None]
    except ValueError:
        parts = []
    if not parts or any(place not in _PLACES or how or into for _, place, how, into in parts):
        known = ", ".join(f"{{{place}}}" for place in _PLACES)
        raise InvalidField(
            at.path, f'is "{template}", and must have one of {known} in it, and no other braces'
        )
    if not _NAME.fullmatch(fill_name(template, Build(10, 0, 17763))):
        raise InvalidField(
            at.path, f'is "{template}", and a class\'s name is of a-z, 0-9, - and . only'
        )
    return template
