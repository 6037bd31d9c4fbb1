"""The verdict on every pod of the cluster, as new as whoever asks needs it.

Only of pods that have not started the images are looked up, in the background; nobody who asks for
verdicts waits for a registry. The leader tells of pods that no node can run.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping

from winpod.cluster.admission import Fate
from winpod.cluster.looking_up import Images
from winpod.cluster.pod_verdicts import PodVerdict, has_doubts, judge_pod
from winpod.cluster.seen import SeenPod
from winpod.cluster.telling import unplaceable
from winpod.cluster.view import Kind, View
from winpod.node.event_series import Event
from winpod.windows.objects import Node
from winpod.windows.placement import Cluster
from winpod.windows.platforms import Image

Key = tuple[str, str]
_FRESH_SECONDS = 1.0
_REST_SECONDS = 2.0
_LOOKUP_SECONDS = 20.0
_AT_ONCE = 16
_MOST_TOLD = 4096
_NOTHING: Mapping[str, Image] = {}


class Judging:
    def __init__(
        self,
        view: View,
        images: Images,
        tell: Callable[[Event], None],
        leads: Callable[[], bool],
    ) -> None:
        self._view = view
        self._images = images
        self._tell = tell
        self._leads = leads
        self._changed = view.subscribe(Kind.NODE, Kind.CLASS, Kind.POD)
        self._found: dict[Key, Mapping[str, Image]] = {}
        self._told: dict[tuple[str, str], None] = {}
        self._turns = asyncio.Semaphore(_AT_ONCE)
        self._verdicts: Mapping[Key, PodVerdict] = {}
        self._judged_at = float("-inf")

    def verdicts(self) -> Mapping[Key, PodVerdict]:
        """On all pods that have not ended, by namespace and name."""
        if time.monotonic() > self._judged_at + _FRESH_SECONDS:
            self._verdicts = dict(self._judge(pod for pod in self._view.pods if not pod.has_ended))
            self._judged_at = time.monotonic()
        return self._verdicts

    async def run(self) -> None:
        """Look at pods that have not started whenever something has changed."""
        await self._view.until_known()
        while True:
            self._changed.clear()
            nodes = _by_name(self._view.cluster())
            doubtful = [pod for pod in self._view.pods if has_doubts(pod, nodes)]
            found = await asyncio.gather(*(self._look_up(pod) for pod in doubtful))
            self._found = {_key(p): i for p, i in zip(doubtful, found, strict=True)}
            self._judged_at = float("-inf")
            self._tell_unplaceable(doubtful)
            await asyncio.sleep(_REST_SECONDS)
            await self._changed.wait()

    async def _look_up(self, pod: SeenPod) -> Mapping[str, Image]:
        template = pod.template
        async with self._turns:
            secrets = await self._view.pull_secrets.of(pod.namespace, template.pull_secrets)
            texts = template.images
            found = await asyncio.gather(
                *(self._images.describe(text, secrets, _LOOKUP_SECONDS) for text in texts)
            )
        known = zip(texts, found, strict=True)
        return {text: one.image for text, one in known if one.image and one.is_certain}

    def _tell_unplaceable(self, pods: Iterable[SeenPod]) -> None:
        """Once for each pod and sentence."""
        if not self._leads():
            return
        pods = list(pods)
        verdicts = dict(self._judge(pods))
        for pod in pods:
            verdict = verdicts[_key(pod)]
            news = (pod.uid, verdict.sentence)
            if verdict.fate is Fate.CANNOT_RUN and news not in self._told:
                self._told[news] = None
                self._tell(unplaceable(pod.namespace, pod.name, pod.uid, verdict.sentence))
        while len(self._told) > _MOST_TOLD:
            del self._told[next(iter(self._told))]

    def _judge(self, pods: Iterable[SeenPod]) -> Iterable[tuple[Key, PodVerdict]]:
        """Pods of one template on nodes that are alike to the rules are judged once."""
        cluster = self._view.cluster()
        nodes = _by_name(cluster)
        shapes = {name: _shape(node) for name, node in nodes.items()}
        known: dict[object, PodVerdict] = {}
        for pod in pods:
            key = _key(pod)
            images = self._found.get(key, _NOTHING)
            shape = shapes.get(pod.node, pod.node)
            known_images = tuple(id(images.get(text)) for text in pod.template.images)
            alike = (id(pod.template), shape, pod.phase, known_images)
            if alike not in known:
                known[alike] = judge_pod(pod, cluster, nodes, images)
            yield key, known[alike]


def _key(pod: SeenPod) -> Key:
    return (pod.namespace, pod.name)


def _by_name(cluster: Cluster) -> dict[str, Node]:
    return {node.name: node for node in cluster.nodes}


def _shape(node: Node) -> object:
    """All that decides whether a pod starts there."""
    return (node.os, node.architecture, node.build, node.runtime, node.handlers)
