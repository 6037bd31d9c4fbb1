"""Names that winpod writes into other systems, or reads from them: one table, a constant per row.

Users, charts and other programs rely on these names, so a change of one breaks clusters that run
an older winpod. Kubernetes' own keys are listed if several modules use them. docs/labels.md is
generated from the table: `python -m winpod.labels`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    LABEL = "label"
    ANNOTATION = "annotation"
    TAINT = "taint"
    FINALIZER = "finalizer"
    API_GROUP = "API group"
    SCHEMA = "schema"
    CNI_KEY = "CNI key"
    HANDLER = "handler"
    OBJECT = "object"


@dataclass(frozen=True, slots=True)
class Name:
    """A row of the table. `on` is the object that carries the name, or its kind."""

    key: str
    kind: Kind
    on: str
    set_by: str
    description: str

    @property
    def is_foreign(self) -> bool:
        """Whether Kubernetes, containerd or Microsoft define the name."""
        return self.kind not in (Kind.HANDLER, Kind.OBJECT) and API_GROUP not in self.key


NAMES: list[Name] = []


def _name(key: str, kind: Kind, on: str, set_by: str, description: str) -> str:
    NAMES.append(Name(key, kind, on, set_by, description))
    return key


API_GROUP = _name(
    "winpod.dev",
    Kind.API_GROUP,
    "WindowsUpgrade, WindowsInstance",
    "operator",
    "API group of winpod's custom resources.",
)

# Pods, sandboxes and containers.
RUN_LABEL = _name(
    "winpod.dev/run",
    Kind.LABEL,
    "sandbox, container",
    "`winpod run`",
    "Name of the container that `winpod run` created.",
)
AUTO_REMOVE_LABEL = _name(
    "winpod.dev/remove-when-ended",
    Kind.LABEL,
    "sandbox",
    "`winpod run --rm`",
    "Remove the pod when its container exits.",
)
PORTS_ANNOTATION = _name(
    "winpod.dev/ports",
    Kind.ANNOTATION,
    "sandbox",
    "`winpod run -p`",
    "Published ports, as `winpod ps` shows them.",
)
STDIO_ANNOTATION = _name(
    "winpod.dev/stdio",
    Kind.ANNOTATION,
    "container",
    "`winpod run`",
    "Whether the container has stdin and a terminal (`stdin tty`), which no CRI status reports.",
)
OWNER_ANNOTATION = _name(
    "winpod.dev/owner",
    Kind.ANNOTATION,
    "sandbox",
    "`winpod play`",
    "Owner of the pod, such as `Deployment/web`.",
)
ACCELERATOR_ANNOTATION = _name(
    "winpod.dev/accelerator",
    Kind.ANNOTATION,
    "Pod, sandbox",
    "`winpod node`",
    "Accelerator of the pod's microVM: `kvm` or `emulation`.",
)
OS_ANNOTATION = _name(
    "winpod.dev/os",
    Kind.ANNOTATION,
    "Pod",
    "user",
    "Operating system of the image manifest to use. Takes precedence over `kubernetes.io/os`.",
)
ARCHITECTURE_ANNOTATION = _name(
    "winpod.dev/architecture",
    Kind.ANNOTATION,
    "Pod",
    "user",
    "Architecture of the image manifest to use. Takes precedence over `kubernetes.io/arch`.",
)
OS_VERSION_ANNOTATION = _name(
    "winpod.dev/os-version",
    Kind.ANNOTATION,
    "Pod",
    "user",
    "Windows build of the image manifest to use, such as `10.0.17763`.",
)
UNCHECKED_ANNOTATION = _name(
    "winpod.dev/unchecked",
    Kind.ANNOTATION,
    "Pod",
    "operator (webhook)",
    "Why the webhook admitted the pod without a check of its images.",
)

# Nodes.
HYPERVISOR_LABEL = _name(
    "winpod.dev/hypervisor",
    Kind.LABEL,
    "Node",
    "`winpod node`",
    "Accelerator of hypervisor isolation, `kvm` or `emulation`, for node selection.",
)
ISOLATION_LABEL = _name(
    "winpod.dev/isolation",
    Kind.LABEL,
    "Node",
    "operator",
    "Isolation the node supports: `process`, `hypervisor` or `process-hypervisor`.",
)
HANDLER_LABEL_PREFIX = _name(
    "handler.winpod.dev/",
    Kind.LABEL,
    "Node",
    "operator",
    "Prefix; `handler.winpod.dev/HANDLER=true` for each handler that can start on the node.",
)
FILLED_LABELS_ANNOTATION = _name(
    "winpod.dev/filled-labels",
    Kind.ANNOTATION,
    "Node",
    "operator",
    "Labels that the operator set because the kubelet did not, separated by commas.",
)
RETIRED_BY_LABEL = _name(
    "winpod.dev/retired-by",
    Kind.LABEL,
    "Node",
    "operator (upgrade)",
    "WindowsUpgrade that retired the node (`--old-nodes mark`).",
)
CORDONED_ANNOTATION = _name(
    "winpod.dev/cordoned-by-hand",
    Kind.ANNOTATION,
    "Node",
    "`winpod instance`",
    "When a command without the operator cordoned the node, so that it is uncordoned afterwards.",
)

# RuntimeClasses and custom resources.
ABOUT_ANNOTATION = _name(
    "winpod.dev/about",
    Kind.ANNOTATION,
    "RuntimeClass",
    "operator",
    "What the class is for.",
)
RETIRING_ANNOTATION = _name(
    "winpod.dev/retiring",
    Kind.ANNOTATION,
    "RuntimeClass",
    "operator (upgrade)",
    "Message for users of a class that will be deleted.",
)
STOP_MANAGING_ANNOTATION = _name(
    "winpod.dev/forget",
    Kind.ANNOTATION,
    "WindowsInstance",
    "user",
    "Release the instance as it is, if it cannot be reached any more.",
)
INSTANCE_FINALIZER = _name(
    "winpod.dev/instance",
    Kind.FINALIZER,
    "WindowsInstance",
    "operator",
    "Keeps the object until the instance is removed from the cluster.",
)
UPGRADE_FINALIZER = _name(
    "winpod.dev/undo",
    Kind.FINALIZER,
    "WindowsUpgrade",
    "operator",
    "Keeps the object until the upgrade is undone or complete.",
)

# Files.
CHECK_SCHEMA = _name(
    "winpod.dev/check/v1",
    Kind.SCHEMA,
    "`winpod check -o json`",
    "`winpod check`",
    "Schema of the report ([check.schema.json](check.schema.json)).",
)
CNI_MASQUERADE_KEY = _name(
    "winpod.dev/masquerade",
    Kind.CNI_KEY,
    "network configuration list",
    "network",
    "Masquerade traffic of pods that leaves the cluster.",
)
CNI_CLUSTER_KEY = _name(
    "winpod.dev/cluster",
    Kind.CNI_KEY,
    "network configuration list",
    "network",
    "Pod network of the cluster, to which traffic is not masqueraded.",
)
CNI_ADDED_KEY = _name(
    "winpod.dev/added",
    Kind.CNI_KEY,
    "libcni cache entry",
    "network",
    "Number of plugins of the list that completed ADD.",
)

# Keys of Kubernetes and Microsoft.
OS_LABEL = _name(
    "kubernetes.io/os",
    Kind.LABEL,
    "Node",
    "kubelet",
    "Operating system. As an annotation of a Pod: of the image manifest to use.",
)
ARCH_LABEL = _name(
    "kubernetes.io/arch",
    Kind.LABEL,
    "Node",
    "kubelet",
    "Architecture. As an annotation of a Pod: of the image manifest to use.",
)
BETA_OS_LABEL = _name(
    "beta.kubernetes.io/os",
    Kind.LABEL,
    "Node",
    "kubelet",
    "Deprecated form of `kubernetes.io/os`, still read.",
)
BETA_ARCH_LABEL = _name(
    "beta.kubernetes.io/arch",
    Kind.LABEL,
    "Node",
    "kubelet",
    "Deprecated form of `kubernetes.io/arch`, still read.",
)
BUILD_LABEL = _name(
    "node.kubernetes.io/windows-build",
    Kind.LABEL,
    "Node",
    "kubelet, operator",
    "Windows build without its revision. The operator sets it if the kubelet did not.",
)
OSVERSION_LABEL = _name(
    "beta.kubernetes.io/osversion",
    Kind.LABEL,
    "Node",
    "`winpod node`",
    "Windows build, as proposed for Windows nodes (`--osversion-labels`).",
)
HYPERV_CAPABILITY_LABEL = _name(
    "capability.microsoft.com/isolation",
    Kind.LABEL,
    "Node",
    "`winpod node`",
    "`hyperv` if the node has hypervisor isolation (`--osversion-labels`).",
)
HOSTNAME_LABEL = _name(
    "kubernetes.io/hostname",
    Kind.LABEL,
    "Node",
    "kubelet",
    "Host name of the node.",
)
MANAGED_BY_LABEL = _name(
    "app.kubernetes.io/managed-by",
    Kind.LABEL,
    "RuntimeClass, Secret",
    "operator",
    "`winpod` on objects that the operator creates, changes and deletes.",
)
MANAGED_BY_VALUE = "winpod"
DEFAULT_CONTAINER_ANNOTATION = _name(
    "kubectl.kubernetes.io/default-container",
    Kind.ANNOTATION,
    "Pod",
    "user",
    "Default container of the pod for exec, attach and logs.",
)
LAST_APPLIED_ANNOTATION = _name(
    "kubectl.kubernetes.io/last-applied-configuration",
    Kind.ANNOTATION,
    "any object",
    "kubectl",
    "The manifest as the user wrote it.",
)
RUNTIME_HANDLER_ANNOTATION = _name(
    "kubernetes.io/runtimehandler",
    Kind.ANNOTATION,
    "CRI image request",
    "kubelet",
    "Runtime handler to pull the image for.",
)
CONFIG_SOURCE_ANNOTATION = _name(
    "kubernetes.io/config.source",
    Kind.ANNOTATION,
    "Pod",
    "kubelet",
    "Where a pod comes from: `file` for static pods, else `api`.",
)
CONFIG_HASH_ANNOTATION = _name(
    "kubernetes.io/config.hash",
    Kind.ANNOTATION,
    "Pod",
    "kubelet",
    "Hash of a static pod's manifest.",
)
CONFIG_SEEN_ANNOTATION = _name(
    "kubernetes.io/config.seen",
    Kind.ANNOTATION,
    "Pod",
    "kubelet",
    "When the kubelet first read a static pod's manifest.",
)
CONFIG_MIRROR_ANNOTATION = _name(
    "kubernetes.io/config.mirror",
    Kind.ANNOTATION,
    "Pod",
    "kubelet",
    "Hash of the static pod that a mirror pod represents.",
)

# Taints.
WINDOWS_TAINT_KEY = _name(
    "os",
    Kind.TAINT,
    "Node",
    "`winpod node`, `winpod instance`",
    "`os=windows:NoSchedule` on winpod's nodes, `os=Windows:NoSchedule` on Windows instances.",
)
UNSCHEDULABLE_TAINT = _name(
    "node.kubernetes.io/unschedulable",
    Kind.TAINT,
    "Node",
    "Kubernetes",
    "The node is cordoned.",
)
NOT_READY_TAINT = _name(
    "node.kubernetes.io/not-ready",
    Kind.TAINT,
    "Node",
    "Kubernetes",
    "The node is not ready.",
)
UNREACHABLE_TAINT = _name(
    "node.kubernetes.io/unreachable",
    Kind.TAINT,
    "Node",
    "Kubernetes",
    "The node does not renew its lease.",
)
MEMORY_PRESSURE_TAINT = _name(
    "node.kubernetes.io/memory-pressure",
    Kind.TAINT,
    "Node",
    "Kubernetes",
    "The node is short of memory.",
)
DISK_PRESSURE_TAINT = _name(
    "node.kubernetes.io/disk-pressure",
    Kind.TAINT,
    "Node",
    "Kubernetes",
    "The node is short of disk space.",
)
PID_PRESSURE_TAINT = _name(
    "node.kubernetes.io/pid-pressure",
    Kind.TAINT,
    "Node",
    "Kubernetes",
    "The node is short of process ids.",
)

# Runtime handlers.
PROCESS_HANDLER_NAME = _name(
    "runhcs-wcow-process",
    Kind.HANDLER,
    "RuntimeClass, Node",
    "containerd, winpod",
    "Process isolation. Aliases: the empty name, `docker` and `default`.",
)
HYPERVISOR_HANDLER_NAME = _name(
    "runhcs-wcow-hypervisor",
    Kind.HANDLER,
    "RuntimeClass, Node",
    "containerd, winpod",
    "Hypervisor isolation; the guest has the build of the image.",
)
HYPERVISOR_HANDLER_PREFIX = _name(
    "runhcs-wcow-hypervisor-",
    Kind.HANDLER,
    "RuntimeClass, Node",
    "containerd, winpod",
    "Prefix; hypervisor isolation with a guest of a build or release, such as "
    "`runhcs-wcow-hypervisor-17763`.",
)
HYPERV_ALIAS_PREFIX = _name(
    "containerd-hyperv-",
    Kind.HANDLER,
    "RuntimeClass",
    "AKS, winpod",
    "Prefix of aliases of `runhcs-wcow-hypervisor-`, such as `containerd-hyperv-17763`.",
)
RUNHCS_RUNTIME_TYPE = _name(
    "io.containerd.runhcs.v1",
    Kind.HANDLER,
    "containerd configuration",
    "`winpod instance`",
    "Runtime type of every handler of containerd on Windows.",
)

# Objects.
OPERATOR_NAMESPACE = _name(
    "winpod-system",
    Kind.OBJECT,
    "Namespace",
    "operator",
    "Namespace of the operator, unless its service account is in another.",
)
OPERATOR_CONFIG_MAP = _name(
    "winpod-operator",
    Kind.OBJECT,
    "ConfigMap",
    "operator",
    "Settings, under the key `config.yaml`.",
)
OPERATOR_LEASE = _name(
    "winpod-operator",
    Kind.OBJECT,
    "Lease",
    "operator",
    "Lease of leader election.",
)
OPERATOR_COMPONENT = _name(
    "winpod-operator",
    Kind.OBJECT,
    "Event",
    "operator",
    "Reporting component of the operator's events.",
)
WEBHOOK_SECRET = _name(
    "winpod-webhook",
    Kind.OBJECT,
    "Secret",
    "operator (webhook)",
    "Certificates of the webhook.",
)
WEBHOOK_SERVICE = _name(
    "winpod-webhook",
    Kind.OBJECT,
    "Service",
    "operator (webhook)",
    "Service of the webhook; the certificate is for its DNS names.",
)
WEBHOOK_CONFIGURATION = _name(
    "winpod",
    Kind.OBJECT,
    "MutatingWebhookConfiguration, ValidatingWebhookConfiguration",
    "operator (webhook)",
    "Both configurations, which are created when the operator is installed.",
)
INSTANCES_CONFIG_MAP = _name(
    "windows-instances",
    Kind.OBJECT,
    "ConfigMap",
    "user",
    "Inventory of Windows instances, as of the Windows Machine Config Operator.",
)
INSTANCES_KEY_SECRET = _name(
    "cloud-private-key",
    Kind.OBJECT,
    "Secret",
    "user",
    "SSH key for Windows instances, under `private-key.pem`.",
)
INSTANCES_BINDING = _name(
    "winpod-instances",
    Kind.OBJECT,
    "ClusterRoleBinding",
    "`winpod instance`",
    "Lets instances that join request a certificate.",
)
BOOTSTRAP_GROUP = _name(
    "system:bootstrappers:winpod",
    Kind.OBJECT,
    "Group",
    "operator, `winpod instance`",
    "Group of winpod's bootstrap tokens.",
)


_INTRODUCTION = """\
# Names

The labels, annotations, taints, finalizers, handler names and object names that winpod writes into
other systems or reads from them. This page is generated from `labels.py` (`make docs`).

**Set by** is what sets the name; winpod reads all of them. `io.microsoft.container.*` and
`io.microsoft.virtualmachine.*` annotations are in [hypervisor.md](hypervisor.md).
"""


def render_document() -> str:
    own = [name for name in NAMES if not name.is_foreign]
    sections = {
        "Keys of winpod": [n for n in own if n.kind not in (Kind.HANDLER, Kind.OBJECT)],
        "Keys of Kubernetes and Microsoft": [name for name in NAMES if name.is_foreign],
        "Runtime handlers": [name for name in own if name.kind is Kind.HANDLER],
        "Objects": [name for name in own if name.kind is Kind.OBJECT],
    }
    return "\n".join([_INTRODUCTION, *(_section(*section) for section in sections.items())])


def _section(title: str, names: list[Name]) -> str:
    rows = [
        f"| `{name.key}` | {name.kind} | {name.on} | {name.set_by} | {name.description} |"
        for name in names
    ]
    header = ("| Name | Kind | On | Set by | Meaning |", "|---|---|---|---|---|")
    return "\n".join((f"## {title}\n", *header, *rows)) + "\n"


if __name__ == "__main__":
    print(render_document(), end="")
