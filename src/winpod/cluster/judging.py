"""The verdict on every pod of the cluster, as new as whoever asks needs it.

Pods that have started are judged when somebody asks, which is cheap. Those that have not are looked
at in the background, one kind after the other: their images are looked up, and nobody waits for it.
The leader tells of pods that no node can run.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from winpod.cluster.admission.deciding import Fate
from winpod.cluster.admission.looking_up import Images
from winpod.cluster.admission.pull_secrets import PullSecrets
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
_LOOKUPS_AT_ONCE = 16
_MOST_TOLD = 4096
_NEW = PodVerdict(Fate.UNKNOWN, "it has not been looked at yet")


class Judging:
    def __init__(
        self,
        view: View,
        images: Images,
        secrets: PullSecrets,
        tell: Callable[[Event], None],
        leads: Callable[[], bool],
    ) -> None:
        self._view = view
        self._images = images
        self._secrets = secrets
        self._tell = tell
        self._leads = leads
        self._changed = view.subscribe(Kind.NODE, Kind.CLASS, Kind.POD)
        self._lookup_turns = asyncio.Semaphore(_LOOKUPS_AT_ONCE)
        self._judging_turn = asyncio.Lock()
        self._not_started: dict[Key, PodVerdict] = {}
        self._told: dict[tuple[str, str], None] = {}
        self._verdicts: Mapping[Key, PodVerdict] = {}
        self._judged_at = float("-inf")

    def verdicts(self) -> Mapping[Key, PodVerdict]:
        """On all pods that have not ended, by namespace and name."""
        if time.monotonic() > self._judged_at + _FRESH_SECONDS:
            self._verdicts = dict(self._judge_all())
            self._judged_at = time.monotonic()
        return self._verdicts

    async def run(self) -> None:
        """Look at pods that have not started whenever something has changed."""
        await self._view.until_known()
        while True:
            self._changed.clear()
            nodes = _by_name(self._view.cluster())
            alike: dict[object, list[SeenPod]] = {}
            for pod in self._view.pods:
                if has_doubts(pod, nodes):
                    alike.setdefault((pod.namespace, id(pod.template), pod.node), []).append(pod)
            keys = {_key(pod) for pods in alike.values() for pod in pods}
            self._not_started = {k: v for k, v in self._not_started.items() if k in keys}
            await asyncio.gather(*(self._look_at(pods) for pods in alike.values()))
            await asyncio.sleep(_REST_SECONDS)
            await self._changed.wait()

    async def _look_at(self, pods: Sequence[SeenPod]) -> None:
        """Pods that are alike; others have their turn in between."""
        images = await self._look_up(pods[0])
        async with self._judging_turn:
            cluster = self._view.cluster()
            verdict = judge_pod(pods[0], cluster, _by_name(cluster), images)
            self._not_started.update((_key(pod), verdict) for pod in pods)
            self._judged_at = float("-inf")
            if verdict.fate is Fate.CANNOT_RUN and self._leads():
                self._tell_unplaceable(pods, verdict.sentence)
            await asyncio.sleep(0)

    async def _look_up(self, pod: SeenPod) -> Mapping[str, Image]:
        template = pod.template
        async with self._lookup_turns:
            secrets = await self._secrets.of(pod.namespace, template.pull_secrets)
            texts = template.images
            found = await asyncio.gather(
                *(self._images.describe(text, secrets, _LOOKUP_SECONDS) for text in texts)
            )
        known = zip(texts, found, strict=True)
        return {text: one.image for text, one in known if one.image and one.is_certain}

    def _tell_unplaceable(self, pods: Iterable[SeenPod], sentence: str) -> None:
        """Once for each pod and sentence."""
        for pod in pods:
            if (pod.uid, sentence) not in self._told:
                self._told[pod.uid, sentence] = None
                self._tell(unplaceable(pod.namespace, pod.name, pod.uid, sentence))
        while len(self._told) > _MOST_TOLD:
            del self._told[next(iter(self._told))]

    def _judge_all(self) -> Iterable[tuple[Key, PodVerdict]]:
        """Pods of one template on nodes that are alike to the rules are judged once."""
        cluster = self._view.cluster()
        nodes = _by_name(cluster)
        shapes = {name: _shape(node) for name, node in nodes.items()}
        known: dict[object, PodVerdict] = {}
        for pod in self._view.pods:
            if pod.has_ended:
                continue
            key = _key(pod)
            if not pod.node or has_doubts(pod, nodes):
                yield key, self._not_started.get(key, _NEW)
                continue
            alike = (id(pod.template), shapes.get(pod.node, pod.node), pod.phase)
            if alike not in known:
                known[alike] = judge_pod(pod, cluster, nodes, {})
            yield key, known[alike]


def _key(pod: SeenPod) -> Key:
    return (pod.namespace, pod.name)


def _by_name(cluster: Cluster) -> dict[str, Node]:
    return {node.name: node for node in cluster.nodes}


def _shape(node: Node) -> object:
    """All that decides whether a pod starts there."""
    return (node.os, node.architecture, node.build, node.runtime, node.handlers)
