"""What workloads make of their pods: each controller is asked, and what it says is done."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from winpod.node.play import controllers
from winpod.node.play.desired import Desired
from winpod.node.play.events import Events
from winpod.node.play.jobs import is_finished
from winpod.node.play.objects import Document, Key, key_of
from winpod.node.play.places import Places
from winpod.node.play.pods import Pods
from winpod.node.play.records import Kept, Records
from winpod.node.play.templates import Steps, name_of, owner_of, soonest
from winpod.node.pods import is_deleted
from winpod.windows.errors import InvalidInput


class Workloads:
    """`statuses` are theirs as they were told last; `again_at` is when one has something to do.

    What cannot be told from pods is written down: when a CronJob was due, and how a Job finished.
    """

    def __init__(
        self,
        records: Records,
        desired: Desired,
        pods: Pods,
        places: Places,
        events: Events,
        changed: Callable[[], None],
    ) -> None:
        self._records = records
        self._desired = desired
        self._pods = pods
        self._places = places
        self._events = events
        self._changed = changed
        self.statuses: dict[Key, dict[str, Any]] = {}
        self.again_at: datetime | None = None

    async def step(self) -> None:
        self.again_at = None
        self._end_orphans()
        for kind in controllers.KINDS:
            for document in self._records.of_kind(kind):
                await self._step(document)

    def _end_orphans(self) -> None:
        """Pods and jobs whose owner is not there any more."""
        owners = self._records.uids()
        for document in self._records.of_kind("Job"):
            references = document["metadata"].get("ownerReferences") or ()
            if any(reference["uid"] not in owners for reference in references):
                self._records.remove(key_of(document))
        owners = self._records.uids()
        for pod in self._pods.all():
            owner = owner_of(pod)
            if owner and owner.uid not in owners:
                self._pods.end(pod)

    async def _step(self, document: Document) -> None:
        key, uid = key_of(document), document["metadata"]["uid"]
        jobs = [job for job in self._records.of_kind("Job") if _is_owned(job, uid)]
        around = controllers.Around(
            now=datetime.now(UTC),
            taken=[name_of(pod) for pod in self._pods.all()],
            nodes=await self._places.daemon_nodes(document) if key.kind == "DaemonSet" else (),
            jobs=jobs,
            statuses={key_of(job).name: job.get("status") or {} for job in jobs},
            status=document.get("status") or {},
        )
        try:
            steps = controllers.next_for(document, self._pods.of_owner(uid), around)
        except InvalidInput as error:
            self._events.tell(key, "Warning", "Invalid", str(error))
            return
        self._take(key, document, steps)

    def _take(self, key: Key, document: Document, steps: Steps) -> None:
        status = dict(steps.status or {})
        self.statuses[key] = status
        is_lasting = key.kind == "CronJob" or (key.kind == "Job" and is_finished(status))
        if is_lasting and document.get("status") != status:
            kept = self._records.get(key)
            told = {**document, "status": status}
            self._records.put(key, Kept(told, kept.applied if kept else None))
            self._tell_end(key, status)
        self.again_at = soonest(self.again_at, steps.again_at)
        for claim in steps.claims:
            self._desired.add_claim(claim.to_dict())
        for name in steps.remove_jobs:
            self._records.remove(Key("Job", key.namespace, name))
            self._changed()
        for job in steps.jobs:
            made = self._desired.made(job.to_dict())
            self._records.put(key_of(made), Kept(made))
            self._events.tell(key, "Normal", "SuccessfulCreate", f"Created job {name_of(job)}")
        for pod in steps.delete:
            if not is_deleted(pod):
                text = f"Deleted pod: {name_of(pod)}"
                self._events.tell(key, "Normal", "SuccessfulDelete", text)
                self._pods.end(pod)
        for pod in steps.create:
            text = f"Created pod: {name_of(pod)}"
            self._events.tell(key, "Normal", "SuccessfulCreate", text)
            self._pods.add(self._desired.made(pod.to_dict()), None)

    def _tell_end(self, key: Key, status: Mapping[str, Any]) -> None:
        """Of a job, once; its CronJob may have been waiting for it."""
        if key.kind != "Job":
            return
        self._changed()
        if status["condition"] == "Failed":
            self._events.tell(key, "Warning", status["reason"], status["message"])
        else:
            self._events.tell(key, "Normal", "Completed", "Job completed")


def _is_owned(document: Document, uid: str) -> bool:
    return any(r["uid"] == uid for r in document["metadata"].get("ownerReferences") or ())
