"""Images for containers: when to pull, with whose secrets, and how long to wait after a failure."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lightkube.models import core_v1 as v1

from winpod.cri.proto import api_pb2 as api
from winpod.cri.rpc import Client, RemoteError
from winpod.images.pull_source import find_in_layout
from winpod.images.references import parse_reference
from winpod.images.source import LAYOUT_PREFIXES
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


@dataclass(frozen=True, slots=True)
class _Wait:
    """Until when no pull is tried, how long that is, and what the last one failed for."""

    until: float = 0.0
    seconds: float = 0.0
    why: str = ""


class Puller:
    def __init__(self, client: Client, objects: Objects, reporter: Reporter) -> None:
        self._client = client
        self._objects = objects
        self._reporter = reporter
        self._slots = asyncio.Semaphore(MOST_AT_ONCE)
        self._under_way: dict[tuple[str, str], asyncio.Task[str]] = {}
        self._waits: dict[tuple[str, str, str], _Wait] = {}

    async def ensure(
        self, pod: v1.Pod, container: v1.Container | v1.EphemeralContainer, handler: str
    ) -> api.ImageSpec:
        """The image of a container, pulled if its policy wants that.

        One in a directory has no name that the runtime keeps: it is known by its id.
        """
        image = container.image or ""
        await self._check_name(pod, container)
        spec = api.ImageSpec(
            image=image, runtime_handler=handler, annotations=metadata_of(pod).annotations or {}
        )
        policy = container.imagePullPolicy or default_policy(image)
        if policy != "Always" and (present := await self._find(spec)):
            text = f'Container image "{image}" already present on machine'
            await self._reporter.event(pod, "Normal", "Pulled", text, container.name)
            return _by_id(spec, present) if is_local(image) else spec
        if policy == "Never":
            text = f'Container image "{image}" is not present with pull policy of Never'
            await self._reporter.event(pod, "Warning", "ErrImageNeverPull", text, container.name)
            raise PullFailed("ErrImageNeverPull", text)
        pulled = await self._pull(pod, container, spec)
        return _by_id(spec, pulled) if is_local(image) else spec

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

    async def _find(self, spec: api.ImageSpec) -> str:
        """The id of an image that the runtime has, empty where it has none."""
        asked = api.ImageSpec()
        asked.CopyFrom(spec)
        if is_local(spec.image):
            try:
                asked.image = str(await asyncio.to_thread(find_in_layout, spec.image))
            except WinpodError:
                return ""
        found = await self._client.call("ImageStatus", api.ImageStatusRequest(image=asked))
        return str(found.image.id)

    async def _pull(
        self, pod: v1.Pod, container: v1.Container | v1.EphemeralContainer, spec: api.ImageSpec
    ) -> str:
        key = (metadata_of(pod).uid or "", spec.image, spec.runtime_handler)
        last, name = self._waits.get(key, _Wait()), container.name
        if time.monotonic() < last.until:
            text = f'Back-off pulling image "{spec.image}"'
            await self._reporter.event(pod, "Normal", "BackOff", text, name)
            raise PullFailed("ImagePullBackOff", f"{text}: ErrImagePull: {last.why}")
        await self._reporter.event(pod, "Normal", "Pulling", f'Pulling image "{spec.image}"', name)
        started = time.monotonic()
        try:
            reference = await self._shared_pull(pod, spec)
        except RemoteError as error:
            seconds = min(last.seconds * 2 or FIRST_WAIT, LONGEST_WAIT)
            self._waits[key] = _Wait(time.monotonic() + seconds, seconds, str(error))
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
    """Whether an image lies in a directory or an archive of this machine."""
    return image.startswith(LAYOUT_PREFIXES)


def _by_id(spec: api.ImageSpec, id_: str) -> api.ImageSpec:
    found = api.ImageSpec()
    found.CopyFrom(spec)
    found.image, found.user_specified_image = id_, spec.image
    return found


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
