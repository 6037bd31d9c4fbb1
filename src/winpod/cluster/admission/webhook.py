"""The admission webhook: what the API server asks about pods and workloads, and the answers.

An answer is given within the settings' budget, and before the API server stops waiting. Who asks
twice gets the same answer: nothing is written anywhere.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import re
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal, TypeVar

import msgspec
from aiohttp import web

from winpod.cluster.admission.choosing import Circumstances
from winpod.cluster.admission.deciding import (
    Decision,
    Fate,
    Looked,
    decide,
    decide_template,
    fill_in,
    read_pod,
    read_template,
    stated_os,
)
from winpod.cluster.admission.looking_up import Found, Images, Secrets
from winpod.cluster.admission.metrics import AdmissionMetrics
from winpod.cluster.admission.pull_secrets import PullSecrets
from winpod.cluster.live_settings import LiveSettings
from winpod.cluster.view import View
from winpod.node.certificates import utc_now
from winpod.windows.objects import Pod

MUTATE_PODS, VALIDATE_PODS, WARN_WORKLOADS = "/pods/mutate", "/pods/validate", "/workloads"
_VERSION: Final = "admission.k8s.io/v1"
_SPARE_SECONDS = 0.5
"""Left of the API server's patience when images have not been found out."""
_LEAST_SECONDS = 0.05
_REMEMBERED = 200
_FORBIDDEN = 403
_FINAL = frozenset((Fate.CANNOT_RUN, Fate.CONTRADICTS, Fate.RETIRED))
_log = logging.getLogger(__name__)


class _Request(msgspec.Struct, rename="camel"):
    uid: str
    operation: Literal["CREATE", "UPDATE", "DELETE", "CONNECT"] = "CREATE"
    object: dict[str, Any] | None = None
    old_object: dict[str, Any] | None = None
    namespace: str = ""
    dry_run: bool = False


class _Review(msgspec.Struct, rename="camel"):
    request: _Request
    api_version: Literal["admission.k8s.io/v1"] = _VERSION


_Answer = tuple[str, dict[str, Any]]
"""What became of it, and the response."""
_UNTOUCHED: _Answer = ("untouched", {"allowed": True})


_Judged = TypeVar("_Judged")
_Rule = Callable[[Mapping[str, Any], Circumstances, Looked], _Judged]


@dataclass(frozen=True, slots=True)
class _Looking:
    """Whose images are looked up, with whose secrets, and until when."""

    pod: Pod
    namespace: str
    account: str
    until: float

    @property
    def seconds_left(self) -> float:
        return max(0.0, self.until - time.monotonic())


@dataclass(frozen=True, slots=True)
class Refusal:
    """A pod that was not let in; it has no name where its workload left that to the API server."""

    at: datetime
    namespace: str
    name: str
    fate: Fate
    sentence: str


class Webhook:
    """`refusals` are the last ones, for those who ask what was refused."""

    def __init__(
        self,
        view: View,
        images: Images,
        secrets: PullSecrets,
        settings: LiveSettings,
        metrics: AdmissionMetrics,
        namespace: str,
        on_refusal: Callable[[Refusal], None] = lambda _: None,
    ) -> None:
        self._view = view
        self._images = images
        self._secrets = secrets
        self._settings = settings
        self._metrics = metrics
        self._namespace = namespace
        self._on_refusal = on_refusal
        self.refusals: deque[Refusal] = deque(maxlen=_REMEMBERED)

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post(MUTATE_PODS, self._mutate),
            web.post(VALIDATE_PODS, self._validate),
            web.post(WARN_WORKLOADS, self._warn),
        ]

    async def _mutate(self, request: web.Request) -> web.Response:
        """What is added to a pod. What is to be said about it is said when it is complete."""
        return await self._answered(request, "mutate", self._fill_in)

    async def _validate(self, request: web.Request) -> web.Response:
        return await self._answered(request, "validate", self._decide_pod)

    async def _warn(self, request: web.Request) -> web.Response:
        return await self._answered(request, "workload", self._decide_workload)

    async def _answered(
        self,
        request: web.Request,
        webhook: str,
        answer: Callable[[_Request, float], Awaitable[_Answer]],
    ) -> web.Response:
        began = time.monotonic()
        outcome = "error"
        try:
            review = msgspec.json.decode(await request.read(), type=_Review).request
            if not await self._is_known(began + self._budget(request)):
                return web.Response(status=503, text="the cluster is not known yet\n")
            outcome, response = await answer(review, began + self._budget(request))
            body = msgspec.json.encode(_as_review(response | {"uid": review.uid}))
            return web.Response(body=body, content_type="application/json")
        except msgspec.DecodeError as error:
            return web.Response(status=400, text=f"this is no AdmissionReview: {error}\n")
        except RecursionError:
            return web.Response(status=400, text="this is nested too deeply\n")
        finally:
            self._metrics.count_review(webhook, outcome, time.monotonic() - began)

    async def _is_known(self, until: float) -> bool:
        """Waits for what an operator that has just begun does not know yet, if it will come.

        Nobody is answered by settings that may not be the cluster's: what becomes of a pod that
        cannot be answered is said by the failure policy that the API server was told.
        """
        try:
            async with asyncio.timeout(until - time.monotonic()):
                await self._settings.until_read()
                if self._settings.is_known:
                    await self._view.until_known()
        except TimeoutError:
            return False
        return self._settings.is_known

    def _budget(self, request: web.Request) -> float:
        """The API server says how long it waits."""
        wanted = self._settings.now.admission.budget_seconds
        patience = re.fullmatch(r"(\d{1,4})s", request.query.get("timeout", ""))
        if patience is None:
            return wanted
        return max(_LEAST_SECONDS, min(wanted, int(patience[1]) - _SPARE_SECONDS))

    async def _fill_in(self, review: _Request, until: float) -> _Answer:
        obj = self._new_pod(review)
        pod = read_pod(obj) if obj else None
        if obj is None or pod is None:
            return _UNTOUCHED
        looking = _Looking(pod, review.namespace, "", until)
        looked = await self._look_up(looking)
        patches = self._judge(fill_in, obj, looked)
        if not patches and _is_doubtful(self._judge(decide, obj, looked), looked):
            patches = self._judge(fill_in, obj, await self._look_anew(looking, looked))
        if not patches:
            return _UNTOUCHED
        patch = base64.b64encode(msgspec.json.encode(patches)).decode()
        return "filled-in", {"allowed": True, "patchType": "JSONPatch", "patch": patch}

    async def _decide_pod(self, review: _Request, until: float) -> _Answer:
        obj = self._new_pod(review)
        if obj is None:
            return _UNTOUCHED
        pod = read_pod(obj)
        if pod is None:
            return self._answer(review, self._judge(decide, obj, {}))
        looking = _Looking(pod, review.namespace, "", until)
        return self._answer(review, await self._decide(decide, obj, looking))

    def _new_pod(self, review: _Request) -> Mapping[str, Any] | None:
        """None for what is there already, and where nobody wants to be looked after."""
        is_asked_about = review.operation == "CREATE" and self._is_ours(review.namespace)
        return review.object if is_asked_about else None

    async def _decide_workload(self, review: _Request, until: float) -> _Answer:
        obj = review.object
        found = read_template(obj) if obj and self._is_ours(review.namespace) else None
        if obj is None or found is None or _is_owned(obj) or _is_same(found, review.old_object):
            return _UNTOUCHED
        template, _, pod = found
        account = str(template["spec"].get("serviceAccountName") or "default")
        looking = _Looking(pod, review.namespace, account, until)
        return self._answer(review, await self._decide(decide_template, obj, looking))

    async def _decide(
        self, rule: _Rule[Decision], obj: Mapping[str, Any], looking: _Looking
    ) -> Decision:
        """No pod is refused for what a tag named once: whoever has pushed since is let in."""
        looked = await self._look_up(looking)
        decision = self._judge(rule, obj, looked)
        if _is_doubtful(decision, looked):
            decision = self._judge(rule, obj, await self._look_anew(looking, looked))
        return decision

    def _judge(self, rule: _Rule[_Judged], obj: Mapping[str, Any], looked: Looked) -> _Judged:
        met = Circumstances(self._view.cluster(), self._settings.now, self._view.retiring())
        return rule(obj, met, looked)

    def _is_ours(self, namespace: str) -> bool:
        admission = self._settings.now.admission
        exempt = (*admission.exempt_namespaces, self._namespace)
        return admission.enabled and namespace not in exempt

    async def _look_up(self, looking: _Looking) -> Looked:
        """A Linux pod waits for nobody; what is known of its images is enough."""
        texts = looking.pod.images
        if stated_os(looking.pod, self._view.cluster()) not in ("", "windows"):
            known = {text: self._images.known(text) for text in texts}
            return {text: found for text, found in known.items() if found}
        return await self._described(looking, texts, self._images.describe)

    async def _look_anew(self, looking: _Looking, looked: Looked) -> Looked:
        """At what is known from before only, in the time that is left."""
        old = [text for text, found in looked.items() if found.is_old]
        anew = await self._described(looking, old, self._images.describe_anew)
        return {**looked, **anew}

    async def _described(
        self,
        looking: _Looking,
        texts: Sequence[str],
        describe: Callable[[str, Secrets, float], Awaitable[Found]],
    ) -> Looked:
        names, account = looking.pod.pull_secrets, looking.account
        try:
            async with asyncio.timeout(looking.seconds_left / 2):
                secrets = await self._secrets.of(looking.namespace, names, account)
        except TimeoutError:
            secrets = []
        left = looking.seconds_left
        found = await asyncio.gather(*(describe(text, secrets, left) for text in texts))
        return dict(zip(texts, found, strict=True))

    def _answer(self, review: _Request, decision: Decision) -> _Answer:
        answer: dict[str, Any] = {"allowed": not decision.refusal}
        if decision.refusal:
            answer["status"] = {"code": _FORBIDDEN, "message": decision.refusal}
            if not review.dry_run:
                self._remember(review, decision)
        if decision.warnings:
            answer["warnings"] = [f"winpod: {warning}" for warning in decision.warnings]
        return decision.fate, answer

    def _remember(self, review: _Request, decision: Decision) -> None:
        metadata = (review.object or {}).get("metadata") or {}
        name = metadata.get("name") or metadata.get("generateName") or ""
        refusal = Refusal(utc_now(), review.namespace, name, decision.fate, decision.refusal)
        self.refusals.append(refusal)
        self._on_refusal(refusal)
        _log.info("refused %s/%s: %s", review.namespace, name, decision.refusal)


def _is_doubtful(decision: Decision, looked: Looked) -> bool:
    """A no that what the registry says by now may turn into a yes."""
    return decision.fate in _FINAL and any(found.is_old for found in looked.values())


def _as_review(response: Mapping[str, Any]) -> dict[str, Any]:
    return {"apiVersion": _VERSION, "kind": "AdmissionReview", "response": response}


def _is_owned(obj: Mapping[str, Any]) -> bool:
    """By a workload, which was spoken of already."""
    owners = (obj.get("metadata") or {}).get("ownerReferences") or ()
    return any(owner.get("controller") for owner in owners)


def _is_same(
    found: tuple[Mapping[str, Any], Any, Pod], old_object: Mapping[str, Any] | None
) -> bool:
    """A change that is not about the pods, such as the number of them."""
    before = read_template(old_object) if old_object else None
    return before is not None and before[0] == found[0]
