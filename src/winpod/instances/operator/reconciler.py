"""Reconciler of one instance: observe, decide by `next_action`, act, observe again.

An observation is cached for a while, so that waiting for pods or for a Node does not load the
instance. Errors are reported and retried with backoff.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable

from winpod.concurrency import Backoff
from winpod.errors import Unavailable, WinpodError
from winpod.instances.cluster.nodes import api_error_context, subnet_of
from winpod.instances.cluster.resource import InstanceStatus, WindowsInstance
from winpod.instances.errors import (
    CONNECT_ERRORS,
    InstanceBusy,
    InstanceUnreachable,
    with_instance,
)
from winpod.instances.operator.actions import (
    ActionContext,
    ActionRunner,
    NodeJoinTimeout,
    set_phase,
)
from winpod.instances.operator.conditions import (
    CONFIGURED,
    CONTAINERD_NOT_RUNNING,
    CONTAINERD_RUNNING,
    NODE_READY,
    REACHABLE,
    InstancePhase,
    find_condition,
    reason_of,
)
from winpod.instances.operator.context import OperatorContext
from winpod.instances.operator.observe import Observation, observe, observed_instance, save_status
from winpod.instances.planner.next_action import Action, ObservedInstance, next_action
from winpod.labels import STOP_MANAGING_ANNOTATION

_CACHE_SECONDS, _IDLE_CACHE_SECONDS = 60.0, 300.0
_INITIAL_BACKOFF, _MAX_BACKOFF = 5.0, 300.0
_API_RETRY_SECONDS, _BUSY_RETRY_SECONDS = 2.0, 10.0
_log = logging.getLogger(__name__)


class InstanceReconciler:
    def __init__(self, name: str, context: OperatorContext) -> None:
        self.name = name
        self._context = context
        self._runner = ActionRunner(context)
        self._wake = asyncio.Event()
        self._observation: Observation | None = None
        self._backoff = Backoff(_INITIAL_BACKOFF, _MAX_BACKOFF)
        self._action, self._since = Action.NONE, 0.0

    def wake(self) -> None:
        """Request a new observation, also if one is in progress."""
        self._backoff.reset()
        self._wake.set()

    async def run(self) -> None:
        """Run until the object is deleted."""
        while instance := self._context.objects.get_copy(self.name):
            if self._wake.is_set():
                self._wake.clear()
                self._observation = None
            try:
                seconds = await self._advance(instance)
                self._backoff.reset()
            except WinpodError as error:
                seconds = await self._failed(instance, error)
            await self._wait_woken(seconds)

    async def _wait_woken(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds * random.uniform(0.9, 1.1)):  # noqa: S311
                await self._wake.wait()
        except TimeoutError:
            return

    async def _advance(self, instance: WindowsInstance) -> float:
        if instance.is_deleting and instance.is_unmanaged:
            await self._runner.abandon(instance)
            return _API_RETRY_SECONDS
        if instance.is_deleting and instance.spec.machine:
            await self._runner.release(instance, "its Machine was deleted")
            return _API_RETRY_SECONDS
        with api_error_context(self.name, "observe it and its Node"):
            observation, observed = await self._observe(instance)
        decision = next_action(observed)
        if decision.action is not self._action:
            self._action, self._since = decision.action, time.monotonic()
        waited = time.monotonic() - self._since
        case = ActionContext(instance, observation, observed, decision.why, waited)
        with api_error_context(self.name, decision.action):
            requeue = await self._runner.run(decision.action, case)
        if requeue.observe_again:
            self._observation = None
        return requeue.seconds

    async def _observe(self, instance: WindowsInstance) -> tuple[Observation, ObservedInstance]:
        context, observation = self._context, self._observation
        node = await context.nodes.get(instance.status.node)
        if (
            observation is None
            or observation.age > self._cache_seconds()
            or observation.subnet != subnet_of(node)
        ):
            observation = self._observation = await observe(context, instance)
            node = await context.nodes.get(instance.status.node)
        last_heartbeat = await self._runner.heartbeat(instance, observation)
        return observation, await observed_instance(
            context, instance, observation, node, last_heartbeat
        )

    def _cache_seconds(self) -> float:
        return _IDLE_CACHE_SECONDS if self._action is Action.NONE else _CACHE_SECONDS

    async def _failed(self, instance: WindowsInstance, error: WinpodError) -> float:
        """Record a failure; an unavailable API server is not a failure of the instance."""
        if isinstance(error, Unavailable) and not isinstance(error, InstanceUnreachable):
            _log.info("Instance %s waits: %s", self.name, error)
            return _API_RETRY_SECONDS
        if isinstance(error, InstanceBusy):
            await self._save(
                instance, lambda status: set_phase(status, InstancePhase.WAITING, str(error))
            )
            return _BUSY_RETRY_SECONDS
        context, reason, message = (
            self._context,
            reason_of(error),
            _failure_message(instance, error),
        )
        self._observation, self._action = None, Action.NONE
        context.rollout.release_slot(self.name)
        context.record_event(instance, reason, message, is_bad=True)

        def change(status: InstanceStatus) -> None:
            set_phase(status, InstancePhase.FAILED, message)
            status.failure = message
            if isinstance(error, CONNECT_ERRORS):
                context.condition(status, REACHABLE, False, reason, message)
                if find_condition(status.conditions, CONTAINERD_RUNNING):
                    context.condition(status, CONTAINERD_RUNNING, None, reason)
            elif isinstance(error, NodeJoinTimeout) and status.node_uid:
                context.condition(status, NODE_READY, None, reason, message)
            else:
                context.condition(status, CONFIGURED, False, reason, message)
            if reason == CONTAINERD_NOT_RUNNING:
                context.condition(status, CONTAINERD_RUNNING, False, reason, message)

        await self._save(instance, change)
        return self._backoff.next()

    async def _save(
        self, instance: WindowsInstance, change: Callable[[InstanceStatus], None]
    ) -> None:
        try:
            await save_status(self._context, instance, change)
        except WinpodError as save_error:
            _log.info("Failed to save the status of instance %s: %s", self.name, save_error)


def _failure_message(instance: WindowsInstance, error: WinpodError) -> str:
    """Return the error prefixed with the instance."""
    name, message = instance.name, str(error)
    if instance.is_deleting and isinstance(error, CONNECT_ERRORS):
        command = f"kubectl -n {instance.metadata.namespace} annotate windowsinstance {name}"
        message += f" If it is gone for good, release it: {command} {STOP_MANAGING_ANNOTATION}=true"
    return with_instance(name, message)
