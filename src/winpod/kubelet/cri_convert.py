"""Conversion of pods to CRI requests, as a kubelet on Windows fills them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence

from winpod.cri.proto import api_pb2 as api
from winpod.k8s.models import core_v1 as v1
from winpod.k8s.pods import ConfigError, metadata_of, spec_of
from winpod.kubelet.environment import expand
from winpod.kubelet.node_config import NodeConfig
from winpod.quantities import parse_quantity

POD_NAME = "io.kubernetes.pod.name"
POD_NAMESPACE = "io.kubernetes.pod.namespace"
POD_UID_LABEL = "io.kubernetes.pod.uid"
CONTAINER_NAME_LABEL = "io.kubernetes.container.name"
CONTAINER_HASH_LABEL = "io.kubernetes.container.hash"
RESTART_COUNT_LABEL = "io.kubernetes.container.restartCount"
TERMINATION_MESSAGE_PATH_LABEL = "io.kubernetes.container.terminationMessagePath"
TERMINATION_MESSAGE_POLICY_LABEL = "io.kubernetes.container.terminationMessagePolicy"
GRACE_PERIOD = "io.kubernetes.pod.terminationGracePeriod"
"""Labels and annotations by which a kubelet finds its pods in a runtime."""

_MAX_HOSTNAME = 63
_MAX_DNS_SEARCHES = 32
_MAX_DNS_SERVERS = 3
_PROTOCOLS = {"TCP": api.TCP, "UDP": api.UDP, "SCTP": api.SCTP}


def sandbox_config(pod: v1.Pod, node_config: NodeConfig, attempt: int) -> api.PodSandboxConfig:
    metadata, spec = metadata_of(pod), spec_of(pod)
    security = _windows_security(spec.securityContext, None)
    mode = api.NODE if spec.hostNetwork else api.POD
    linux = api.LinuxPodSandboxConfig(
        security_context=api.LinuxSandboxSecurityContext(
            namespace_options=api.NamespaceOption(network=mode)
        )
    )
    return api.PodSandboxConfig(
        metadata=api.PodSandboxMetadata(
            name=metadata.name, uid=metadata.uid, namespace=metadata.namespace, attempt=attempt
        ),
        hostname=hostname_of(pod, node_config),
        log_directory=str(node_config.log_root / log_directory(pod)),
        dns_config=dns_config(pod, node_config),
        port_mappings=_port_mappings(spec),
        labels={**(metadata.labels or {}), **_pod_labels(pod)},
        annotations=metadata.annotations or {},
        linux=linux,
        windows=api.WindowsPodSandboxConfig(
            security_context=api.WindowsSandboxSecurityContext(
                run_as_username=security.run_as_username,
                credential_spec=security.credential_spec,
                host_process=security.host_process,
            )
        ),
    )


def container_config(
    pod: v1.Pod,
    container: v1.Container | v1.EphemeralContainer,
    *,
    node_config: NodeConfig,
    image: api.ImageSpec,
    env: Mapping[str, str],
    mounts: Sequence[api.Mount],
    restart_count: int,
) -> api.ContainerConfig:
    spec = spec_of(pod)
    security = _windows_security(spec.securityContext, container.securityContext)
    _reject_administrator(spec, container, security.run_as_username)
    return api.ContainerConfig(
        metadata=api.ContainerMetadata(name=container.name, attempt=restart_count),
        image=image,
        command=[expand(word, env) for word in container.command or ()],
        args=[expand(word, env) for word in container.args or ()],
        working_dir=container.workingDir or "",
        envs=[api.KeyValue(key=key, value=value.encode()) for key, value in env.items()],
        mounts=mounts,
        labels={**_pod_labels(pod), CONTAINER_NAME_LABEL: container.name},
        annotations=_container_annotations(spec, container, restart_count),
        log_path=f"{container.name}/{restart_count}.log",
        stdin=bool(container.stdin),
        stdin_once=bool(container.stdinOnce),
        tty=bool(container.tty),
        windows=api.WindowsContainerConfig(
            resources=container_resources(container.resources, node_config.cpus),
            security_context=security,
        ),
    )


def container_resources(
    resources: v1.ResourceRequirements | None, cpus: int
) -> api.WindowsContainerResources:
    """Convert limits to Windows: CPU in 1/10000 of all processors."""
    limits = (resources.limits or {}) if resources else {}
    cpu, memory = (parse_quantity(limits.get(name, "0")) or 0 for name in ("cpu", "memory"))
    maximum = int(cpu * 10_000 / cpus)
    return api.WindowsContainerResources(
        cpu_maximum=min(max(maximum, 1), 10_000) if cpu else 0,
        memory_limit_in_bytes=int(memory),
    )


def container_hash(container: v1.Container | v1.EphemeralContainer) -> str:
    """Return a hash that changes when the container must be recreated.

    Only the image of a pod's container is mutable.
    """
    identity = json.dumps([container.name, container.image])
    return hashlib.sha256(identity.encode()).hexdigest()[:8]


def log_directory(pod: v1.Pod) -> str:
    metadata = metadata_of(pod)
    return f"{metadata.namespace}_{metadata.name}_{metadata.uid}"


def hostname_of(pod: v1.Pod, node_config: NodeConfig) -> str:
    spec, metadata = spec_of(pod), metadata_of(pod)
    if spec.hostnameOverride:
        return spec.hostnameOverride
    name = (spec.hostname or metadata.name or "")[:_MAX_HOSTNAME].rstrip("-.")
    if spec.setHostnameAsFQDN and (domain := domain_of(pod, node_config)):
        return f"{name}.{domain}"
    return name


def domain_of(pod: v1.Pod, node_config: NodeConfig) -> str:
    """Return the domain of a pod with a subdomain; empty for other pods."""
    subdomain = spec_of(pod).subdomain
    if not subdomain:
        return ""
    return f"{subdomain}.{metadata_of(pod).namespace}.svc.{node_config.cluster_domain}"


def dns_config(pod: v1.Pod, node_config: NodeConfig) -> api.DNSConfig:
    """Return the DNS configuration for the pod's policy; an empty one keeps the host's resolver."""
    spec = spec_of(pod)
    servers: list[str] = []
    searches: list[str] = []
    options: dict[str, str | None] = {}
    policy = spec.dnsPolicy or "ClusterFirst"
    uses_cluster_dns = policy == "ClusterFirstWithHostNet" or (
        policy == "ClusterFirst" and not spec.hostNetwork
    )
    if uses_cluster_dns and node_config.cluster_dns:
        domain = node_config.cluster_domain
        servers = list(node_config.cluster_dns)
        searches = [f"{metadata_of(pod).namespace}.svc.{domain}", f"svc.{domain}", domain]
        options = {"ndots": "5"}
    if own := spec.dnsConfig:
        servers += [server for server in own.nameservers or () if server not in servers]
        searches += [search for search in own.searches or () if search not in searches]
        options |= {option.name or "": option.value for option in own.options or ()}
    return api.DNSConfig(
        servers=servers[:_MAX_DNS_SERVERS],
        searches=searches[:_MAX_DNS_SEARCHES],
        options=[f"{name}:{value}" if value else name for name, value in options.items()],
    )


def _pod_labels(pod: v1.Pod) -> dict[str, str]:
    metadata = metadata_of(pod)
    return {
        POD_NAME: metadata.name or "",
        POD_NAMESPACE: metadata.namespace or "",
        POD_UID_LABEL: metadata.uid or "",
    }


def _container_annotations(
    spec: v1.PodSpec, container: v1.Container | v1.EphemeralContainer, restart_count: int
) -> dict[str, str]:
    return {
        CONTAINER_HASH_LABEL: container_hash(container),
        RESTART_COUNT_LABEL: str(restart_count),
        TERMINATION_MESSAGE_PATH_LABEL: container.terminationMessagePath or "/dev/termination-log",
        TERMINATION_MESSAGE_POLICY_LABEL: container.terminationMessagePolicy or "File",
        GRACE_PERIOD: str(_grace(spec)),
    }


def _grace(spec: v1.PodSpec) -> int:
    seconds = spec.terminationGracePeriodSeconds
    return 30 if seconds is None else seconds


def _port_mappings(spec: v1.PodSpec) -> list[api.PortMapping]:
    if spec.hostNetwork:
        return []
    return [
        api.PortMapping(
            protocol=_PROTOCOLS[port.protocol or "TCP"],
            container_port=port.containerPort,
            host_port=port.hostPort or 0,
            host_ip=port.hostIP or "",
        )
        for container in (*(spec.initContainers or ()), *spec.containers)
        for port in container.ports or ()
    ]


def _windows_security(
    pod: v1.PodSecurityContext | None, container: v1.SecurityContext | None
) -> api.WindowsContainerSecurityContext:
    """Merge the security contexts; fields of the container override those of the pod."""
    own = (container and container.windowsOptions) or v1.WindowsSecurityContextOptions()
    shared = (pod and pod.windowsOptions) or v1.WindowsSecurityContextOptions()
    host_process = shared.hostProcess if own.hostProcess is None else own.hostProcess
    return api.WindowsContainerSecurityContext(
        run_as_username=own.runAsUserName or shared.runAsUserName or "",
        credential_spec=own.gmsaCredentialSpec or shared.gmsaCredentialSpec or "",
        host_process=bool(host_process),
    )


def _reject_administrator(
    spec: v1.PodSpec, container: v1.Container | v1.EphemeralContainer, user: str
) -> None:
    own, shared = container.securityContext, spec.securityContext
    run_as_non_root = own.runAsNonRoot if own else None
    if run_as_non_root is None:
        run_as_non_root = shared.runAsNonRoot if shared else None
    if run_as_non_root and user.lower() == "containeradministrator":
        raise ConfigError(
            "container's runAsUserName (ContainerAdministrator) which will be regarded as root "
            "identity and will break non-root policy"
        )
