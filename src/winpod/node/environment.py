"""The environment of a container, put together as the kubelet does it.

First what `envFrom` names, then `env` in its order, each able to refer to those before it; what
nobody set is filled by the variables of services. A reference that leads nowhere stops the
container, in the kubelet's own words, unless it is optional.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from decimal import ROUND_CEILING, Decimal

from lightkube.models import core_v1 as v1
from lightkube.models.meta_v1 import ObjectMeta

from winpod.node.facts import NodeFacts
from winpod.node.sources import Objects
from winpod.windows.errors import WinpodError
from winpod.windows.quantities import parse_quantity

_REFERENCE = re.compile(r"\$(?:\$|\(([^)]*)\))")
_ENTRY = re.compile(r"(metadata\.(?:labels|annotations))\['(.*)'\]")
_MASTER_SERVICE = ("default", "kubernetes")


class ConfigError(WinpodError):
    """A container cannot be configured; its status says CreateContainerConfigError and this."""

    code = "FAILED_PRECONDITION"


async def resolve(
    pod: v1.Pod,
    container: v1.Container | v1.EphemeralContainer,
    objects: Objects,
    facts: NodeFacts,
    pod_ips: Sequence[str],
) -> dict[str, str]:
    """Every variable of a container by its name."""
    namespace = _meta(pod).namespace or "default"
    found: dict[str, str] = {}
    for source in container.envFrom or ():
        found |= await _all_of(source, namespace, objects)
    services = await service_variables(pod, objects)
    for variable in container.env or ():
        value = await _value(variable, pod, container, objects, facts, pod_ips, services | found)
        if value is not None:
            found[variable.name] = value
    return {name: text for name, text in services.items() if name not in found} | found


def expand(text: str, variables: Mapping[str, str]) -> str:
    """`$(NAME)` is a variable, `$$` is a dollar; what is not known stays as it is."""

    def replace(match: re.Match[str]) -> str:
        name = match[1]
        return "$" if name is None else variables.get(name, str(match[0]))

    return _REFERENCE.sub(replace, text)


async def _all_of(source: v1.EnvFromSource, namespace: str, objects: Objects) -> dict[str, str]:
    data: dict[str, str] = {}
    if reference := source.configMapRef:
        found = await objects.config_map(namespace, reference.name or "")
        if found is None and not reference.optional:
            raise ConfigError(f'configmap "{reference.name}" not found')
        data = dict(found.data or {}) if found else {}
    elif secret := source.secretRef:
        kept = await objects.secret(namespace, secret.name or "")
        if kept is None and not secret.optional:
            raise ConfigError(f'secret "{secret.name}" not found')
        data = _decoded(kept, secret.name) if kept else {}
    return {f"{source.prefix or ''}{key}": value for key, value in data.items()}


async def _value(
    variable: v1.EnvVar,
    pod: v1.Pod,
    container: v1.Container | v1.EphemeralContainer,
    objects: Objects,
    facts: NodeFacts,
    pod_ips: Sequence[str],
    known: Mapping[str, str],
) -> str | None:
    source = variable.valueFrom
    if source is None:
        return expand(variable.value or "", known)
    if field := source.fieldRef:
        return field_value(pod, field.fieldPath, facts, pod_ips)
    if resource := source.resourceFieldRef:
        return resource_value(pod, container, resource, facts)
    namespace = _meta(pod).namespace or "default"
    if key := source.configMapKeyRef:
        found = await objects.config_map(namespace, key.name or "")
        data = (found.data or {}) if found else None
        return _keyed(data, key, "configmap", "ConfigMap", namespace)
    if secret := source.secretKeyRef:
        kept = await objects.secret(namespace, secret.name or "")
        data = _decoded(kept, secret.name) if kept else None
        return _keyed(data, secret, "secret", "Secret", namespace)
    raise ConfigError(f"the variable {variable.name} has a source that this node does not know.")


def _keyed(
    data: Mapping[str, str] | None,
    selector: v1.ConfigMapKeySelector | v1.SecretKeySelector,
    kind: str,
    shown: str,
    namespace: str,
) -> str | None:
    if data is None:
        if selector.optional:
            return None
        raise ConfigError(f'{kind} "{selector.name}" not found')
    if selector.key not in data:
        if selector.optional:
            return None
        raise ConfigError(
            f"couldn't find key {selector.key} in {shown} {namespace}/{selector.name}"
        )
    return data[selector.key]


def field_value(pod: v1.Pod, path: str, facts: NodeFacts, pod_ips: Sequence[str]) -> str:
    """A field of the pod, as the downward API tells it."""
    metadata, spec = _meta(pod), pod.spec
    if match := _ENTRY.fullmatch(path):
        table = metadata.labels if match[1] == "metadata.labels" else metadata.annotations
        return str((table or {}).get(match[2], ""))
    account = (spec.serviceAccountName or "default") if spec else ""
    values: dict[str, str] = {
        "metadata.name": metadata.name or "",
        "metadata.namespace": metadata.namespace or "",
        "metadata.uid": metadata.uid or "",
        "metadata.labels": _lines(metadata.labels),
        "metadata.annotations": _lines(metadata.annotations),
        "spec.nodeName": facts.name,
        "spec.serviceAccountName": account,
        "status.hostIP": facts.internal_ip,
        "status.hostIPs": facts.internal_ip,
        "status.podIP": next(iter(pod_ips), ""),
        "status.podIPs": ",".join(pod_ips),
    }
    if path not in values:
        raise ConfigError(f"unsupported fieldPath: {path}")
    return values[path]


def _lines(table: Mapping[str, str] | None) -> str:
    quoted = (f'{key}="{_quoted(value)}"' for key, value in sorted((table or {}).items()))
    return "\n".join(quoted)


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def resource_value(
    pod: v1.Pod,
    container: v1.Container | v1.EphemeralContainer,
    selector: v1.ResourceFieldSelector,
    facts: NodeFacts,
) -> str:
    """A limit or request in units of the divisor, rounded up; no limit is all that a node has."""
    if selector.containerName and pod.spec:
        everyone = [*(pod.spec.initContainers or ()), *pod.spec.containers]
        named = (one for one in everyone if one.name == selector.containerName)
        container = next(named, container)
    kind, _, name = selector.resource.partition(".")
    resources = container.resources or v1.ResourceRequirements()
    limits, requests = resources.limits or {}, resources.requests or {}
    table = {"limits": limits, "requests": requests}.get(kind)
    if table is None:
        raise ConfigError(f"unsupported container resource: {selector.resource}")
    text = table.get(name)
    amount = parse_quantity(text) if text else None
    if amount is None:
        amount = facts.allocatable().get(name, Decimal(0)) if kind == "limits" else Decimal(0)
    divisor = parse_quantity(selector.divisor or "1") or Decimal(1)
    return str(int((amount / divisor).to_integral_value(ROUND_CEILING)))


async def service_variables(pod: v1.Pod, objects: Objects) -> dict[str, str]:
    """The variables of a namespace's services; of the cluster's own even where links are off."""
    if pod.spec is None:
        return {}
    services: list[v1.Service] = []
    if pod.spec.enableServiceLinks is not False:
        services += await objects.services(_meta(pod).namespace or "default")
    if not any(_is_master(service) for service in services):
        default = await objects.services(_MASTER_SERVICE[0])
        services += [service for service in default if _is_master(service)]
    found: dict[str, str] = {}
    for service in services:
        found |= _of_service(service)
    return found


def _is_master(service: v1.Service) -> bool:
    metadata = service.metadata
    return metadata is not None and (metadata.namespace, metadata.name) == _MASTER_SERVICE


def _of_service(service: v1.Service) -> dict[str, str]:
    spec, metadata = service.spec, service.metadata
    if not spec or not metadata or spec.clusterIP in (None, "", "None") or not spec.ports:
        return {}
    name = (metadata.name or "").upper().replace("-", "_")
    host = f"[{spec.clusterIP}]" if ":" in str(spec.clusterIP) else str(spec.clusterIP)
    found = {f"{name}_SERVICE_HOST": str(spec.clusterIP)}
    found[f"{name}_SERVICE_PORT"] = str(spec.ports[0].port)
    for port in spec.ports:
        if port.name:
            key = port.name.upper().replace("-", "_")
            found[f"{name}_SERVICE_PORT_{key}"] = str(port.port)
    for number, port in enumerate(spec.ports):
        protocol = (port.protocol or "TCP").upper()
        url = f"{protocol.lower()}://{host}:{port.port}"
        if number == 0:
            found[f"{name}_PORT"] = url
        prefix = f"{name}_PORT_{port.port}_{protocol}"
        found[prefix] = url
        found[f"{prefix}_PROTO"] = protocol.lower()
        found[f"{prefix}_PORT"] = str(port.port)
        found[f"{prefix}_ADDR"] = str(spec.clusterIP)
    return found


def _decoded(secret: v1.Secret, name: str | None) -> dict[str, str]:
    found: dict[str, str] = {}
    for key, value in (secret.data or {}).items():
        try:
            found[key] = base64.b64decode(value).decode(errors="replace")
        except ValueError:
            raise ConfigError(f'the key {key} of secret "{name}" is not base64.') from None
    return found


def _meta(pod: v1.Pod) -> ObjectMeta:
    if pod.metadata is None:
        raise ConfigError("the pod has no metadata.")
    return pod.metadata
