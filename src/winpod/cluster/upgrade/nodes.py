"""Old nodes cordoned, marked and removed, and opened again.

A step is for one node object, known by its uid, and goes forward only while that is of the old
build: a machine that was set up anew under the same name is left alone.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from winpod.cluster.upgrade.asked import Asked
from winpod.cluster.upgrade.look import Look
from winpod.cluster.upgrade.objects import Objects
from winpod.cluster.upgrade.progress import drained_uid
from winpod.cluster.upgrade.resource import Status, StepRecord
from winpod.cluster.upgrade.step_results import ANOTHER, DONE, GONE, LOOK, Noted, Progress
from winpod.cluster.view import NODES
from winpod.windows.builds import Build
from winpod.windows.objects import Node

RETIRED_NODE = "winpod.dev/retired-by"
_Object = Mapping[str, Any]
_ToNode = Callable[[StepRecord, _Object], Awaitable[Progress]]


def not_its(step: StepRecord, there: _Object) -> Progress | None:
    """What there is to say where it is not the node that the step was begun for."""
    return None if there["metadata"]["uid"] == step.before.get("uid") else ANOTHER


def not_old(step: StepRecord, there: _Object, old: Build) -> Progress | None:
    build = _build(there)
    if build == old:
        return not_its(step, there)
    return Progress(is_done=True, message=f"it is no old node any more: it runs {build}")


def _build(there: _Object) -> Build | None:
    return Node.from_object(there).build


class NodeSteps:
    def __init__(self, objects: Objects, look: Look, asked: Asked, upgrade: str) -> None:
        self._objects = objects
        self._look = look
        self._asked = asked
        self._upgrade = upgrade

    async def is_cordoned(self, step: StepRecord, _: Status) -> Noted:
        there = await self._objects.get(_path(step))
        if there is None or _build(there) != self._asked.old:
            return Noted()
        closed = bool(there["spec"].get("unschedulable"))
        return Noted({"uid": there["metadata"]["uid"], "unschedulable": closed})

    async def was_drained(self, step: StepRecord, status: Status) -> Noted:
        return Noted({"uid": drained_uid(status, step.target)})

    async def cordon(self, step: StepRecord, _: Status) -> Progress:
        return await self._to_old(step, self._close)

    async def uncordon(self, step: StepRecord, _: Status) -> Progress:
        """Unless somebody had cordoned it before."""
        if step.before.get("unschedulable"):
            return DONE
        return await self._to_its(step, self._open)

    async def mark(self, step: StepRecord, _: Status) -> Progress:
        return await self._to_old(step, self._label)

    async def unmark(self, step: StepRecord, _: Status) -> Progress:
        return await self._to_its(step, self._unlabel)

    async def remove(self, step: StepRecord, _: Status) -> Progress:
        return await self._to_old(step, self._delete)

    async def _to_old(self, step: StepRecord, do: _ToNode) -> Progress:
        there = await self._objects.get(_path(step))
        if there is None:
            return GONE
        return not_old(step, there, self._asked.old) or await do(step, there)

    async def _to_its(self, step: StepRecord, do: _ToNode) -> Progress:
        there = await self._objects.get(_path(step))
        if there is None:
            return GONE
        return not_its(step, there) or await do(step, there)

    async def _close(self, step: StepRecord, there: _Object) -> Progress:
        if there["spec"].get("unschedulable"):
            return DONE
        return await self._change(step, there, {"spec": {"unschedulable": True}})

    async def _open(self, step: StepRecord, there: _Object) -> Progress:
        if not there["spec"].get("unschedulable"):
            return DONE
        return await self._change(step, there, {"spec": {"unschedulable": None}})

    async def _label(self, step: StepRecord, there: _Object) -> Progress:
        if _marked_by(there) == self._upgrade:
            return DONE
        return await self._change(step, there, _mark(self._upgrade))

    async def _unlabel(self, step: StepRecord, there: _Object) -> Progress:
        if _marked_by(there) != self._upgrade:
            return DONE
        return await self._change(step, there, _mark(None))

    async def _delete(self, step: StepRecord, there: _Object) -> Progress:
        scene = await self._look.scene()
        staying = [w for w in scene.workloads if w.kind != "DaemonSet" and w.on([step.target])]
        if staying:
            names = ", ".join(map(str, staying))
            return Progress(is_done=True, message=f"it is kept: {names} still runs there")
        await self._objects.delete(_path(step), there)
        return LOOK

    async def _change(self, step: StepRecord, there: _Object, body: _Object) -> Progress:
        await self._objects.merge_into(_path(step), there, body)
        return LOOK


def _path(step: StepRecord) -> str:
    return f"{NODES}/{step.target}"


def _marked_by(there: _Object) -> str | None:
    return (there["metadata"].get("labels") or {}).get(RETIRED_NODE)


def _mark(value: str | None) -> dict[str, Any]:
    return {"metadata": {"labels": {RETIRED_NODE: value}}}
