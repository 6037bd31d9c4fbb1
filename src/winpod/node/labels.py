"""The words by which a kubelet finds its pods again in a runtime."""

from __future__ import annotations

import hashlib
import json

from lightkube.models import core_v1 as v1

POD_NAME = "io.kubernetes.pod.name"
POD_NAMESPACE = "io.kubernetes.pod.namespace"
POD_UID = "io.kubernetes.pod.uid"
CONTAINER_NAME = "io.kubernetes.container.name"

RESTART_COUNT = "io.kubernetes.container.restartCount"
CONTAINER_HASH = "io.kubernetes.container.hash"
TERMINATION_MESSAGE_PATH = "io.kubernetes.container.terminationMessagePath"
TERMINATION_MESSAGE_POLICY = "io.kubernetes.container.terminationMessagePolicy"
POD_GRACE_PERIOD = "io.kubernetes.pod.terminationGracePeriod"


def container_hash(container: v1.Container | v1.EphemeralContainer) -> str:
    """Changes when a running container has to be replaced: with its image, and nothing else."""
    known = json.dumps({"image": container.image, "name": container.name}, sort_keys=True)
    return hashlib.sha256(known.encode()).hexdigest()[:8]
