"""The admission webhook: handles the API server's reviews of pods and workloads.

It responds within the budget in the settings, and before the API server's timeout. Reviews are
idempotent: nothing is stored.
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

from winpod.clock import utc_now
from winpod.images.lookup import ImageLookup
from winpod.operator.admission.class_selection import SelectionContext
from winpod.operator.admission.metrics import AdmissionMetrics
from winpod.operator.admission.review import (
    ImageLookups,
    ReviewDecision,
    ReviewOutcome,
    mutate_pod,
    read_pod,
    read_template,
    review_pod,
    review_template,
    stated_os,
)
from winpod.operator.cluster_cache import ClusterCache
from winpod.operator.pull_secrets import PullSecrets
from winpod.operator.settings_watcher import SettingsWatcher
from winpod.placement.model import Pod

MUTATE_PODS, VALIDATE_PODS, WARN_WORKLOADS = "/pods/mutate", "/pods/validate", "/workloads"
_VERSION: Final = "admission.k8s.io/v1"
_MARGIN_SECONDS = 0.5
"""Time left before the API server's timeout if images were not resolved."""
_MIN_SECONDS = 0.05
_MAX_REFUSALS = 200
_FORBIDDEN = 403
_REJECTING = frozenset((ReviewOutcome.CANNOT_RUN, ReviewOutcome.CONFLICTS, ReviewOutcome.RETIRED))
_log = logging.getLogger(__name__)


class _AdmissionRequest(msgspec.Struct, rename="camel"):
    uid: str
    operation: Literal["CREATE", "UPDATE", "DELETE", "CONNECT"] = "CREATE"
    object: dict[str, Any] | None = None
    old_object: dict[str, Any] | None = None
    namespace: str = ""
    dry_run: bool = False


class _AdmissionReview(msgspec.Struct, rename="camel"):
    request: _AdmissionRequest
    api_version: Literal["admission.k8s.io/v1"] = _VERSION


_Response = tuple[str, dict[str, Any]]
"""The outcome and the response."""
_ALLOWED: _Response = ("untouched", {"allowed": True})


_Result = TypeVar("_Result")
_Rule = Callable[[Mapping[str, Any], SelectionContext, ImageLookups], _Result]


@dataclass(frozen=True, slots=True)
class _LookupScope:
    """The pod whose images are resolved, with which credentials, and until when."""

    pod: Pod
    namespace: str
    account: str
    until: float

    @property
    def seconds_left(self) -> float:
        return max(0.0, self.until - time.monotonic())


@dataclass(frozen=True, slots=True)
class RefusedReview:
    """A rejected pod; `name` is empty if the API server would have generated it."""

    at: datetime
    namespace: str
    name: str
    outcome: ReviewOutcome
    message: str


class Webhook:
    """Handles reviews; `refusals` are the latest rejections, for the dashboard."""

    def __init__(
        self,
        cache: ClusterCache,
        images: ImageLookup,
        secrets: PullSecrets,
        settings: SettingsWatcher,
        metrics: AdmissionMetrics,
        namespace: str,
        on_refusal: Callable[[RefusedReview], None] = lambda _: None,
    ) -> None:
        self._cache = cache
        self._images = images
        self._secrets = secrets
        self._settings = settings
        self._metrics = metrics
        self._namespace = namespace
        self._on_refusal = on_refusal
        self.refusals: deque[RefusedReview] = deque(maxlen=_MAX_REFUSALS)

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post(MUTATE_PODS, self._mutate),
            web.post(VALIDATE_PODS, self._validate),
            web.post(WARN_WORKLOADS, self._warn),
        ]

    async def _mutate(self, request: web.Request) -> web.Response:
        """Patch a pod. Warnings are left to validation, which sees the complete pod."""
        return await self._respond(request, "mutate", self._mutate_pod)

    async def _validate(self, request: web.Request) -> web.Response:
        return await self._respond(request, "validate", self._review_pod)

    async def _warn(self, request: web.Request) -> web.Response:
        return await self._respond(request, "workload", self._review_workload)

    async def _respond(
        self,
        request: web.Request,
        webhook: str,
        answer: Callable[[_AdmissionRequest, float], Awaitable[_Response]],
    ) -> web.Response:
        started = time.monotonic()
        outcome = "error"
        try:
            review = msgspec.json.decode(await request.read(), type=_AdmissionReview).request
            if not await self._wait_synced(started + self._budget(request)):
                return web.Response(status=503, text="the cache is not synced yet\n")
            outcome, response = await answer(review, started + self._budget(request))
            body = msgspec.json.encode(_review_body(response | {"uid": review.uid}))
            return web.Response(body=body, content_type="application/json")
        except msgspec.DecodeError as error:
            return web.Response(status=400, text=f"invalid AdmissionReview: {error}\n")
        except RecursionError:
            return web.Response(status=400, text="the AdmissionReview is nested too deeply\n")
        finally:
            self._metrics.count_review(webhook, outcome, time.monotonic() - started)

    async def _wait_synced(self, until: float) -> bool:
        """Wait until cache and settings are synced, and return whether they are.

        Without the cluster's settings no review is answered: the failure policy of the webhook
        configuration then decides.
        """
        try:
            async with asyncio.timeout(until - time.monotonic()):
                await self._settings.wait_read()
                if self._settings.is_synced:
                    await self._cache.wait_synced()
        except TimeoutError:
            return False
        return self._settings.is_synced

    def _budget(self, request: web.Request) -> float:
        """Return the budget, limited by the timeout that the API server passes."""
        budget = self._settings.now.admission.budget_seconds
        timeout = re.fullmatch(r"(\d{1,4})s", request.query.get("timeout", ""))
        if timeout is None:
            return budget
        return max(_MIN_SECONDS, min(budget, int(timeout[1]) - _MARGIN_SECONDS))

    async def _mutate_pod(self, review: _AdmissionRequest, until: float) -> _Response:
        obj = self._new_pod(review)
        pod = read_pod(obj) if obj else None
        if obj is None or pod is None:
            return _ALLOWED
        scope = _LookupScope(pod, review.namespace, "", until)
        lookups = await self._resolve_images(scope)
        patches = self._apply_rule(mutate_pod, obj, lookups)
        if not patches and _needs_refresh(self._apply_rule(review_pod, obj, lookups), lookups):
            patches = self._apply_rule(mutate_pod, obj, await self._refresh_images(scope, lookups))
        if not patches:
            return _ALLOWED
        if not review.dry_run:
            changed = ", ".join(patch["path"] for patch in patches)
            name = f"{review.namespace}/{_name_of(review)}"
            _log.info("Changed pod %s: %s", name, changed, extra={"pod": name})
        patch = base64.b64encode(msgspec.json.encode(patches)).decode()
        return "filled-in", {"allowed": True, "patchType": "JSONPatch", "patch": patch}

    async def _review_pod(self, review: _AdmissionRequest, until: float) -> _Response:
        obj = self._new_pod(review)
        if obj is None:
            return _ALLOWED
        pod = read_pod(obj)
        if pod is None:
            return self._decision_response(review, self._apply_rule(review_pod, obj, {}))
        scope = _LookupScope(pod, review.namespace, "", until)
        return self._decision_response(review, await self._review(review_pod, obj, scope))

    def _new_pod(self, review: _AdmissionRequest) -> Mapping[str, Any] | None:
        """Return the new pod; None for other operations and exempt namespaces."""
        is_reviewed = review.operation == "CREATE" and self._is_in_scope(review.namespace)
        return review.object if is_reviewed else None

    async def _review_workload(self, review: _AdmissionRequest, until: float) -> _Response:
        obj = review.object
        found = read_template(obj) if obj and self._is_in_scope(review.namespace) else None
        if (
            obj is None
            or found is None
            or _has_controller(obj)
            or _same_template(found, review.old_object)
        ):
            return _ALLOWED
        template, _, pod = found
        account = str(template["spec"].get("serviceAccountName") or "default")
        scope = _LookupScope(pod, review.namespace, account, until)
        return self._decision_response(review, await self._review(review_template, obj, scope))

    async def _review(
        self, rule: _Rule[ReviewDecision], obj: Mapping[str, Any], scope: _LookupScope
    ) -> ReviewDecision:
        """Review, and refresh stale tags before rejecting: the tag may have moved since."""
        lookups = await self._resolve_images(scope)
        decision = self._apply_rule(rule, obj, lookups)
        if _needs_refresh(decision, lookups):
            decision = self._apply_rule(rule, obj, await self._refresh_images(scope, lookups))
        return decision

    def _apply_rule(
        self, rule: _Rule[_Result], obj: Mapping[str, Any], lookups: ImageLookups
    ) -> _Result:
        context = SelectionContext(
            self._cache.cluster(), self._settings.now, self._cache.retiring_classes()
        )
        return rule(obj, context, lookups)

    def _is_in_scope(self, namespace: str) -> bool:
        admission = self._settings.now.admission
        exempt = (*admission.exempt_namespaces, self._namespace)
        return admission.enabled and namespace not in exempt

    async def _resolve_images(self, scope: _LookupScope) -> ImageLookups:
        """Resolve a pod's images; for Linux pods only the cache is used."""
        texts = scope.pod.images
        if stated_os(scope.pod, self._cache.cluster()) not in ("", "windows"):
            cached = {text: self._images.cached(text) for text in texts}
            return {text: found for text, found in cached.items() if found}
        return await self._lookup_images(scope, texts)

    async def _refresh_images(self, scope: _LookupScope, lookups: ImageLookups) -> ImageLookups:
        """Resolve stale images again in the remaining time."""
        stale = [text for text, found in lookups.items() if found.is_stale]
        refreshed = await self._lookup_images(scope, stale, max_age=0)
        return {**lookups, **refreshed}

    async def _lookup_images(
        self, scope: _LookupScope, texts: Sequence[str], max_age: float | None = None
    ) -> ImageLookups:
        names, account = scope.pod.pull_secrets, scope.account
        try:
            async with asyncio.timeout(scope.seconds_left / 2):
                secrets = await self._secrets.find(scope.namespace, names, account)
        except TimeoutError:
            secrets = []
        budget = scope.seconds_left
        lookups = (self._images.describe(text, secrets, budget, max_age=max_age) for text in texts)
        found = await asyncio.gather(*lookups)
        return dict(zip(texts, found, strict=True))

    def _decision_response(self, review: _AdmissionRequest, decision: ReviewDecision) -> _Response:
        answer: dict[str, Any] = {"allowed": not decision.refusal}
        if decision.refusal:
            answer["status"] = {"code": _FORBIDDEN, "message": decision.refusal}
            if not review.dry_run:
                self._record_refusal(review, decision)
        if decision.warnings:
            answer["warnings"] = [f"winpod: {warning}" for warning in decision.warnings]
        return decision.outcome, answer

    def _record_refusal(self, review: _AdmissionRequest, decision: ReviewDecision) -> None:
        name = _name_of(review)
        refusal = RefusedReview(
            utc_now(), review.namespace, name, decision.outcome, decision.refusal
        )
        self.refusals.append(refusal)
        self._on_refusal(refusal)
        name = f"{review.namespace}/{name}"
        fields = {"pod": name, "outcome": decision.outcome}
        _log.info("Rejected pod %s: %s", name, decision.refusal, extra=fields)


def _name_of(review: _AdmissionRequest) -> str:
    metadata = (review.object or {}).get("metadata") or {}
    return metadata.get("name") or metadata.get("generateName") or ""


def _needs_refresh(decision: ReviewDecision, lookups: ImageLookups) -> bool:
    """Whether refreshing stale images may turn a rejection into an admission."""
    return decision.outcome in _REJECTING and any(found.is_stale for found in lookups.values())


def _review_body(response: Mapping[str, Any]) -> dict[str, Any]:
    return {"apiVersion": _VERSION, "kind": "AdmissionReview", "response": response}


def _has_controller(obj: Mapping[str, Any]) -> bool:
    """Whether the object is controlled by a workload, which was reviewed already."""
    owners = (obj.get("metadata") or {}).get("ownerReferences") or ()
    return any(owner.get("controller") for owner in owners)


def _same_template(
    found: tuple[Mapping[str, Any], Any, Pod], old_object: Mapping[str, Any] | None
) -> bool:
    """Whether an update leaves the pod template unchanged, such as a change of replicas."""
    before = read_template(old_object) if old_object else None
    return before is not None and before[0] == found[0]
