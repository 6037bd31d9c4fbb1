"""The steps of an upgrade, done and undone: classes, nodes and templates through the API server.

Each may be begun any number of times: it looks at what there is and does what is missing, and it is
done when nothing was. What undoing takes is read before a step is begun.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from winpod.cluster.makers import WORKLOADS
from winpod.cluster.seen import RETIRING
from winpod.cluster.upgrade.asked import Asked
from winpod.cluster.upgrade.draining import Draining, Progress, until_ready
from winpod.cluster.upgrade.moves import Change
from winpod.cluster.upgrade.plan import Do, bare_object
from winpod.cluster.upgrade.resource import Status, StepRecord
from winpod.cluster.upgrade.survey import Survey
from winpod.cluster.view import CLASSES, NODES
from winpod.node.api import ApiServer, Refused
from winpod.windows.objects import RuntimeClass

MERGE = "application/merge-patch+json"
RETIRED_NODE = "winpod.dev/retired-by"
_DONE, _LOOK = Progress(is_done=True), Progress(look_again=True)
_GONE = Progress(is_done=True, message="it is gone")
_OF_OTHERS = Progress(is_done=True, message="somebody else has changed it since, and it stays so")
_ROLLS = ("Deployment", "StatefulSet")


@dataclass(frozen=True, slots=True)
class _Deed:
    before: Callable[[StepRecord], Awaitable[dict[str, Any]]]
    forward: Callable[[StepRecord, Status], Awaitable[Progress]]
    back: Callable[[StepRecord], Awaitable[Progress]]


class Steps:
    """Of one upgrade."""

    def __init__(self, api: ApiServer, survey: Survey, asked: Asked, upgrade: str) -> None:
        self._api = api
        self._survey = survey
        self._asked = asked
        self._upgrade = upgrade
        draining = Draining(api, survey, asked)
        self._deeds = {
            Do.ADD_CLASS: _Deed(self._is_there, self._add_class, self._take_class_away),
            Do.RETIRE_CLASS: _Deed(self._sentence, self._retire, self._open_again),
            Do.CHANGE_CLASS: _Deed(self._class_now, self._change_class, self._restore_class),
            Do.PATCH_WORKLOAD: _Deed(self._template_now, self._patch, self._restore_template),
            Do.CORDON: _Deed(self._is_cordoned, self._cordon, self._uncordon),
            Do.DRAIN: _Deed(draining.ready_now, draining.drain, _nothing),
            Do.VERIFY: _Deed(_no_record, draining.verify, _nothing),
            Do.MARK_NODE: _Deed(_no_record, self._mark, self._unmark),
            Do.REMOVE_NODE: _Deed(_no_record, self._remove, _nothing),
        }

    async def before(self, step: StepRecord) -> dict[str, Any]:
        return await self._deeds[Do(step.do)].before(step)

    async def forward(self, step: StepRecord, status: Status) -> Progress:
        return await self._deeds[Do(step.do)].forward(step, status)

    async def back(self, step: StepRecord) -> Progress:
        return await self._deeds[Do(step.do)].back(step)

    async def _is_there(self, step: StepRecord) -> dict[str, Any]:
        return {"existed": await self._get(f"{CLASSES}/{step.target}") is not None}

    async def _add_class(self, step: StepRecord, _: Status) -> Progress:
        return await self._set_class(step.after)

    async def _take_class_away(self, step: StepRecord) -> Progress:
        """Unless it was there before, or pods have come to use it."""
        if step.before.get("existed") or await self._get(f"{CLASSES}/{step.target}") is None:
            return _DONE
        if pod := await self._survey.uses_class(step.target):
            return Progress(is_done=True, message=f"it stays: pod {pod} uses it")
        await self._delete(f"{CLASSES}/{step.target}")
        return _LOOK

    async def _sentence(self, step: StepRecord) -> dict[str, Any]:
        return {"sentence": _retiring(await self._get(f"{CLASSES}/{step.target}") or {})}

    async def _retire(self, step: StepRecord, _: Status) -> Progress:
        return await self._annotate(step.target, step.after["sentence"])

    async def _open_again(self, step: StepRecord) -> Progress:
        before = step.before.get("sentence", "")
        there = await self._get(f"{CLASSES}/{step.target}") or {}
        if _retiring(there) not in (before, step.after["sentence"]):
            return _OF_OTHERS
        return await self._annotate(step.target, before)

    async def _annotate(self, name: str, sentence: str) -> Progress:
        there = await self._get(f"{CLASSES}/{name}")
        if there is None or _retiring(there) == sentence:
            return _DONE if there else _GONE
        body = {"metadata": {"annotations": {RETIRING: sentence or None}}}
        await self._merge(f"{CLASSES}/{name}", body)
        return _LOOK

    async def _class_now(self, step: StepRecord) -> dict[str, Any]:
        there = await self._get(f"{CLASSES}/{step.target}")
        return {"object": bare_object(there)} if there else {}

    async def _change_class(self, step: StepRecord, _: Status) -> Progress:
        return await self._set_class(step.after)

    async def _restore_class(self, step: StepRecord) -> Progress:
        was = step.before.get("object")
        there = await self._get(f"{CLASSES}/{step.target}")
        if was and there and not _is_alike(there, step.after) and not _is_alike(there, was):
            return _OF_OTHERS
        return await self._set_class(was) if was else _DONE

    async def _set_class(self, wanted: Mapping[str, Any]) -> Progress:
        """A handler cannot be changed: then the class is deleted and made again at once."""
        name = wanted["metadata"]["name"]
        path = f"{CLASSES}/{name}"
        there = await self._get(path)
        if there and _is_alike(there, wanted):
            return _DONE
        try:
            if there and there["handler"] == wanted["handler"]:
                version = there["metadata"]["resourceVersion"]
                metadata = {**wanted["metadata"], "resourceVersion": version}
                await self._api.request("PUT", path, {**wanted, "metadata": metadata})
                return _LOOK
            if there:
                await self._delete(path, there["metadata"]["uid"])
            await self._api.request("POST", CLASSES, wanted)
        except Refused as error:
            if error.is_conflict:
                return Progress(message=f"somebody else changes RuntimeClass {name} too")
            raise
        return _LOOK

    async def _template_now(self, step: StepRecord) -> dict[str, Any]:
        there = await self._get(_workload_path(step.target))
        if there is None:
            return {}
        spec = _pod_spec(step.target, there)
        selector = spec.get("nodeSelector") or {}
        keys = step.after.get("nodeSelector", {})
        scene = await self._survey.scene(self._asked)
        ready = {str(w): w.ready for w in scene.workloads if str(w) == step.target}
        return {
            "runtimeClassName": spec.get("runtimeClassName", ""),
            "nodeSelector": {key: selector.get(key, "") for key in keys},
            "ready": ready,
        }

    async def _patch(self, step: StepRecord, _: Status) -> Progress:
        return await self._set_template(step.target, step.after, step.before)

    async def _restore_template(self, step: StepRecord) -> Progress:
        there = await self._get(_workload_path(step.target))
        if there is None:
            return _GONE
        spec = _pod_spec(step.target, there)
        before = {name: step.before.get(name, "") for name in step.after}
        if not _has(spec, step.after) and not _has(spec, before):
            return _OF_OTHERS
        return await self._set_template(step.target, before, step.before)

    async def _set_template(
        self, target: str, wanted: Mapping[str, Any], before: Mapping[str, Any]
    ) -> Progress:
        """And wait until its pods have followed, where they do by themselves."""
        selector = wanted.get("nodeSelector", {})
        spec: dict[str, Any] = {}
        if "runtimeClassName" in wanted:
            spec["runtimeClassName"] = wanted["runtimeClassName"] or None
        if selector:
            spec["nodeSelector"] = {key: value or None for key, value in selector.items()}
        there = await self._merge(_workload_path(target), _in_template(target, spec))
        if there is None:
            return _GONE
        strategy = there["spec"].get("updateStrategy", {}).get("type", "")
        if target.partition(" ")[0] not in _ROLLS or strategy == "OnDelete":
            return _DONE
        change = Change(
            wanted.get("runtimeClassName", ""),
            tuple((key, value) for key, value in selector.items() if value),
        )
        scene = await self._survey.scene(self._asked)
        return until_ready(scene, before.get("ready", {}), {target: change})

    async def _is_cordoned(self, step: StepRecord) -> dict[str, Any]:
        there = await self._get(f"{NODES}/{step.target}") or {"spec": {}}
        return {"unschedulable": bool(there["spec"].get("unschedulable"))}

    async def _cordon(self, step: StepRecord, _: Status) -> Progress:
        return await self._set_unschedulable(step.target, True)

    async def _uncordon(self, step: StepRecord) -> Progress:
        """Unless somebody had cordoned it before."""
        was = bool(step.before.get("unschedulable"))
        return _DONE if was else await self._set_unschedulable(step.target, False)

    async def _set_unschedulable(self, node: str, wanted: bool) -> Progress:
        there = await self._get(f"{NODES}/{node}")
        if there is None or bool(there["spec"].get("unschedulable")) == wanted:
            return _DONE if there else _GONE
        await self._merge(f"{NODES}/{node}", {"spec": {"unschedulable": wanted or None}})
        return _LOOK

    async def _mark(self, step: StepRecord, _: Status) -> Progress:
        return await self._label(step.target, self._upgrade)

    async def _unmark(self, step: StepRecord) -> Progress:
        there = await self._get(f"{NODES}/{step.target}") or {"metadata": {}}
        if (there["metadata"].get("labels") or {}).get(RETIRED_NODE) != self._upgrade:
            return _DONE
        return await self._label(step.target, None)

    async def _label(self, node: str, value: str | None) -> Progress:
        there = await self._get(f"{NODES}/{node}")
        if there is None or (there["metadata"].get("labels") or {}).get(RETIRED_NODE) == value:
            return _DONE if there else _GONE
        await self._merge(f"{NODES}/{node}", {"metadata": {"labels": {RETIRED_NODE: value}}})
        return _LOOK

    async def _remove(self, step: StepRecord, _: Status) -> Progress:
        if await self._get(f"{NODES}/{step.target}") is None:
            return _DONE
        scene = await self._survey.scene(self._asked)
        staying = [w for w in scene.workloads if w.kind != "DaemonSet" and w.on([step.target])]
        if staying:
            names = ", ".join(map(str, staying))
            return Progress(is_done=True, message=f"it is kept: {names} still runs there")
        await self._delete(f"{NODES}/{step.target}")
        return _LOOK

    async def _get(self, path: str) -> dict[str, Any] | None:
        try:
            found: dict[str, Any] = json.loads(await self._api.request("GET", path))
        except Refused as error:
            if error.is_missing:
                return None
            raise
        return found

    async def _merge(self, path: str, body: Mapping[str, Any]) -> dict[str, Any] | None:
        """What is there then; None where there is nothing to be changed any more."""
        try:
            answer = await self._api.request("PATCH", path, body, content=MERGE)
        except Refused as error:
            if error.is_missing:
                return None
            raise
        found: dict[str, Any] = json.loads(answer)
        return found

    async def _delete(self, path: str, uid: str = "") -> None:
        options = {"preconditions": {"uid": uid}} if uid else {}
        try:
            await self._api.delete(path, options)
        except Refused as error:
            if not error.is_missing:
                raise


async def _nothing(_: StepRecord) -> Progress:
    return _DONE


async def _no_record(_: StepRecord) -> dict[str, Any]:
    return {}


def _retiring(there: Mapping[str, Any]) -> str:
    return str((there.get("metadata", {}).get("annotations") or {}).get(RETIRING, ""))


def _is_alike(there: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    labels = [obj["metadata"].get("labels") or {} for obj in (there, wanted)]
    is_same = RuntimeClass.from_object(there) == RuntimeClass.from_object(wanted)
    return is_same and labels[0] == labels[1]


def _workload_path(target: str) -> str:
    kind, _, where = target.partition(" ")
    namespace, _, name = where.partition("/")
    return f"{WORKLOADS[kind]}/namespaces/{namespace}/{kind.lower()}s/{name}"


def _in_template(target: str, spec: dict[str, Any]) -> dict[str, Any]:
    template = {"spec": {"template": {"spec": spec}}}
    return {"spec": {"jobTemplate": template}} if target.startswith("CronJob ") else template


def _has(spec: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Whether a pod's spec says what is wanted; an empty text is for what it does not say."""
    selector = spec.get("nodeSelector") or {}
    asked = wanted.get("nodeSelector") or {}
    named = wanted.get("runtimeClassName", spec.get("runtimeClassName", ""))
    return bool(
        spec.get("runtimeClassName", "") == named
        and all(selector.get(key, "") == value for key, value in asked.items())
    )


def _pod_spec(target: str, obj: dict[str, Any]) -> dict[str, Any]:
    holder = obj["spec"]["jobTemplate"] if target.startswith("CronJob ") else obj
    found: dict[str, Any] = holder["spec"]["template"]["spec"]
    return found
