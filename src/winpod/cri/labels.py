"""Labels and annotations of pods: what is to become of one, and what there is to know of it."""

RUN_LABEL = "winpod.dev/run"
"""The pod has one container and is not needed without it; the value is its name."""

REMOVE_LABEL = "winpod.dev/remove-when-ended"
PORTS_ANNOTATION = "winpod.dev/ports"
"""The published ports, for people."""

STDIO_ANNOTATION = "winpod.dev/stdio"
"""Whether the program has input and a terminal, which no status tells: `stdin tty`."""

OWNER_ANNOTATION = "winpod.dev/owner"
"""What made the pod, for people: `Deployment/web`."""

ACCELERATOR_ANNOTATION = "winpod.dev/accelerator"
"""What runs the pod's microVM, by the node that has it: `kvm` or `emulation`."""

DEFAULT_CONTAINER_ANNOTATION = "kubectl.kubernetes.io/default-container"
"""The container that is meant where only the pod is named."""
