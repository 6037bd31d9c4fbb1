"""Applies and undoes the steps of an upgrade: RuntimeClasses, nodes and workload templates.

Steps are idempotent: each reads the current state, applies what is missing, and is done when
nothing is. What is needed to undo a step is read before it starts. A node step applies to one node
object, identified by its uid, and only while it has the old build: a machine that was set up again
under the same name is not touched.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from winpod.k8s.client import ApiClient, ApiError, UnstructuredClient
from winpod.labels import RETIRED_BY_LABEL, RETIRING_ANNOTATION
from winpod.operator.cluster_cache import CLASSES, NODES
from winpod.operator.owners import WORKLOADS
from winpod.operator.upgrade.drain import NodeDrain, readiness_progress
from winpod.operator.upgrade.moves import TemplateChange
from winpod.operator.upgrade.plan import UpgradeStepKind, strip_server_fields
from winpod.operator.upgrade.progress import (
    CHANGED_BY_OTHERS,
    NODE_GONE,
    NODE_REPLACED,
    REQUEUE,
    STEP_DONE,
    Baseline,
    Progress,
    drained_uid,
)
from winpod.operator.upgrade.resource import StepRecord, UpgradeStatus
from winpod.operator.upgrade.snapshot import SnapshotCache, SnapshotReader
from winpod.operator.upgrade.spec import UpgradeSpec
from winpod.placement.model import Node, RuntimeClass
from winpod.windows.builds import Build

_Object = Mapping[str, Any]
_NodeAction = Callable[[StepRecord, _Object], Awaitable[Progress]]


def node_identity_changed(step: StepRecord, current: _Object) -> Progress | None:
    """Return the result if it is not the node for which the step was started."""
    return None if current["metadata"]["uid"] == step.before.get("uid") else NODE_REPLACED


def build_changed(step: StepRecord, current: _Object, old: Build) -> Progress | None:
    build = _build(current)
    if build == old:
        return node_identity_changed(step, current)
    return Progress(is_done=True, message=f"it no longer has the old build: it runs {build}")


def _build(current: _Object) -> Build | None:
    return Node.from_object(current).build


class NodeSteps:
    def __init__(
        self,
        objects: UnstructuredClient,
        snapshots: SnapshotCache,
        upgrade_spec: UpgradeSpec,
        upgrade: str,
    ) -> None:
        self._objects = objects
        self._snapshots = snapshots
        self._spec = upgrade_spec
        self._upgrade = upgrade

    async def is_cordoned(self, step: StepRecord, _: UpgradeStatus) -> Baseline:
        current = await self._objects.get(_path(step))
        if current is None or _build(current) != self._spec.old:
            return Baseline()
        cordoned = bool(current["spec"].get("unschedulable"))
        return Baseline({"uid": current["metadata"]["uid"], "unschedulable": cordoned})

    async def was_drained(self, step: StepRecord, status: UpgradeStatus) -> Baseline:
        return Baseline({"uid": drained_uid(status, step.target)})

    async def cordon(self, step: StepRecord, _: UpgradeStatus) -> Progress:
        return await self._apply_to_old_node(step, self._cordon)

    async def uncordon(self, step: StepRecord, _: UpgradeStatus) -> Progress:
        """Uncordon, unless the node was cordoned before the upgrade."""
        if step.before.get("unschedulable"):
            return STEP_DONE
        return await self._apply_to_same_node(step, self._uncordon)

    async def mark_retired(self, step: StepRecord, _: UpgradeStatus) -> Progress:
        return await self._apply_to_old_node(step, self._label)

    async def unmark_retired(self, step: StepRecord, _: UpgradeStatus) -> Progress:
        return await self._apply_to_same_node(step, self._unlabel)

    async def remove(self, step: StepRecord, _: UpgradeStatus) -> Progress:
        return await self._apply_to_old_node(step, self._delete)

    async def _apply_to_old_node(self, step: StepRecord, action: _NodeAction) -> Progress:
        current = await self._objects.get(_path(step))
        if current is None:
            return NODE_GONE
        return build_changed(step, current, self._spec.old) or await action(step, current)

    async def _apply_to_same_node(self, step: StepRecord, action: _NodeAction) -> Progress:
        current = await self._objects.get(_path(step))
        if current is None:
            return NODE_GONE
        return node_identity_changed(step, current) or await action(step, current)

    async def _cordon(self, step: StepRecord, current: _Object) -> Progress:
        if current["spec"].get("unschedulable"):
            return STEP_DONE
        return await self._patch_node(step, current, {"spec": {"unschedulable": True}})

    async def _uncordon(self, step: StepRecord, current: _Object) -> Progress:
        if not current["spec"].get("unschedulable"):
            return STEP_DONE
        return await self._patch_node(step, current, {"spec": {"unschedulable": None}})

    async def _label(self, step: StepRecord, current: _Object) -> Progress:
        if _retired_by(current) == self._upgrade:
            return STEP_DONE
        return await self._patch_node(step, current, _retired_label(self._upgrade))

    async def _unlabel(self, step: StepRecord, current: _Object) -> Progress:
        if _retired_by(current) != self._upgrade:
            return STEP_DONE
        return await self._patch_node(step, current, _retired_label(None))

    async def _delete(self, step: StepRecord, current: _Object) -> Progress:
        snapshot = await self._snapshots.snapshot()
        staying = [
            w for w in snapshot.workloads if w.kind != "DaemonSet" and w.pods_on([step.target])
        ]
        if staying:
            names = ", ".join(map(str, staying))
            return Progress(is_done=True, message=f"it is kept: {names} still runs on it")
        await self._objects.delete(_path(step), current)
        return REQUEUE

    async def _patch_node(self, step: StepRecord, current: _Object, body: _Object) -> Progress:
        await self._objects.merge_patch_if_unchanged(_path(step), current, body)
        return REQUEUE


def _path(step: StepRecord) -> str:
    return f"{NODES}/{step.target}"


def _retired_by(current: _Object) -> str | None:
    return (current["metadata"].get("labels") or {}).get(RETIRED_BY_LABEL)


def _retired_label(value: str | None) -> dict[str, Any]:
    return {"metadata": {"labels": {RETIRED_BY_LABEL: value}}}


_ROLLING_KINDS = ("Deployment", "StatefulSet")


@dataclass(frozen=True, slots=True)
class _StepHandlers:
    before: Callable[[StepRecord, UpgradeStatus], Awaitable[Baseline]]
    forward: Callable[[StepRecord, UpgradeStatus], Awaitable[Progress]]
    back: Callable[[StepRecord, UpgradeStatus], Awaitable[Progress]]


class StepExecutor:
    """Executes steps of one upgrade, based on one snapshot of the cluster."""

    def __init__(
        self, api: ApiClient, reader: SnapshotReader, upgrade_spec: UpgradeSpec, upgrade: str
    ) -> None:
        self._objects = UnstructuredClient(api)
        self._reader = reader
        self._spec = upgrade_spec
        self._snapshots = SnapshotCache(reader, upgrade_spec)
        nodes = NodeSteps(self._objects, self._snapshots, upgrade_spec, upgrade)
        drain = self._drain = NodeDrain(api, self._snapshots, upgrade_spec)
        self._handlers = {
            UpgradeStepKind.ADD_CLASS: _StepHandlers(
                self._class_existed, self._add_class, self._remove_class
            ),
            UpgradeStepKind.RETIRE_CLASS: _StepHandlers(
                self._retiring_message, self._retire_class, self._unretire_class
            ),
            UpgradeStepKind.CHANGE_CLASS: _StepHandlers(
                self._current_class, self._change_class, self._restore_class
            ),
            UpgradeStepKind.PATCH_WORKLOAD: _StepHandlers(
                self._current_template, self._patch, self._restore_template
            ),
            UpgradeStepKind.CORDON: _StepHandlers(nodes.is_cordoned, nodes.cordon, nodes.uncordon),
            UpgradeStepKind.DRAIN: _StepHandlers(drain.baseline, drain.drain, _no_undo),
            UpgradeStepKind.VERIFY: _StepHandlers(_no_baseline, drain.verify, _no_undo),
            UpgradeStepKind.MARK_NODE: _StepHandlers(
                nodes.was_drained, nodes.mark_retired, nodes.unmark_retired
            ),
            UpgradeStepKind.REMOVE_NODE: _StepHandlers(nodes.was_drained, nodes.remove, _no_undo),
        }

    async def select_parallel(self, steps: Sequence[StepRecord]) -> Sequence[StepRecord]:
        """Return those of the next steps that run in parallel."""
        return (
            await self._drain.select_parallel(steps)
            if steps[0].do == UpgradeStepKind.DRAIN
            else steps
        )

    async def baseline(self, step: StepRecord, status: UpgradeStatus) -> Baseline:
        return await self._handlers[UpgradeStepKind(step.do)].before(step, status)

    async def apply(self, step: StepRecord, status: UpgradeStatus) -> Progress:
        return await self._handlers[UpgradeStepKind(step.do)].forward(step, status)

    async def undo(self, step: StepRecord, status: UpgradeStatus) -> Progress:
        return await self._handlers[UpgradeStepKind(step.do)].back(step, status)

    async def _class_existed(self, step: StepRecord, _: UpgradeStatus) -> Baseline:
        return Baseline(
            {"existed": await self._objects.get(f"{CLASSES}/{step.target}") is not None}
        )

    async def _add_class(self, step: StepRecord, _: UpgradeStatus) -> Progress:
        return await self._set_class(step.after)

    async def _remove_class(self, step: StepRecord, _: UpgradeStatus) -> Progress:
        """Remove the class, unless it existed before or pods use it."""
        current = await self._objects.get(f"{CLASSES}/{step.target}")
        if current is None or step.before.get("existed"):
            return STEP_DONE
        if pod := await self._reader.uses_class(step.target):
            return Progress(is_done=True, message=f"it is kept: pod {pod} uses it")
        await self._objects.delete(f"{CLASSES}/{step.target}", current)
        return REQUEUE

    async def _retiring_message(self, step: StepRecord, _: UpgradeStatus) -> Baseline:
        current = await self._objects.get(f"{CLASSES}/{step.target}") or {}
        return Baseline({"sentence": _retiring(current)})

    async def _retire_class(self, step: StepRecord, _: UpgradeStatus) -> Progress:
        return await self._annotate(step.target, step.after["sentence"])

    async def _unretire_class(self, step: StepRecord, _: UpgradeStatus) -> Progress:
        before = step.before.get("sentence", "")
        current = await self._objects.get(f"{CLASSES}/{step.target}") or {}
        if _retiring(current) not in (before, step.after["sentence"]):
            return CHANGED_BY_OTHERS
        return await self._annotate(step.target, before)

    async def _annotate(self, name: str, message: str) -> Progress:
        current = await self._objects.get(f"{CLASSES}/{name}")
        if current is None or _retiring(current) == message:
            return STEP_DONE if current else NODE_GONE
        body = {"metadata": {"annotations": {RETIRING_ANNOTATION: message or None}}}
        await self._objects.merge_patch(f"{CLASSES}/{name}", body)
        return REQUEUE

    async def _current_class(self, step: StepRecord, _: UpgradeStatus) -> Baseline:
        current = await self._objects.get(f"{CLASSES}/{step.target}")
        return Baseline({"object": strip_server_fields(current)} if current else {})

    async def _change_class(self, step: StepRecord, _: UpgradeStatus) -> Progress:
        return await self._set_class(step.after)

    async def _restore_class(self, step: StepRecord, _: UpgradeStatus) -> Progress:
        previous = step.before.get("object")
        current = await self._objects.get(f"{CLASSES}/{step.target}")
        if (
            previous
            and current
            and not _is_equal(current, step.after)
            and not _is_equal(current, previous)
        ):
            return CHANGED_BY_OTHERS
        return await self._set_class(previous) if previous else STEP_DONE

    async def _set_class(self, desired: Mapping[str, Any]) -> Progress:
        """Create or update a class. Handlers are immutable, so a new one needs a new object."""
        name = desired["metadata"]["name"]
        path = f"{CLASSES}/{name}"
        current = await self._objects.get(path)
        if current and _is_equal(current, desired):
            return STEP_DONE
        try:
            if current and current["handler"] == desired["handler"]:
                version = current["metadata"]["resourceVersion"]
                metadata = {**desired["metadata"], "resourceVersion": version}
                await self._objects.replace(path, {**desired, "metadata": metadata})
                return REQUEUE
            if current:
                await self._objects.delete(path, current)
            await self._objects.create(CLASSES, desired)
        except ApiError as error:
            if error.is_conflict:
                return Progress(message=f"RuntimeClass {name} is being changed concurrently")
            raise
        return REQUEUE

    async def _current_template(self, step: StepRecord, _: UpgradeStatus) -> Baseline:
        current = await self._objects.get(_workload_path(step.target))
        if current is None:
            return Baseline()
        spec = _pod_spec(step.target, current)
        selector = spec.get("nodeSelector") or {}
        keys = step.after.get("nodeSelector", {})
        snapshot = await self._snapshots.snapshot()
        before = {
            "runtimeClassName": spec.get("runtimeClassName", ""),
            "nodeSelector": {key: selector.get(key, "") for key in keys},
        }
        return Baseline(
            before, {str(w): w.ready for w in snapshot.workloads if str(w) == step.target}
        )

    async def _patch(self, step: StepRecord, status: UpgradeStatus) -> Progress:
        return await self._set_template(step.target, step.after, status.ready)

    async def _restore_template(self, step: StepRecord, status: UpgradeStatus) -> Progress:
        current = await self._objects.get(_workload_path(step.target))
        if current is None:
            return NODE_GONE
        spec = _pod_spec(step.target, current)
        before = {name: step.before.get(name, "") for name in step.after}
        if not _has(spec, step.after) and not _has(spec, before):
            return CHANGED_BY_OTHERS
        return await self._set_template(step.target, before, status.ready)

    async def _set_template(
        self, target: str, desired: Mapping[str, Any], ready: Mapping[str, int]
    ) -> Progress:
        """Patch a template, and wait until pods are replaced if the controller does that."""
        selector = desired.get("nodeSelector", {})
        spec: dict[str, Any] = {}
        if "runtimeClassName" in desired:
            spec["runtimeClassName"] = desired["runtimeClassName"] or None
        if selector:
            spec["nodeSelector"] = {key: value or None for key, value in selector.items()}
        current = await self._objects.merge_patch(
            _workload_path(target), _in_template(target, spec)
        )
        if current is None:
            return NODE_GONE
        strategy = current["spec"].get("updateStrategy", {}).get("type", "")
        if target.partition(" ")[0] not in _ROLLING_KINDS or strategy == "OnDelete":
            return STEP_DONE
        change = TemplateChange(
            desired.get("runtimeClassName", ""),
            tuple((key, value) for key, value in selector.items() if value),
        )
        snapshot = await self._reader.snapshot(self._spec)
        expected = {name: count for name, count in ready.items() if name == target}
        return readiness_progress(snapshot, expected, {target: change})


async def _no_undo(_: StepRecord, __: UpgradeStatus) -> Progress:
    return STEP_DONE


async def _no_baseline(_: StepRecord, __: UpgradeStatus) -> Baseline:
    return Baseline()


def _retiring(current: Mapping[str, Any]) -> str:
    return str((current.get("metadata", {}).get("annotations") or {}).get(RETIRING_ANNOTATION, ""))


def _is_equal(current: Mapping[str, Any], desired: Mapping[str, Any]) -> bool:
    labels = [obj["metadata"].get("labels") or {} for obj in (current, desired)]
    is_same = RuntimeClass.from_object(current) == RuntimeClass.from_object(desired)
    return is_same and labels[0] == labels[1]


def _workload_path(target: str) -> str:
    kind, _, namespaced_name = target.partition(" ")
    namespace, _, name = namespaced_name.partition("/")
    return f"{WORKLOADS[kind]}/namespaces/{namespace}/{kind.lower()}s/{name}"


def _in_template(target: str, spec: dict[str, Any]) -> dict[str, Any]:
    template = {"spec": {"template": {"spec": spec}}}
    return {"spec": {"jobTemplate": template}} if target.startswith("CronJob ") else template


def _has(spec: Mapping[str, Any], desired: Mapping[str, Any]) -> bool:
    """Whether a pod spec has the desired values; an empty string means unset."""
    selector = spec.get("nodeSelector") or {}
    upgrade_spec = desired.get("nodeSelector") or {}
    named = desired.get("runtimeClassName", spec.get("runtimeClassName", ""))
    return bool(
        spec.get("runtimeClassName", "") == named
        and all(selector.get(key, "") == value for key, value in upgrade_spec.items())
    )


def _pod_spec(target: str, obj: dict[str, Any]) -> dict[str, Any]:
    parent = obj["spec"]["jobTemplate"] if target.startswith("CronJob ") else obj
    pod_spec: dict[str, Any] = parent["spec"]["template"]["spec"]
    return pod_spec
