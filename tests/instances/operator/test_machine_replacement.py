"""Rollout limit over Machines of several sets and instances of a ConfigMap."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack

import pytest

from tests.support.dying_api import DyingApi
from tests.support.instance_inventory import FORBIDDEN, machines_path, until
from tests.support.mixed_cluster import LEFT, SETS, MixedCluster, OperatorProcess, running_operator
from winpod.instances.planner.next_action import Action

FIRST, LAST = "10.0.0.9", "win-1"
"""Entries: by their names one is before all Machines, and the other after them."""


async def mixed_cluster() -> MixedCluster:
    """Two entries, and two sets of one Machine each; all are nodes with a pending update."""
    cluster = MixedCluster()
    for name in ("a", "b"):
        await cluster.set(name, 1)
        await cluster.node_of_set(f"{name}-1")
    for name in (FIRST, LAST):
        await cluster.entry(name)
    return cluster


async def wait_decision(
    operator: OperatorProcess, name: str, action: Action, reason: str = ""
) -> None:
    """Wait until the operator decides so."""
    deadline = time.monotonic() + 30
    while True:
        found = await operator.decide(name)
        if found.action is action and reason in found.why:
            return
        assert time.monotonic() < deadline, found
        await asyncio.sleep(0.01)


async def wait_known(operator: OperatorProcess, name: str) -> None:
    """Wait until the instance has an object."""
    while name not in operator.context.objects.known:
        await operator.reconcile()
        await asyncio.sleep(0.01)


class OperatorSequence:
    """A sequence of operators; a new process for each if `restarted`."""

    def __init__(self, cluster: MixedCluster, limit: int, *, restarted: bool) -> None:
        self._cluster = cluster
        self._limit = limit
        self._restarted = restarted
        self._stack = AsyncExitStack()
        self._operator: OperatorProcess | None = None

    async def next(self) -> OperatorProcess:
        if self._restarted or self._operator is None:
            await self._stack.aclose()
            self._operator = await self._stack.enter_async_context(
                running_operator(self._cluster, self._limit)
            )
        return self._operator

    async def __aenter__(self) -> OperatorSequence:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("limit", [1, 2])
async def test_entries_wait_while_a_machine_is_replaced(limit: int, restarted: bool) -> None:
    """Also with a new operator that has not seen the start of the replacement."""
    cluster = await mixed_cluster()
    async with OperatorSequence(cluster, limit, restarted=restarted) as operators:

        async def assert_waits(why: str) -> None:
            operator = await operators.next()
            prefix = "one update at a time" if limit == 1 else "2 updates at a time"
            if limit == 2:
                await wait_decision(operator, FIRST, Action.CORDON)
                why = f"{FIRST}, {why}"
            await wait_decision(operator, LAST, Action.WAIT, f"{prefix}; in progress: {why}")
            operator.context.rollout.release_slot(FIRST)

        async with running_operator(cluster, api=DyingApi(cluster, 2)) as dying:
            acting = asyncio.create_task(dying.act("machine-a-1"))
            await until(lambda: "changingSince" in cluster.status("machine-a-1"))
            acting.cancel()
        assert "a-1" in cluster.machines(), "it began, and nothing was deleted yet"
        await assert_waits("" if limit == 2 else "machine-a-1")
        operator = await operators.next()
        assert (await operator.act("machine-a-1")).action is Action.REPLACE
        await assert_waits("Machine a-1 is being deleted")
        await cluster.take_out("a-1")
        await assert_waits("MachineSet a has to create a Machine")
        await cluster.make("a-2")
        await assert_waits("Machine a-2 is not a ready node yet")
        operator = await operators.next()
        await wait_known(operator, "machine-a-2")
        assert (await operator.act("machine-a-2")).action is Action.APPLY
        await assert_waits("Machine a-2 is not a ready node yet")
        operator = await operators.next()
        assert (await operator.act("machine-a-2")).action is Action.NONE
        await wait_decision(await operators.next(), LAST, Action.CORDON)


@pytest.mark.parametrize("restarted", [False, True])
async def test_machines_wait_while_an_entry_is_updated(
    restarted: bool,
) -> None:
    cluster = await mixed_cluster()
    async with OperatorSequence(cluster, 1, restarted=restarted) as operators:
        for action in (Action.CORDON, Action.APPLY, Action.UNCORDON, Action.NONE):
            assert (await (await operators.next()).act(LAST)).action is action
            if action is not Action.NONE:
                why = f"one update at a time; in progress: {LAST}"
                await wait_decision(await operators.next(), "machine-a-1", Action.WAIT, why)
        await wait_decision(await operators.next(), "machine-a-1", Action.REPLACE)


@pytest.mark.parametrize(
    ("first", "second"),
    [(FIRST, LAST), (FIRST, "machine-a-1"), ("machine-a-1", LAST), ("machine-a-1", "machine-b-1")],
)
@pytest.mark.parametrize("restarted", [False, True])
async def test_any_two_may_update_with_a_limit_of_two(
    first: str, second: str, restarted: bool
) -> None:
    cluster = await mixed_cluster()
    others = {FIRST, LAST, "machine-a-1", "machine-b-1"} - {first, second}
    async with OperatorSequence(cluster, 2, restarted=restarted) as operators:
        for name in (first, second):
            action = Action.REPLACE if name.startswith("machine-") else Action.CORDON
            assert (await (await operators.next()).act(name)).action is action
        assert cluster.down() == 2
        for name in others:
            await wait_decision(
                await operators.next(), name, Action.WAIT, "2 updates at a time; in progress: "
            )


@pytest.mark.parametrize("how", ["scaled down", "deleted", "being deleted"])
async def test_set_without_pending_machines_is_not_waited_for(how: str) -> None:
    cluster = await mixed_cluster()
    await cluster.leave("a-1")
    async with running_operator(cluster) as operator:
        await wait_decision(operator, LAST, Action.WAIT, "Machine a-1 is being deleted")
        if how == "scaled down":
            await cluster.set("a", 0)
        elif how == "deleted":
            await cluster.remove(f"{SETS}/a")
        else:
            await cluster.set("a", 1, deletionTimestamp=LEFT)
        await wait_decision(operator, LAST, Action.CORDON)


async def test_machine_without_windows_label_is_not_waited_for() -> None:
    cluster = await mixed_cluster()
    await cluster.make("a-1", labels={})
    async with running_operator(cluster) as operator:
        await until(lambda: not operator.context.machines.is_present("a-1"))
        await wait_decision(operator, LAST, Action.CORDON)


async def test_failed_update_blocks_entries_and_machines() -> None:
    cluster = await mixed_cluster()
    async with running_operator(cluster, 3) as operator:
        await operator.act(LAST)
        await operator.context.objects.save(LAST, lambda status: setattr(status, "failure", "no"))
        for name in (FIRST, "machine-a-1"):
            await wait_decision(operator, name, Action.WAIT, f"the update of {LAST} failed")
        await wait_decision(operator, LAST, Action.APPLY)


async def test_failed_new_machine_blocks_entries_and_machines() -> None:
    cluster = await mixed_cluster()
    async with running_operator(cluster, 3) as operator:
        await operator.act("machine-a-1")
        await cluster.take_out("a-1")
        await cluster.make("a-2")
        await wait_known(operator, "machine-a-2")
        await wait_decision(operator, LAST, Action.CORDON)
        operator.context.rollout.release_slot(LAST)
        await operator.context.objects.save(
            "machine-a-2", lambda status: setattr(status, "failure", "no")
        )
        for name in (FIRST, LAST, "machine-b-1"):
            await wait_decision(operator, name, Action.WAIT, "the update of machine-a-2 failed")


async def test_blocked_machine_does_not_delay_others() -> None:
    """It was pending before, and would have been the first."""
    cluster = await mixed_cluster()
    async with running_operator(cluster) as operator:
        await operator.act(FIRST)
        await wait_decision(operator, "machine-a-1", Action.WAIT, f"in progress: {FIRST}")
        await cluster.set("a", 1, ready=0)
        await wait_decision(operator, "machine-a-1", Action.WAIT, "only 0 of 1 Machines")
        for _ in range(3):
            await operator.act(FIRST)
        await wait_decision(operator, LAST, Action.CORDON)


async def test_started_replacement_continues_with_an_incomplete_set() -> None:
    cluster = await mixed_cluster()
    await cluster.begin("machine-a-1")
    await cluster.set("a", 1, ready=0)
    async with running_operator(cluster) as operator:
        await wait_decision(operator, "machine-a-1", Action.REPLACE)


@pytest.mark.parametrize("path", [machines_path(), SETS])
async def test_unknown_machines_block_new_updates_but_not_started_ones(
    path: str,
) -> None:
    cluster = await mixed_cluster()
    await cluster.begin(FIRST)
    await cluster.begin("machine-a-1")
    cluster.refuse(path, FORBIDDEN)
    async with running_operator(cluster, 9) as operator:
        for name in (LAST, "machine-b-1"):
            await wait_decision(
                operator, name, Action.WAIT, "are not known, nor how many of them change"
            )
            await wait_decision(operator, name, Action.WAIT, str(FORBIDDEN))
        await wait_decision(operator, FIRST, Action.CORDON)
        await wait_decision(operator, "machine-a-1", Action.REPLACE)


async def test_without_machine_namespace_only_machine_instances_wait() -> None:
    cluster = await mixed_cluster()
    async with running_operator(cluster, namespace="") as operator:
        await wait_decision(operator, "machine-a-1", Action.WAIT, "machineNamespace is empty")
        await wait_decision(operator, LAST, Action.CORDON)


@pytest.mark.parametrize("crashes_often", [False, True])
@pytest.mark.parametrize("limit", [1, 2, 3])
async def test_rollout_finishes_within_the_limit_despite_crashes(
    limit: int, crashes_often: bool
) -> None:
    """Each operator crashes after one write, two writes, and so on."""
    cluster = await mixed_cluster()
    await cluster.set("c", 2)
    for name in ("c-1", "c-2"):
        await cluster.node_of_set(name)
    most, crashes = 0, 0

    async def work(operator: OperatorProcess) -> None:
        nonlocal most
        for _ in range(10):
            await operator.reconcile()
            for name in sorted(operator.context.objects.known):
                if cluster.exists(name):
                    await operator.act(name)
                most = max(most, cluster.down())
            await cluster.step()
            await asyncio.sleep(0.001)

    deadline = time.monotonic() + 60
    while not cluster.is_changed():
        assert time.monotonic() < deadline, (crashes, cluster.machines())
        api = DyingApi(cluster, crashes % 20 + 1) if crashes_often else cluster
        async with running_operator(cluster, limit, api=api) as operator:
            working = asyncio.ensure_future(work(operator))
            dying = asyncio.ensure_future(api.died.wait() if isinstance(api, DyingApi) else working)
            await asyncio.wait({working, dying}, return_when=asyncio.FIRST_COMPLETED)
            crashes += not working.done()
            if working.done():
                working.result()
            for task in (working, dying):
                task.cancel()
            await asyncio.gather(working, dying, return_exceptions=True)
    assert most == limit
    assert bool(crashes) == crashes_often
