"""The verdict on every pod of the cluster, as new as whoever asks needs it.

Pods that have started are judged when somebody asks, which is cheap. Those that have not are looked
at in the background, one kind after the other: their images are looked up, and nobody waits for it.
The leader tells of pods that no node can run.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from winpod.cluster.admission.deciding import Fate, Looked
from winpod.cluster.admission.looking_up import Found, Images, Secrets
from winpod.cluster.admission.pull_secrets import PullSecrets
from winpod.cluster.pod_verdicts import PodVerdict, doubted, has_doubts, judge_pod
from winpod.cluster.seen import SeenPod
from winpod.cluster.telling import unplaceable
from winpod.cluster.view import Kind, View
from winpod.node.event_series import Event
from winpod.windows.objects import Node
from winpod.windows.placement import Cluster

Key = tuple[str, str]
_LOOKUP_SECONDS = 20.0
_LOOKUPS_AT_ONCE = 16
_MOST_TOLD = 4096
_NEW = PodVerdict(Fate.UNKNOWN, "it has not been looked at yet")


@dataclass(frozen=True, slots=True)
class Rhythm:
    """Seconds for which verdicts are `fresh`, to `rest` between two looks, and after which images
    are looked up `again` although nothing has changed in the cluster.
    """

    fresh: float = 1.0
    rest: float = 2.0
    again: float = 60.0


class Judging:
    def __init__(
        self,
        view: View,
        images: Images,
        secrets: PullSecrets,
        tell: Callable[[Event], None],
        leads: Callable[[], bool],
        rhythm: Rhythm | None = None,
    ) -> None:
        self._rhythm = rhythm or Rhythm()
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
        if time.monotonic() > self._judged_at + self._rhythm.fresh:
            self._verdicts = dict(self._judge_all())
            self._judged_at = time.monotonic()
        return self._verdicts

    async def run(self) -> None:
        """Look at pods that have not started whenever something has changed, and now and then."""
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
            await asyncio.sleep(self._rhythm.rest)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._rhythm.again if alike else None):
                    await self._changed.wait()

    async def _look_at(self, pods: Sequence[SeenPod]) -> None:
        """Pods that are alike. None is said to be hopeless by what a tag named once."""
        pod = pods[0]
        looked = await self._look_up(pod, pod.template.images, self._images.describe)
        verdict = await self._judge(pod, looked)
        old = [text for text, found in looked.items() if found.is_old]
        is_news = verdict != self._not_started.get(_key(pod))
        if verdict.fate is Fate.CANNOT_RUN and old and is_news:
            anew = await self._look_up(pod, old, self._images.describe_anew)
            verdict = await self._judge(pod, {**looked, **anew})
        self._not_started.update((_key(pod), verdict) for pod in pods)
        self._judged_at = float("-inf")
        if verdict.fate is Fate.CANNOT_RUN and self._leads():
            self._tell_unplaceable(pods, verdict.sentence)

    async def _look_up(
        self,
        pod: SeenPod,
        texts: Sequence[str],
        describe: Callable[[str, Secrets, float], Awaitable[Found]],
    ) -> Looked:
        async with self._lookup_turns:
            secrets = await self._secrets.of(pod.namespace, pod.template.pull_secrets)
            found = await asyncio.gather(
                *(describe(text, secrets, _LOOKUP_SECONDS) for text in texts)
            )
        return dict(zip(texts, found, strict=True))

    async def _judge(self, pod: SeenPod, looked: Looked) -> PodVerdict:
        """One after the other; others have their turn in between."""
        known = {text: f for text, f in looked.items() if f.is_certain or f.is_old}
        images = {text: found.image for text, found in known.items() if found.image}
        doubts = [found.doubt or found.problem for found in known.values()]
        async with self._judging_turn:
            await asyncio.sleep(0)
            cluster = self._view.cluster()
            verdict = judge_pod(pod, cluster, _by_name(cluster), images)
        return doubted(verdict, list(filter(None, doubts)))

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
        shapes = _numbered(nodes)
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


def _numbered(nodes: Mapping[str, Node]) -> dict[str, int]:
    """The same number for nodes that are alike, which is compared sooner than all they are."""
    numbers: dict[object, int] = {}
    return {name: numbers.setdefault(_shape(node), len(numbers)) for name, node in nodes.items()}


def _shape(node: Node) -> object:
    """All that decides whether a pod starts there."""
    return (node.os, node.architecture, node.build, node.runtime, node.handlers)
