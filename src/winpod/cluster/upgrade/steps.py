"""The steps of an upgrade, done and undone: classes, nodes and templates through the API server.

Each may be begun any number of times: it looks at what there is and does what is missing, and it is
done when nothing was. What undoing takes is read before a step is begun.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from winpod.cluster.makers import WORKLOADS
from winpod.cluster.seen import RETIRING
from winpod.cluster.upgrade.asked import Asked
from winpod.cluster.upgrade.draining import Draining, until_ready
from winpod.cluster.upgrade.look import Look
from winpod.cluster.upgrade.moves import Change
from winpod.cluster.upgrade.nodes import NodeSteps
from winpod.cluster.upgrade.objects import Objects
from winpod.cluster.upgrade.plan import Do, bare_object
from winpod.cluster.upgrade.resource import Status, StepRecord
from winpod.cluster.upgrade.step_results import DONE, GONE, LOOK, OF_OTHERS, Noted, Progress
from winpod.cluster.upgrade.survey import Survey
from winpod.cluster.view import CLASSES
from winpod.node.api import ApiServer, Refused
from winpod.windows.objects import RuntimeClass

_ROLLS = ("Deployment", "StatefulSet")


@dataclass(frozen=True, slots=True)
class _Deed:
    before: Callable[[StepRecord, Status], Awaitable[Noted]]
    forward: Callable[[StepRecord, Status], Awaitable[Progress]]
    back: Callable[[StepRecord, Status], Awaitable[Progress]]


class Steps:
    """Of one upgrade, in one look at the cluster."""

    def __init__(self, api: ApiServer, survey: Survey, asked: Asked, upgrade: str) -> None:
        self._objects = Objects(api)
        self._survey = survey
        self._asked = asked
        self._look = Look(survey, asked)
        nodes = NodeSteps(self._objects, self._look, asked, upgrade)
        draining = self._draining = Draining(api, self._look, asked)
        self._deeds = {
            Do.ADD_CLASS: _Deed(self._is_there, self._add_class, self._take_class_away),
            Do.RETIRE_CLASS: _Deed(self._sentence, self._retire, self._open_again),
            Do.CHANGE_CLASS: _Deed(self._class_now, self._change_class, self._restore_class),
            Do.PATCH_WORKLOAD: _Deed(self._template_now, self._patch, self._restore_template),
            Do.CORDON: _Deed(nodes.is_cordoned, nodes.cordon, nodes.uncordon),
            Do.DRAIN: _Deed(draining.before, draining.drain, _nothing),
            Do.VERIFY: _Deed(_no_record, draining.verify, _nothing),
            Do.MARK_NODE: _Deed(nodes.was_drained, nodes.mark, nodes.unmark),
            Do.REMOVE_NODE: _Deed(nodes.was_drained, nodes.remove, _nothing),
        }

    async def together(self, steps: Sequence[StepRecord]) -> Sequence[StepRecord]:
        """Of steps that come next, those that are taken at once."""
        return await self._draining.together(steps) if steps[0].do == Do.DRAIN else steps

    async def before(self, step: StepRecord, status: Status) -> Noted:
        return await self._deeds[Do(step.do)].before(step, status)

    async def forward(self, step: StepRecord, status: Status) -> Progress:
        return await self._deeds[Do(step.do)].forward(step, status)

    async def back(self, step: StepRecord, status: Status) -> Progress:
        return await self._deeds[Do(step.do)].back(step, status)

    async def _is_there(self, step: StepRecord, _: Status) -> Noted:
        return Noted({"existed": await self._objects.get(f"{CLASSES}/{step.target}") is not None})

    async def _add_class(self, step: StepRecord, _: Status) -> Progress:
        return await self._set_class(step.after)

    async def _take_class_away(self, step: StepRecord, _: Status) -> Progress:
        """Unless it was there before, or pods have come to use it."""
        there = await self._objects.get(f"{CLASSES}/{step.target}")
        if there is None or step.before.get("existed"):
            return DONE
        if pod := await self._survey.uses_class(step.target):
            return Progress(is_done=True, message=f"it stays: pod {pod} uses it")
        await self._objects.delete(f"{CLASSES}/{step.target}", there)
        return LOOK

    async def _sentence(self, step: StepRecord, _: Status) -> Noted:
        there = await self._objects.get(f"{CLASSES}/{step.target}") or {}
        return Noted({"sentence": _retiring(there)})

    async def _retire(self, step: StepRecord, _: Status) -> Progress:
        return await self._annotate(step.target, step.after["sentence"])

    async def _open_again(self, step: StepRecord, _: Status) -> Progress:
        before = step.before.get("sentence", "")
        there = await self._objects.get(f"{CLASSES}/{step.target}") or {}
        if _retiring(there) not in (before, step.after["sentence"]):
            return OF_OTHERS
        return await self._annotate(step.target, before)

    async def _annotate(self, name: str, sentence: str) -> Progress:
        there = await self._objects.get(f"{CLASSES}/{name}")
        if there is None or _retiring(there) == sentence:
            return DONE if there else GONE
        body = {"metadata": {"annotations": {RETIRING: sentence or None}}}
        await self._objects.merge(f"{CLASSES}/{name}", body)
        return LOOK

    async def _class_now(self, step: StepRecord, _: Status) -> Noted:
        there = await self._objects.get(f"{CLASSES}/{step.target}")
        return Noted({"object": bare_object(there)} if there else {})

    async def _change_class(self, step: StepRecord, _: Status) -> Progress:
        return await self._set_class(step.after)

    async def _restore_class(self, step: StepRecord, _: Status) -> Progress:
        was = step.before.get("object")
        there = await self._objects.get(f"{CLASSES}/{step.target}")
        if was and there and not _is_alike(there, step.after) and not _is_alike(there, was):
            return OF_OTHERS
        return await self._set_class(was) if was else DONE

    async def _set_class(self, wanted: Mapping[str, Any]) -> Progress:
        """A handler cannot be changed: then the class is deleted and made again at once."""
        name = wanted["metadata"]["name"]
        path = f"{CLASSES}/{name}"
        there = await self._objects.get(path)
        if there and _is_alike(there, wanted):
            return DONE
        try:
            if there and there["handler"] == wanted["handler"]:
                version = there["metadata"]["resourceVersion"]
                metadata = {**wanted["metadata"], "resourceVersion": version}
                await self._objects.replace(path, {**wanted, "metadata": metadata})
                return LOOK
            if there:
                await self._objects.delete(path, there)
            await self._objects.create(CLASSES, wanted)
        except Refused as error:
            if error.is_conflict:
                return Progress(message=f"somebody else changes RuntimeClass {name} too")
            raise
        return LOOK

    async def _template_now(self, step: StepRecord, _: Status) -> Noted:
        there = await self._objects.get(_workload_path(step.target))
        if there is None:
            return Noted()
        spec = _pod_spec(step.target, there)
        selector = spec.get("nodeSelector") or {}
        keys = step.after.get("nodeSelector", {})
        scene = await self._look.scene()
        before = {
            "runtimeClassName": spec.get("runtimeClassName", ""),
            "nodeSelector": {key: selector.get(key, "") for key in keys},
        }
        return Noted(before, {str(w): w.ready for w in scene.workloads if str(w) == step.target})

    async def _patch(self, step: StepRecord, status: Status) -> Progress:
        return await self._set_template(step.target, step.after, status.ready)

    async def _restore_template(self, step: StepRecord, status: Status) -> Progress:
        there = await self._objects.get(_workload_path(step.target))
        if there is None:
            return GONE
        spec = _pod_spec(step.target, there)
        before = {name: step.before.get(name, "") for name in step.after}
        if not _has(spec, step.after) and not _has(spec, before):
            return OF_OTHERS
        return await self._set_template(step.target, before, status.ready)

    async def _set_template(
        self, target: str, wanted: Mapping[str, Any], ready: Mapping[str, int]
    ) -> Progress:
        """And wait until its pods have followed, where they do by themselves."""
        selector = wanted.get("nodeSelector", {})
        spec: dict[str, Any] = {}
        if "runtimeClassName" in wanted:
            spec["runtimeClassName"] = wanted["runtimeClassName"] or None
        if selector:
            spec["nodeSelector"] = {key: value or None for key, value in selector.items()}
        there = await self._objects.merge(_workload_path(target), _in_template(target, spec))
        if there is None:
            return GONE
        strategy = there["spec"].get("updateStrategy", {}).get("type", "")
        if target.partition(" ")[0] not in _ROLLS or strategy == "OnDelete":
            return DONE
        change = Change(
            wanted.get("runtimeClassName", ""),
            tuple((key, value) for key, value in selector.items() if value),
        )
        scene = await self._survey.scene(self._asked)
        were = {name: count for name, count in ready.items() if name == target}
        return until_ready(scene, were, {target: change})


async def _nothing(_: StepRecord, __: Status) -> Progress:
    return DONE


async def _no_record(_: StepRecord, __: Status) -> Noted:
    return Noted()


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
