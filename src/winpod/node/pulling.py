"""Images for containers: when to pull, with whose secrets, and how long to wait after a failure."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import Mapping
from typing import Any

from lightkube.models import core_v1 as v1

from winpod.cri.proto import api_pb2 as api
from winpod.cri.rpc import Client, RemoteError
from winpod.images.references import parse_reference
from winpod.node.requests import metadata_of, spec_of
from winpod.node.sources import Objects, Reporter
from winpod.windows.errors import WinpodError

FIRST_WAIT, LONGEST_WAIT = 10.0, 300.0
MOST_AT_ONCE = 4


class PullFailed(WinpodError):
    """A container waits for its image; `reason` is what its status says."""

    code = "UNAVAILABLE"

    def __init__(self, reason: str, sentence: str) -> None:
        super().__init__(sentence)
        self.reason = reason


class Puller:
    def __init__(self, client: Client, objects: Objects, reporter: Reporter) -> None:
        self._client = client
        self._objects = objects
        self._reporter = reporter
        self._slots = asyncio.Semaphore(MOST_AT_ONCE)
        self._under_way: dict[tuple[str, str], asyncio.Task[str]] = {}
        self._waits: dict[tuple[str, str, str], tuple[float, float]] = {}

    async def ensure(
        self, pod: v1.Pod, container: v1.Container | v1.EphemeralContainer, handler: str
    ) -> api.ImageSpec:
        """The image of a container, pulled if its policy wants that."""
        image = container.image or ""
        await self._check_name(pod, container)
        spec = api.ImageSpec(
            image=image, runtime_handler=handler, annotations=metadata_of(pod).annotations or {}
        )
        if is_local(image):
            return await self._from_directory(pod, container, spec)
        policy = container.imagePullPolicy or default_policy(image)
        present = await self._is_present(spec) if policy != "Always" else False
        if present:
            text = f'Container image "{image}" already present on machine'
            await self._reporter.event(pod, "Normal", "Pulled", text, container.name)
            return spec
        if policy == "Never":
            text = f'Container image "{image}" is not present with pull policy of Never'
            await self._reporter.event(pod, "Warning", "ErrImageNeverPull", text, container.name)
            raise PullFailed("ErrImageNeverPull", text)
        await self._pull(pod, container, spec)
        return spec

    async def _from_directory(
        self, pod: v1.Pod, container: v1.Container | v1.EphemeralContainer, spec: api.ImageSpec
    ) -> api.ImageSpec:
        """A directory has no name that the runtime keeps: the image is known by its id."""
        found = api.ImageSpec()
        found.CopyFrom(spec)
        found.user_specified_image = spec.image
        found.image = await self._pull(pod, container, spec)
        return found

    async def _check_name(
        self, pod: v1.Pod, container: v1.Container | v1.EphemeralContainer
    ) -> None:
        if is_local(container.image or ""):
            return
        try:
            parse_reference(container.image or "")
        except WinpodError as error:
            text = f'Failed to apply default image tag "{container.image}": {error.sentence}'
            await self._reporter.event(pod, "Warning", "InspectFailed", text, container.name)
            raise PullFailed("InvalidImageName", text) from None

    async def _is_present(self, spec: api.ImageSpec) -> bool:
        found = await self._client.call("ImageStatus", api.ImageStatusRequest(image=spec))
        return bool(found.image.id)

    async def _pull(
        self, pod: v1.Pod, container: v1.Container | v1.EphemeralContainer, spec: api.ImageSpec
    ) -> str:
        key = (metadata_of(pod).uid or "", spec.image, spec.runtime_handler)
        ready_at, wait = self._waits.get(key, (0.0, 0.0))
        name = container.name
        if time.monotonic() < ready_at:
            text = f'Back-off pulling image "{spec.image}"'
            await self._reporter.event(pod, "Normal", "BackOff", text, name)
            raise PullFailed("ImagePullBackOff", text)
        await self._reporter.event(pod, "Normal", "Pulling", f'Pulling image "{spec.image}"', name)
        started = time.monotonic()
        try:
            reference = await self._shared_pull(pod, spec)
        except RemoteError as error:
            wait = min(wait * 2 or FIRST_WAIT, LONGEST_WAIT)
            self._waits[key] = (time.monotonic() + wait, wait)
            text = f'Failed to pull image "{spec.image}": {error}'
            await self._reporter.event(pod, "Warning", "Failed", text, name)
            await self._reporter.event(pod, "Warning", "Failed", "Error: ErrImagePull", name)
            raise PullFailed("ErrImagePull", str(error)) from None
        self._waits.pop(key, None)
        took = time.monotonic() - started
        text = f'Successfully pulled image "{spec.image}" in {took:.3f}s'
        await self._reporter.event(pod, "Normal", "Pulled", text, name)
        return reference

    async def _shared_pull(self, pod: v1.Pod, spec: api.ImageSpec) -> str:
        """Pods that want the same image at the same time wait for the same pull."""
        key = (spec.image, spec.runtime_handler)
        task = self._under_way.get(key)
        if task is None:
            task = asyncio.create_task(self._pull_with_secrets(pod, spec))
            self._under_way[key] = task
            task.add_done_callback(lambda _: self._under_way.pop(key, None))
        return await asyncio.shield(task)

    async def _pull_with_secrets(self, pod: v1.Pod, spec: api.ImageSpec) -> str:
        """With each secret in turn until one is good, as the kubelet does."""
        logins = await self._logins(pod, spec.image)
        async with self._slots:
            for number, login in enumerate(logins, 1):
                request = api.PullImageRequest(image=spec, auth=login)
                try:
                    return str((await self._client.call("PullImage", request)).image_ref)
                except RemoteError:
                    if number == len(logins):
                        raise
        raise PullFailed("ErrImagePull", "there was nothing to pull with")

    async def _logins(self, pod: v1.Pod, image: str) -> list[api.AuthConfig | None]:
        found: list[api.AuthConfig | None] = []
        if is_local(image):
            return [None]
        namespace = metadata_of(pod).namespace or "default"
        host = parse_reference(image).registry
        for reference in spec_of(pod).imagePullSecrets or ():
            secret = await self._objects.secret(namespace, reference.name or "")
            if secret is not None:
                found += _logins_for(host, secret)
        return found or [None]


def is_local(image: str) -> bool:
    """Whether an image lies in a directory of this machine."""
    return image.startswith("oci:")


def default_policy(image: str) -> str:
    """What the API server fills in: always for `latest` and no tag, else only if missing."""
    name = image.rpartition("/")[2]
    if "@" in name:
        return "IfNotPresent"
    tag = name.rpartition(":")[2] if ":" in name else "latest"
    return "Always" if tag == "latest" else "IfNotPresent"


def _logins_for(host: str, secret: v1.Secret) -> list[api.AuthConfig | None]:
    data = secret.data or {}
    try:
        if secret.type == "kubernetes.io/dockercfg":
            table = json.loads(base64.b64decode(data.get(".dockercfg", "")))
        else:
            document = json.loads(base64.b64decode(data.get(".dockerconfigjson", "")))
            table = document.get("auths", {})
    except ValueError:
        return []
    return [_login(entry) for name, entry in table.items() if _names_host(name, host)]


def _names_host(name: str, host: str) -> bool:
    plain = name.removeprefix("https://").removeprefix("http://").partition("/")[0]
    docker = ("docker.io", "index.docker.io", "registry-1.docker.io")
    return plain == host or (plain in docker and host in docker)


def _login(entry: Mapping[str, Any]) -> api.AuthConfig:
    return api.AuthConfig(
        username=entry.get("username", ""),
        password=entry.get("password", ""),
        auth=entry.get("auth", ""),
        identity_token=entry.get("identitytoken", ""),
    )
