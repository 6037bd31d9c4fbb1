"""Image manager: pull policies, pull secrets, and the backoff after failed pulls."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from winpod.cri.proto import api_pb2 as api
from winpod.cri.rpc import RemoteError
from winpod.errors import InvalidInput, WinpodError
from winpod.images.pull.source import find_in_layout
from winpod.images.references import parse_reference
from winpod.images.registry.auth import Credential, Keyring, read_pull_secret
from winpod.images.resolver import LAYOUT_PREFIXES
from winpod.k8s.models import core_v1 as v1
from winpod.k8s.pods import metadata_of, spec_of, uid_of
from winpod.kubelet.interfaces import ObjectSource, StatusReporter
from winpod.kubelet.runtime_client import RuntimeClient

FIRST_WAIT, LONGEST_WAIT = 10.0, 300.0
MAX_PARALLEL_PULLS = 4


class ImagePullFailed(WinpodError):
    """A container's image is unavailable; `reason` is the waiting reason of its status."""

    code = "UNAVAILABLE"

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class _PullBackoff:
    """Backoff after a failed pull: its end, its length, and the last error."""

    until: float = 0.0
    seconds: float = 0.0
    error: str = ""


class ImageManager:
    def __init__(
        self, runtime: RuntimeClient, objects: ObjectSource, reporter: StatusReporter
    ) -> None:
        self._runtime = runtime
        self._objects = objects
        self._reporter = reporter
        self._slots = asyncio.Semaphore(MAX_PARALLEL_PULLS)
        self._pulls: dict[bytes, asyncio.Task[str]] = {}
        self._backoffs: dict[str, dict[tuple[str, str], _PullBackoff]] = {}
        """By UID of the pod, then by image and handler."""

    async def ensure_image(
        self, pod: v1.Pod, container: v1.Container | v1.EphemeralContainer, handler: str
    ) -> api.ImageSpec:
        """Return the image of a container, pulled if its policy requires that.

        An image in a local directory has no name in the runtime; it is referred to by its ID.
        """
        image = container.image or ""
        await self._check_name(pod, container)
        spec = api.ImageSpec(
            image=image, runtime_handler=handler, annotations=metadata_of(pod).annotations or {}
        )
        policy = container.imagePullPolicy or default_pull_policy(image)
        if policy != "Always" and (present := await self._find(spec)):
            text = f'Container image "{image}" already present on machine'
            await self._reporter.event(pod, "Normal", "Pulled", text, container.name)
            return _by_id(spec, present) if is_local_image(image) else spec
        if policy == "Never":
            text = f'Container image "{image}" is not present with pull policy of Never'
            await self._reporter.event(pod, "Warning", "ErrImageNeverPull", text, container.name)
            raise ImagePullFailed("ErrImageNeverPull", text)
        pulled = await self._pull(pod, container, spec)
        return _by_id(spec, pulled) if is_local_image(image) else spec

    def forget_pod(self, uid: str) -> None:
        """Drop the backoffs of a pod that no longer exists."""
        self._backoffs.pop(uid, None)

    async def _check_name(
        self, pod: v1.Pod, container: v1.Container | v1.EphemeralContainer
    ) -> None:
        if is_local_image(container.image or ""):
            return
        try:
            parse_reference(container.image or "")
        except WinpodError as error:
            text = f'Failed to apply default image tag "{container.image}": {error.message}'
            await self._reporter.event(pod, "Warning", "InspectFailed", text, container.name)
            raise ImagePullFailed("InvalidImageName", text) from None

    async def _find(self, spec: api.ImageSpec) -> str:
        """Return the ID of an image that the runtime has, or an empty string."""
        query = api.ImageSpec()
        query.CopyFrom(spec)
        if is_local_image(spec.image):
            try:
                query.image = str(await asyncio.to_thread(find_in_layout, spec.image))
            except WinpodError:
                return ""
        response = await self._runtime.call("ImageStatus", api.ImageStatusRequest(image=query))
        return str(response.image.id)

    async def _pull(
        self, pod: v1.Pod, container: v1.Container | v1.EphemeralContainer, spec: api.ImageSpec
    ) -> str:
        name, uid, key = container.name, uid_of(pod), (spec.image, spec.runtime_handler)
        last = self._backoffs.get(uid, {}).get(key, _PullBackoff())
        if time.monotonic() < last.until:
            text = f'Back-off pulling image "{spec.image}"'
            await self._reporter.event(pod, "Normal", "BackOff", text, name)
            raise ImagePullFailed("ImagePullBackOff", f"{text}: ErrImagePull: {last.error}")
        await self._reporter.event(pod, "Normal", "Pulling", f'Pulling image "{spec.image}"', name)
        started = time.monotonic()
        try:
            reference = await self._shared_pull(pod, spec)
        except RemoteError as error:
            seconds = min(last.seconds * 2 or FIRST_WAIT, LONGEST_WAIT)
            backoff = _PullBackoff(time.monotonic() + seconds, seconds, str(error))
            self._backoffs.setdefault(uid, {})[key] = backoff
            text = f'Failed to pull image "{spec.image}": {error}'
            await self._reporter.event(pod, "Warning", "Failed", text, name)
            await self._reporter.event(pod, "Warning", "Failed", "Error: ErrImagePull", name)
            raise ImagePullFailed("ErrImagePull", str(error)) from None
        self._backoffs.get(uid, {}).pop(key, None)
        took = time.monotonic() - started
        text = f'Successfully pulled image "{spec.image}" in {took:.3f}s'
        await self._reporter.event(pod, "Normal", "Pulled", text, name)
        return reference

    async def _shared_pull(self, pod: v1.Pod, spec: api.ImageSpec) -> str:
        """Pull once for all pods that pull the same image with the same secrets concurrently."""
        logins = await self._logins(pod, spec.image)
        requests = [api.PullImageRequest(image=spec, auth=login) for login in logins]
        key = b"".join(request.SerializeToString(deterministic=True) for request in requests)
        task = self._pulls.get(key)
        if task is None:
            task = asyncio.create_task(self._try_each(requests))
            self._pulls[key] = task
            task.add_done_callback(lambda _: self._pulls.pop(key, None))
        return await asyncio.shield(task)

    async def _try_each(self, requests: Sequence[api.PullImageRequest]) -> str:
        """Pull with each secret in turn until one succeeds, as the kubelet does."""
        *others, last = requests
        async with self._slots:
            for request in others:
                with suppress(RemoteError):
                    return await self._pull_image(request)
            return await self._pull_image(last)

    async def _pull_image(self, request: api.PullImageRequest) -> str:
        return str((await self._runtime.call("PullImage", request, seconds=None)).image_ref)

    async def _logins(self, pod: v1.Pod, image: str) -> list[api.AuthConfig | None]:
        """Return a credential per matching pull secret, or [None] to pull anonymously."""
        if is_local_image(image):
            return [None]
        reference = parse_reference(image)
        credentials: list[api.AuthConfig | None] = []
        for keyring in await self._keyrings(pod):
            if login := await keyring.find(reference.registry, reference.repository):
                credentials.append(_login(login))
        return credentials or [None]

    async def _keyrings(self, pod: v1.Pod) -> list[Keyring]:
        namespace = metadata_of(pod).namespace or "default"
        keyrings: list[Keyring] = []
        missing: list[str] = []
        for name in (reference.name or "" for reference in spec_of(pod).imagePullSecrets or ()):
            secret = await self._objects.secret(namespace, name)
            try:
                if secret is None:
                    missing.append(name)
                else:
                    keyrings.append(read_pull_secret(secret.to_dict()))
            except InvalidInput as error:
                missing.append(f"{name}: {error}")
        if missing:
            text = (
                f"Unable to retrieve some image pull secrets ({', '.join(missing)}); attempting to "
                "pull the image may not succeed."
            )
            await self._reporter.event(pod, "Warning", "FailedToRetrieveImagePullSecret", text)
        return keyrings


def is_local_image(image: str) -> bool:
    """Whether the image is in a directory or an archive of this machine."""
    return image.startswith(LAYOUT_PREFIXES)


def _by_id(spec: api.ImageSpec, id_: str) -> api.ImageSpec:
    by_id = api.ImageSpec()
    by_id.CopyFrom(spec)
    by_id.image, by_id.user_specified_image = id_, spec.image
    return by_id


def default_pull_policy(image: str) -> str:
    """Return the API server's default: Always for `latest` or no tag, else IfNotPresent."""
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
