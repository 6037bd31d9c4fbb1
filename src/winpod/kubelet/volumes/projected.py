"""Files of ConfigMap, Secret, downward API and projected volumes."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence

from winpod.errors import WinpodError
from winpod.k8s.models import core_v1 as v1
from winpod.k8s.pods import ConfigError
from winpod.kubelet.environment import field_value, resource_value
from winpod.kubelet.interfaces import ObjectSource
from winpod.kubelet.node_config import NodeConfig

_TOKEN_SECONDS = 3600


class VolumeMountFailed(WinpodError):
    """A volume cannot be set up; the pod waits, and an event reports the message."""

    code = "FAILED_PRECONDITION"


class ProjectedFiles:
    """Builds volume files for one pod.

    Pod IPs are not known yet, so fields that need them are empty.
    """

    def __init__(self, pod: v1.Pod, objects: ObjectSource, node_config: NodeConfig) -> None:
        self._pod = pod
        self._objects = objects
        self._node_config = node_config
        self._namespace = (pod.metadata and pod.metadata.namespace) or "default"

    async def files_of(self, volume: v1.Volume) -> dict[str, bytes] | None:
        """Return the files of a volume, None if it has another type."""
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
        raise VolumeMountFailed(
            f'the volume "{name}" has an unsupported projected source.',
            "Supported are configMap, secret, downwardAPI and serviceAccountToken.",
        )

    async def _token(self, projection: v1.ServiceAccountTokenProjection) -> str:
        account = (self._pod.spec and self._pod.spec.serviceAccountName) or "default"
        seconds = projection.expirationSeconds or _TOKEN_SECONDS
        audience = projection.audience or ""
        return await self._objects.token(self._namespace, account, audience, seconds, self._pod)

    async def _config_map(
        self, name: str, items: Sequence[v1.KeyToPath] | None, optional: bool | None
    ) -> dict[str, bytes]:
        config_map = await self._objects.config_map(self._namespace, name)
        if config_map is None:
            return _missing("configmap", name, optional)
        data = {key: text.encode() for key, text in (config_map.data or {}).items()}
        data |= _decoded(config_map.binaryData, f"configmap {name}")
        return _select_items(data, items, optional, f"configmap {name}")

    async def _secret(
        self, name: str, items: Sequence[v1.KeyToPath] | None, optional: bool | None
    ) -> dict[str, bytes]:
        secret = await self._objects.secret(self._namespace, name)
        if secret is None:
            return _missing("secret", name, optional)
        data = _decoded(secret.data, f"secret {name}")
        data |= {key: text.encode() for key, text in (secret.stringData or {}).items()}
        return _select_items(data, items, optional, f"secret {name}")

    def _downward(self, items: Sequence[v1.DownwardAPIVolumeFile] | None) -> dict[str, bytes]:
        try:
            return {_safe(item.path): self._downward_value(item).encode() for item in items or ()}
        except ConfigError as error:
            raise VolumeMountFailed(str(error)) from None

    def _downward_value(self, item: v1.DownwardAPIVolumeFile) -> str:
        if item.fieldRef:
            return field_value(self._pod, item.fieldRef.fieldPath, self._node_config, ())
        if item.resourceFieldRef and self._pod.spec:
            container = self._pod.spec.containers[0]
            return resource_value(self._pod, container, item.resourceFieldRef, self._node_config)
        return ""


def _decoded(data: Mapping[str, str] | None, shown: str) -> dict[str, bytes]:
    decoded: dict[str, bytes] = {}
    for key, text in (data or {}).items():
        try:
            decoded[key] = base64.b64decode(text)
        except ValueError:
            raise VolumeMountFailed(f"the key {key} of {shown} is not base64.") from None
    return decoded


def _missing(kind: str, name: str, optional: bool | None) -> dict[str, bytes]:
    if optional:
        return {}
    raise VolumeMountFailed(f'{kind} "{name}" not found')


def _select_items(
    data: Mapping[str, bytes],
    items: Sequence[v1.KeyToPath] | None,
    optional: bool | None,
    shown: str,
) -> dict[str, bytes]:
    if not items:
        return {_safe(key): content for key, content in data.items()}
    absent = [item.key for item in items if item.key not in data]
    if absent and not optional:
        raise VolumeMountFailed(f"references non-existent config key: {absent[0]} of {shown}")
    return {_safe(item.path): data[item.key] for item in items if item.key in data}


def _safe(path: str) -> str:
    """Check that a path is inside the volume; manifest files are not validated otherwise."""
    steps = path.replace("\\", "/").split("/")
    if not path or path.startswith("/") or ".." in steps or steps[0].startswith(".."):
        raise VolumeMountFailed(f'"{path}" is not a path inside the volume.')
    return path
