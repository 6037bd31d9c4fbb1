"""Environment variables of a container, resolved in the kubelet's order.

`envFrom` comes first, then `env` in order, where each variable may refer to earlier ones; service
variables fill in names that are not set. A dangling reference fails the container with the
kubelet's message, unless it is optional.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from decimal import ROUND_CEILING, Decimal

from winpod.k8s.models import core_v1 as v1
from winpod.k8s.models.meta_v1 import ObjectMeta
from winpod.k8s.pods import ConfigError
from winpod.kubelet.interfaces import ObjectSource
from winpod.kubelet.node_config import NodeConfig
from winpod.quantities import parse_quantity

_REFERENCE = re.compile(r"\$(?:\$|\(([^)]*)\))")
_ENTRY = re.compile(r"(metadata\.(?:labels|annotations))\['(.*)'\]")
_MASTER_SERVICE = ("default", "kubernetes")


async def resolve_environment(
    pod: v1.Pod,
    container: v1.Container | v1.EphemeralContainer,
    objects: ObjectSource,
    node_config: NodeConfig,
    pod_ips: Sequence[str],
) -> dict[str, str]:
    """Return all variables of a container by name."""
    namespace = _meta(pod).namespace or "default"
    variables: dict[str, str] = {}
    for source in container.envFrom or ():
        variables |= await _env_from(source, namespace, objects)
    services = await service_variables(pod, objects)
    for variable in container.env or ():
        value = await _value(
            variable, pod, container, objects, node_config, pod_ips, services | variables
        )
        if value is not None:
            variables[variable.name] = value
    return {name: text for name, text in services.items() if name not in variables} | variables


def expand(text: str, variables: Mapping[str, str]) -> str:
    """Expand `$(NAME)` and `$$`; unknown references stay as they are."""

    def replace(match: re.Match[str]) -> str:
        name = match[1]
        return "$" if name is None else variables.get(name, str(match[0]))

    return _REFERENCE.sub(replace, text)


async def _env_from(
    source: v1.EnvFromSource, namespace: str, objects: ObjectSource
) -> dict[str, str]:
    data: dict[str, str] = {}
    if reference := source.configMapRef:
        config_map = await objects.config_map(namespace, reference.name or "")
        if config_map is None and not reference.optional:
            raise ConfigError(f'configmap "{reference.name}" not found')
        data = dict(config_map.data or {}) if config_map else {}
    elif secret := source.secretRef:
        secret_object = await objects.secret(namespace, secret.name or "")
        if secret_object is None and not secret.optional:
            raise ConfigError(f'secret "{secret.name}" not found')
        data = _decoded(secret_object, secret.name) if secret_object else {}
    return {f"{source.prefix or ''}{key}": value for key, value in data.items()}


async def _value(
    variable: v1.EnvVar,
    pod: v1.Pod,
    container: v1.Container | v1.EphemeralContainer,
    objects: ObjectSource,
    node_config: NodeConfig,
    pod_ips: Sequence[str],
    variables: Mapping[str, str],
) -> str | None:
    source = variable.valueFrom
    if source is None:
        return expand(variable.value or "", variables)
    if field := source.fieldRef:
        return field_value(pod, field.fieldPath, node_config, pod_ips)
    if resource := source.resourceFieldRef:
        return resource_value(pod, container, resource, node_config)
    namespace = _meta(pod).namespace or "default"
    if key := source.configMapKeyRef:
        config_map = await objects.config_map(namespace, key.name or "")
        data = (config_map.data or {}) if config_map else None
        return _key_value(data, key, "configmap", "ConfigMap", namespace)
    if secret := source.secretKeyRef:
        secret_object = await objects.secret(namespace, secret.name or "")
        data = _decoded(secret_object, secret.name) if secret_object else None
        return _key_value(data, secret, "secret", "Secret", namespace)
    raise ConfigError(f"the variable {variable.name} has an unsupported source.")


def _key_value(
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


def field_value(pod: v1.Pod, path: str, node_config: NodeConfig, pod_ips: Sequence[str]) -> str:
    """Return a pod field as the downward API formats it."""
    metadata, spec = _meta(pod), pod.spec
    if match := _ENTRY.fullmatch(path):
        table = metadata.labels if match[1] == "metadata.labels" else metadata.annotations
        return str((table or {}).get(match[2], ""))
    account = (spec.serviceAccountName or "default") if spec else ""
    values: dict[str, str] = {
        "metadata.name": metadata.name or "",
        "metadata.namespace": metadata.namespace or "",
        "metadata.uid": metadata.uid or "",
        "metadata.labels": _format_map(metadata.labels),
        "metadata.annotations": _format_map(metadata.annotations),
        "spec.nodeName": node_config.name,
        "spec.serviceAccountName": account,
        "status.hostIP": node_config.internal_ip,
        "status.hostIPs": node_config.internal_ip,
        "status.podIP": next(iter(pod_ips), ""),
        "status.podIPs": ",".join(pod_ips),
    }
    if path not in values:
        raise ConfigError(f"unsupported fieldPath: {path}")
    return values[path]


def _format_map(table: Mapping[str, str] | None) -> str:
    quoted = (f'{key}="{_quoted(value)}"' for key, value in sorted((table or {}).items()))
    return "\n".join(quoted)


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def resource_value(
    pod: v1.Pod,
    container: v1.Container | v1.EphemeralContainer,
    selector: v1.ResourceFieldSelector,
    node_config: NodeConfig,
) -> str:
    """Return a limit or request in units of the divisor, rounded up.

    A missing limit is the node's allocatable amount.
    """
    if selector.containerName and pod.spec:
        every = [*(pod.spec.initContainers or ()), *pod.spec.containers]
        named = (c for c in every if c.name == selector.containerName)
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
        amount = node_config.allocatable().get(name, Decimal(0)) if kind == "limits" else Decimal(0)
    divisor = parse_quantity(selector.divisor or "1") or Decimal(1)
    return str(int((amount / divisor).to_integral_value(ROUND_CEILING)))


async def service_variables(pod: v1.Pod, objects: ObjectSource) -> dict[str, str]:
    """Return the service variables of the pod's namespace.

    The `kubernetes` service is included even if service links are disabled.
    """
    if pod.spec is None:
        return {}
    services: list[v1.Service] = []
    if pod.spec.enableServiceLinks is not False:
        services += await objects.services(_meta(pod).namespace or "default")
    if not any(_is_master(service) for service in services):
        default = await objects.services(_MASTER_SERVICE[0])
        services += [service for service in default if _is_master(service)]
    variables: dict[str, str] = {}
    for service in services:
        variables |= _variables_of(service)
    return variables


def _is_master(service: v1.Service) -> bool:
    metadata = service.metadata
    return metadata is not None and (metadata.namespace, metadata.name) == _MASTER_SERVICE


def _variables_of(service: v1.Service) -> dict[str, str]:
    spec, metadata = service.spec, service.metadata
    if not spec or not metadata or spec.clusterIP in (None, "", "None") or not spec.ports:
        return {}
    name = (metadata.name or "").upper().replace("-", "_")
    host = f"[{spec.clusterIP}]" if ":" in str(spec.clusterIP) else str(spec.clusterIP)
    variables = {f"{name}_SERVICE_HOST": str(spec.clusterIP)}
    variables[f"{name}_SERVICE_PORT"] = str(spec.ports[0].port)
    for port in spec.ports:
        if port.name:
            key = port.name.upper().replace("-", "_")
            variables[f"{name}_SERVICE_PORT_{key}"] = str(port.port)
    for number, port in enumerate(spec.ports):
        protocol = (port.protocol or "TCP").upper()
        url = f"{protocol.lower()}://{host}:{port.port}"
        if number == 0:
            variables[f"{name}_PORT"] = url
        prefix = f"{name}_PORT_{port.port}_{protocol}"
        variables[prefix] = url
        variables[f"{prefix}_PROTO"] = protocol.lower()
        variables[f"{prefix}_PORT"] = str(port.port)
        variables[f"{prefix}_ADDR"] = str(spec.clusterIP)
    return variables


def _decoded(secret: v1.Secret, name: str | None) -> dict[str, str]:
    decoded: dict[str, str] = {}
    for key, value in (secret.data or {}).items():
        try:
            decoded[key] = base64.b64decode(value).decode(errors="replace")
        except ValueError:
            raise ConfigError(f'the key {key} of secret "{name}" is not base64.') from None
    return decoded


def _meta(pod: v1.Pod) -> ObjectMeta:
    if pod.metadata is None:
        raise ConfigError("the pod has no metadata.")
    return pod.metadata
