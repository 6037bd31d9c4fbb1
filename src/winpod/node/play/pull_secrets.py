"""With which secrets a pod's images are pulled: its own, else those of its service account.

A cluster's admission writes the latter into the pod; here it is done when the pod is made.
"""

from __future__ import annotations

from collections.abc import Callable

from lightkube.models import core_v1 as v1

from winpod.node.play.objects import Document, Key
from winpod.node.requests import metadata_of, spec_of

Find = Callable[[Key], Document | None]


def with_pull_secrets(pod: v1.Pod, find: Find) -> v1.Pod:
    spec = spec_of(pod)
    if not spec.imagePullSecrets:
        account = find(Key("ServiceAccount", _namespace(pod), spec.serviceAccountName or "default"))
        names = [one.get("name") for one in (account or {}).get("imagePullSecrets", ())]
        spec.imagePullSecrets = [v1.LocalObjectReference(name=name) for name in names] or None
    return pod


def pull_secrets(pod: v1.Pod, find: Find) -> list[Document]:
    """Those that there are."""
    wanted = with_pull_secrets(pod, find)
    names = [one.name or "" for one in spec_of(wanted).imagePullSecrets or ()]
    found = (find(Key("Secret", _namespace(pod), name)) for name in names)
    return [secret for secret in found if secret]


def _namespace(pod: v1.Pod) -> str:
    return metadata_of(pod).namespace or "default"
