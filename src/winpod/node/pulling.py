"""Images for containers: when to pull, with whose secrets, and how long to wait after a failure."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from lightkube.models import core_v1 as v1

from winpod.cri.proto import api_pb2 as api
from winpod.cri.rpc import Client, RemoteError
from winpod.images.credentials import Credential, Keyring, read_pull_secret
from winpod.images.pull_source import find_in_layout
from winpod.images.references import parse_reference
from winpod.images.source import LAYOUT_PREFIXES
from winpod.node.requests import metadata_of, spec_of
from winpod.node.sources import Objects, Reporter
from winpod.windows.errors import InvalidInput, WinpodError

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
        self._under_way: dict[bytes, asyncio.Task[str]] = {}
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
        """Pods that want the same at the same time, with the same secrets, wait for one pull."""
        logins = await self._logins(pod, spec.image)
        requests = [api.PullImageRequest(image=spec, auth=login) for login in logins]
        key = b"".join(request.SerializeToString(deterministic=True) for request in requests)
        task = self._under_way.get(key)
        if task is None:
            task = asyncio.create_task(self._try_each(requests))
            self._under_way[key] = task
            task.add_done_callback(lambda _: self._under_way.pop(key, None))
        return await asyncio.shield(task)

    async def _try_each(self, requests: Sequence[api.PullImageRequest]) -> str:
        """With each secret in turn until one is good, as the kubelet does."""
        *others, last = requests
        async with self._slots:
            for request in others:
                with suppress(RemoteError):
                    return str((await self._client.call("PullImage", request)).image_ref)
            return str((await self._client.call("PullImage", last)).image_ref)

    async def _logins(self, pod: v1.Pod, image: str) -> list[api.AuthConfig | None]:
        """One for each of the pod's secrets that knows the registry; none is a way, too."""
        if is_local(image):
            return [None]
        reference = parse_reference(image)
        found: list[api.AuthConfig | None] = []
        for keyring in await self._keyrings(pod):
            if login := await keyring.find(reference.registry, reference.repository):
                found.append(_login(login))
        return found or [None]

    async def _keyrings(self, pod: v1.Pod) -> list[Keyring]:
        namespace = metadata_of(pod).namespace or "default"
        found: list[Keyring] = []
        missing: list[str] = []
        for name in (wanted.name or "" for wanted in spec_of(pod).imagePullSecrets or ()):
            secret = await self._objects.secret(namespace, name)
            try:
                if secret is None:
                    missing.append(name)
                else:
                    found.append(read_pull_secret(secret.to_dict()))
            except InvalidInput as error:
                missing.append(f"{name}: {error}")
        if missing:
            text = (
                f"Unable to retrieve some image pull secrets ({', '.join(missing)}); attempting to "
                "pull the image may not succeed."
            )
            await self._reporter.event(pod, "Warning", "FailedToRetrieveImagePullSecret", text)
        return found


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


def _login(credential: Credential) -> api.AuthConfig:
    return api.AuthConfig(
        username=credential.username,
        password=credential.password,
        identity_token=credential.identity_token,
    )
