"""Names of the objects of `winpod play`, read without starting the server.

Used to resolve targets and for shell completion.
"""

from __future__ import annotations

from pathlib import Path

from winpod.config import read_config
from winpod.errors import PermissionDenied, WinpodError
from winpod.play.apiserver.database import read_names

_KINDS_WITHOUT_PODS = (
    "Namespace",
    "RuntimeClass",
    "Node",
    "ConfigMap",
    "Secret",
    "ServiceAccount",
    "PersistentVolume",
    "PersistentVolumeClaim",
)


def has_pods(root: Path) -> bool:
    """Whether objects exist that run pods. For another user's root, whether its server runs."""
    try:
        return any(kind not in _KINDS_WITHOUT_PODS for kind, _, _ in read_names(root))
    except PermissionDenied:
        return (root / "play/play.sock").exists()


def owner_named(text: str) -> str:
    """Expand `deploy/web` to `Deployment/web`; empty if the text names no kind."""
    word, slash, name = text.partition("/")
    if not slash:
        return ""
    from winpod.play.apiserver.objects import find_kind

    kind = find_kind(word)
    return f"{kind.name}/{name}" if kind else ""


def complete_names(incomplete: str) -> list[str]:
    """Complete pod names, and other objects as kind/name."""
    try:
        names = read_names(read_config().root)
    except WinpodError:
        return []
    found = []
    for kind, _, name in names:
        if kind == "Pod":
            found.append(name)
        elif kind not in _KINDS_WITHOUT_PODS:
            found.append(f"{kind.lower()}/{name}")
    return sorted(name for name in found if name.startswith(incomplete))
