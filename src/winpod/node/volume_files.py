"""The files of volumes that Kubernetes writes: config maps, secrets, tokens, the pod itself."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence

from lightkube.models import core_v1 as v1

from winpod.node.environment import ConfigError, field_value, resource_value
from winpod.node.facts import NodeFacts
from winpod.node.sources import Objects
from winpod.windows.errors import WinpodError

_TOKEN_SECONDS = 3600


class VolumeFailed(WinpodError):
    """A volume cannot be made; the pod waits, and an event says this."""

    code = "FAILED_PRECONDITION"


class VolumeFiles:
    """For one pod. Its addresses are known only later: a field that needs them is empty."""

    def __init__(self, pod: v1.Pod, objects: Objects, facts: NodeFacts) -> None:
        self._pod = pod
        self._objects = objects
        self._facts = facts
        self._namespace = (pod.metadata and pod.metadata.namespace) or "default"

    async def of(self, volume: v1.Volume) -> dict[str, bytes] | None:
        """The files of a volume, None where it is of another kind."""
        if source := volume.configMap:
            return await self._config_map(source.name or "", source.items, source.optional)
        if secret := volume.secret:
            return await self._secret(secret.secretName or "", secret.items, secret.optional)
        if downward := volume.downwardAPI:
            return self._downward(downward.items)
        if projected := volume.projected:
            files: dict[str, bytes] = {}
            for part in projected.sources or ():
                files |= await self._projected(volume.name, part)
            return files
        return None

    async def _projected(self, name: str, part: v1.VolumeProjection) -> dict[str, bytes]:
        if source := part.configMap:
            return await self._config_map(source.name or "", source.items, source.optional)
        if secret := part.secret:
            return await self._secret(secret.name or "", secret.items, secret.optional)
        if part.downwardAPI:
            return self._downward(part.downwardAPI.items)
        if token := part.serviceAccountToken:
            return {token.path: (await self._token(token)).encode()}
        raise VolumeFailed(
            f'the volume "{name}" projects what this node does not know.',
            "It projects config maps, secrets, the downward API and service account tokens.",
        )

    async def _token(self, wanted: v1.ServiceAccountTokenProjection) -> str:
        account = (self._pod.spec and self._pod.spec.serviceAccountName) or "default"
        seconds = wanted.expirationSeconds or _TOKEN_SECONDS
        audience = wanted.audience or ""
        return await self._objects.token(self._namespace, account, audience, seconds, self._pod)

    async def _config_map(
        self, name: str, items: Sequence[v1.KeyToPath] | None, optional: bool | None
    ) -> dict[str, bytes]:
        found = await self._objects.config_map(self._namespace, name)
        if found is None:
            return _missing("configmap", name, optional)
        data = {key: text.encode() for key, text in (found.data or {}).items()}
        data |= _decoded(found.binaryData, f"configmap {name}")
        return _chosen(data, items, optional, f"configmap {name}")

    async def _secret(
        self, name: str, items: Sequence[v1.KeyToPath] | None, optional: bool | None
    ) -> dict[str, bytes]:
        found = await self._objects.secret(self._namespace, name)
        if found is None:
            return _missing("secret", name, optional)
        data = _decoded(found.data, f"secret {name}")
        data |= {key: text.encode() for key, text in (found.stringData or {}).items()}
        return _chosen(data, items, optional, f"secret {name}")

    def _downward(self, items: Sequence[v1.DownwardAPIVolumeFile] | None) -> dict[str, bytes]:
        try:
            return {_safe(item.path): self._fact(item).encode() for item in items or ()}
        except ConfigError as error:
            raise VolumeFailed(str(error)) from None

    def _fact(self, item: v1.DownwardAPIVolumeFile) -> str:
        if item.fieldRef:
            return field_value(self._pod, item.fieldRef.fieldPath, self._facts, ())
        if item.resourceFieldRef and self._pod.spec:
            container = self._pod.spec.containers[0]
            return resource_value(self._pod, container, item.resourceFieldRef, self._facts)
        return ""


def _decoded(data: Mapping[str, str] | None, shown: str) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for key, text in (data or {}).items():
        try:
            found[key] = base64.b64decode(text)
        except ValueError:
            raise VolumeFailed(f"the key {key} of {shown} is not base64.") from None
    return found


def _missing(kind: str, name: str, optional: bool | None) -> dict[str, bytes]:
    if optional:
        return {}
    raise VolumeFailed(f'{kind} "{name}" not found')


def _chosen(
    data: Mapping[str, bytes],
    items: Sequence[v1.KeyToPath] | None,
    optional: bool | None,
    shown: str,
) -> dict[str, bytes]:
    if not items:
        return {_safe(key): content for key, content in data.items()}
    absent = [item.key for item in items if item.key not in data]
    if absent and not optional:
        raise VolumeFailed(f"references non-existent config key: {absent[0]} of {shown}")
    return {_safe(item.path): data[item.key] for item in items if item.key in data}


def _safe(path: str) -> str:
    """A path below the volume; the API server lets no other through, and a file may."""
    steps = path.replace("\\", "/").split("/")
    if not path or path.startswith("/") or ".." in steps or steps[0].startswith(".."):
        raise VolumeFailed(f'"{path}" is no path inside a volume.')
    return path
