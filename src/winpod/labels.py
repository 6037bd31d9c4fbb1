"""Labels and annotations of pods."""

RUN_LABEL = "winpod.dev/run"
"""Set on pods created by `winpod run`; the value is the container's name."""

REMOVE_LABEL = "winpod.dev/remove-when-ended"
"""Set by `winpod run --rm`: remove the pod when its container exits."""

PORTS_ANNOTATION = "winpod.dev/ports"
"""The published ports, as `ps` shows them."""

STDIO_ANNOTATION = "winpod.dev/stdio"
"""Whether the container has stdin and a terminal (`stdin tty`), which no CRI status reports."""

OWNER_ANNOTATION = "winpod.dev/owner"
"""Owner of the pod: `Deployment/web`."""

ACCELERATOR_ANNOTATION = "winpod.dev/accelerator"
"""Accelerator of the pod's microVM, set by its node: `kvm` or `emulation`."""

DEFAULT_CONTAINER_ANNOTATION = "kubectl.kubernetes.io/default-container"
"""Default container of the pod for exec, attach and logs."""
