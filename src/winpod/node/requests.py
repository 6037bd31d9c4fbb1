"""A pod as CRI requests: what a kubelet on Windows asks its runtime for, field by field."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence

from lightkube.models import core_v1 as v1
from lightkube.models.meta_v1 import ObjectMeta

from winpod.cri.proto import api_pb2 as api
from winpod.node.environment import ConfigError, expand
from winpod.node.facts import NodeFacts
from winpod.windows.quantities import parse_quantity

POD_NAME = "io.kubernetes.pod.name"
POD_NAMESPACE = "io.kubernetes.pod.namespace"
POD_UID = "io.kubernetes.pod.uid"
CONTAINER_NAME = "io.kubernetes.container.name"
CONTAINER_HASH = "io.kubernetes.container.hash"
RESTART_COUNT = "io.kubernetes.container.restartCount"
MESSAGE_PATH = "io.kubernetes.container.terminationMessagePath"
MESSAGE_POLICY = "io.kubernetes.container.terminationMessagePolicy"
GRACE_PERIOD = "io.kubernetes.pod.terminationGracePeriod"
"""The words by which a kubelet finds its pods again in a runtime."""

_LONGEST_HOSTNAME = 63
_SEARCH_LIMIT = 32
_SERVER_LIMIT = 3
_PROTOCOLS = {"TCP": api.TCP, "UDP": api.UDP, "SCTP": api.SCTP}


def sandbox_config(pod: v1.Pod, facts: NodeFacts, attempt: int) -> api.PodSandboxConfig:
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
        hostname=hostname_of(pod, facts),
        log_directory=str(facts.log_root / log_folder(pod)),
        dns_config=dns_config(pod, facts),
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
    facts: NodeFacts,
    image: api.ImageSpec,
    env: Mapping[str, str],
    mounts: Sequence[api.Mount],
    restart_count: int,
) -> api.ContainerConfig:
    spec = spec_of(pod)
    security = _windows_security(spec.securityContext, container.securityContext)
    _refuse_administrator(spec, container, security.run_as_username)
    return api.ContainerConfig(
        metadata=api.ContainerMetadata(name=container.name, attempt=restart_count),
        image=image,
        command=[expand(word, env) for word in container.command or ()],
        args=[expand(word, env) for word in container.args or ()],
        working_dir=container.workingDir or "",
        envs=[api.KeyValue(key=key, value=value.encode()) for key, value in env.items()],
        mounts=mounts,
        labels={**_pod_labels(pod), CONTAINER_NAME: container.name},
        annotations=_container_annotations(spec, container, restart_count),
        log_path=f"{container.name}/{restart_count}.log",
        stdin=bool(container.stdin),
        stdin_once=bool(container.stdinOnce),
        tty=bool(container.tty),
        windows=api.WindowsContainerConfig(
            resources=container_resources(container.resources, facts.cpus),
            security_context=security,
        ),
    )


def container_resources(
    resources: v1.ResourceRequirements | None, cpus: int
) -> api.WindowsContainerResources:
    """Limits as Windows takes them: CPU as a share of all processors, of 10000."""
    limits = (resources.limits or {}) if resources else {}
    cpu, memory = (parse_quantity(limits.get(name, "0")) or 0 for name in ("cpu", "memory"))
    maximum = int(cpu * 10_000 / cpus)
    return api.WindowsContainerResources(
        cpu_maximum=min(max(maximum, 1), 10_000) if cpu else 0,
        memory_limit_in_bytes=int(memory),
    )


def container_hash(container: v1.Container | v1.EphemeralContainer) -> str:
    """Another one when the container must be made anew; only its image can change in a pod."""
    told = json.dumps([container.name, container.image])
    return hashlib.sha256(told.encode()).hexdigest()[:8]


def log_folder(pod: v1.Pod) -> str:
    metadata = metadata_of(pod)
    return f"{metadata.namespace}_{metadata.name}_{metadata.uid}"


def hostname_of(pod: v1.Pod, facts: NodeFacts) -> str:
    spec, metadata = spec_of(pod), metadata_of(pod)
    if spec.hostnameOverride:
        return spec.hostnameOverride
    name = (spec.hostname or metadata.name or "")[:_LONGEST_HOSTNAME].rstrip("-.")
    if spec.setHostnameAsFQDN and (domain := domain_of(pod, facts)):
        return f"{name}.{domain}"
    return name


def domain_of(pod: v1.Pod, facts: NodeFacts) -> str:
    """The domain of a pod that has a subdomain of its own, empty for all others."""
    subdomain = spec_of(pod).subdomain
    if not subdomain:
        return ""
    return f"{subdomain}.{metadata_of(pod).namespace}.svc.{facts.cluster_domain}"


def dns_config(pod: v1.Pod, facts: NodeFacts) -> api.DNSConfig:
    """By the pod's policy; an empty one leaves the machine's resolver."""
    spec = spec_of(pod)
    servers: list[str] = []
    searches: list[str] = []
    options: dict[str, str | None] = {}
    policy = spec.dnsPolicy or "ClusterFirst"
    of_cluster = policy == "ClusterFirstWithHostNet" or (
        policy == "ClusterFirst" and not spec.hostNetwork
    )
    if of_cluster and facts.cluster_dns:
        domain = facts.cluster_domain
        servers = list(facts.cluster_dns)
        searches = [f"{metadata_of(pod).namespace}.svc.{domain}", f"svc.{domain}", domain]
        options = {"ndots": "5"}
    if own := spec.dnsConfig:
        servers += [server for server in own.nameservers or () if server not in servers]
        searches += [search for search in own.searches or () if search not in searches]
        options |= {option.name or "": option.value for option in own.options or ()}
    return api.DNSConfig(
        servers=servers[:_SERVER_LIMIT],
        searches=searches[:_SEARCH_LIMIT],
        options=[f"{name}:{value}" if value else name for name, value in options.items()],
    )


def metadata_of(pod: v1.Pod) -> ObjectMeta:
    if pod.metadata is None:
        raise ConfigError("the pod has no metadata.")
    return pod.metadata


def spec_of(pod: v1.Pod) -> v1.PodSpec:
    if pod.spec is None:
        raise ConfigError("the pod has no spec.")
    return pod.spec


def _pod_labels(pod: v1.Pod) -> dict[str, str]:
    metadata = metadata_of(pod)
    return {
        POD_NAME: metadata.name or "",
        POD_NAMESPACE: metadata.namespace or "",
        POD_UID: metadata.uid or "",
    }


def _container_annotations(
    spec: v1.PodSpec, container: v1.Container | v1.EphemeralContainer, restart_count: int
) -> dict[str, str]:
    return {
        CONTAINER_HASH: container_hash(container),
        RESTART_COUNT: str(restart_count),
        MESSAGE_PATH: container.terminationMessagePath or "/dev/termination-log",
        MESSAGE_POLICY: container.terminationMessagePolicy or "File",
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
    """The container's words go before the pod's, each field by itself."""
    own = (container and container.windowsOptions) or v1.WindowsSecurityContextOptions()
    shared = (pod and pod.windowsOptions) or v1.WindowsSecurityContextOptions()
    host_process = shared.hostProcess if own.hostProcess is None else own.hostProcess
    return api.WindowsContainerSecurityContext(
        run_as_username=own.runAsUserName or shared.runAsUserName or "",
        credential_spec=own.gmsaCredentialSpec or shared.gmsaCredentialSpec or "",
        host_process=bool(host_process),
    )


def _refuse_administrator(
    spec: v1.PodSpec, container: v1.Container | v1.EphemeralContainer, user: str
) -> None:
    own, shared = container.securityContext, spec.securityContext
    wanted = own.runAsNonRoot if own else None
    if wanted is None:
        wanted = shared.runAsNonRoot if shared else None
    if wanted and user.lower() == "containeradministrator":
        raise ConfigError(
            "container's runAsUserName (ContainerAdministrator) which will be regarded as root "
            "identity and will break non-root policy"
        )
