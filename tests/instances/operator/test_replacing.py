"""At most so many change at a time: Machines of several sets, and instances of a ConfigMap."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack

import pytest

from tests.instances.operator.mixed_cluster import LEFT, SETS, Life, MixedCluster, life
from tests.instances.operator.test_dying import DyingApi
from tests.instances.operator.test_live_inputs import FORBIDDEN, folder, until
from winpod.instances.rules.next_deed import Deed

FIRST, LAST = "10.0.0.9", "win-1"
"""Entries: by their names one is before all Machines, and the other after them."""


async def mixed() -> MixedCluster:
    """Two entries, and two sets of one Machine each; all are nodes, and all have to change."""
    cluster = MixedCluster()
    for name in ("a", "b"):
        await cluster.set(name, 1)
        await cluster.node_of_set(f"{name}-1")
    for name in (FIRST, LAST):
        await cluster.entry(name)
    return cluster


async def decided(operator: Life, name: str, deed: Deed, words: str = "") -> None:
    """Once it has heard of all that happened."""
    deadline = time.monotonic() + 30
    while True:
        found = await operator.decide(name)
        if found.deed is deed and words in found.why:
            return
        assert time.monotonic() < deadline, found
        await asyncio.sleep(0.01)


async def known(operator: Life, name: str) -> None:
    """There is an object for that one, once it is heard of that it is asked for."""
    while name not in operator.care.objects.known:
        await operator.reconcile()
        await asyncio.sleep(0.01)


class Shifts:
    """Operators one after the other, each a new one where they are to be `restarted`."""

    def __init__(self, cluster: MixedCluster, limit: int, *, restarted: bool) -> None:
        self._cluster = cluster
        self._limit = limit
        self._restarted = restarted
        self._stack = AsyncExitStack()
        self._operator: Life | None = None

    async def next(self) -> Life:
        if self._restarted or self._operator is None:
            await self._stack.aclose()
            self._operator = await self._stack.enter_async_context(life(self._cluster, self._limit))
        return self._operator

    async def __aenter__(self) -> Shifts:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("limit", [1, 2])
async def test_while_a_machine_is_replaced_entries_wait_and_go_on_when_the_new_one_is_ready(
    limit: int, restarted: bool
) -> None:
    """Also while an operator that comes after the one that began has seen nothing of it."""
    cluster = await mixed()
    async with Shifts(cluster, limit, restarted=restarted) as shifts:

        async def waits(why: str) -> None:
            operator = await shifts.next()
            said = "one changes at a time" if limit == 1 else "2 change at a time"
            if limit == 2:
                await decided(operator, FIRST, Deed.CORDON)
                why = f"{FIRST} does, {why}"
            await decided(operator, LAST, Deed.WAIT, f"{said}, and now {why}")
            operator.care.turns.withdraw(FIRST)

        async with life(cluster, api=DyingApi(cluster, 2)) as dying:
            acting = asyncio.create_task(dying.act("machine-a-1"))
            await until(lambda: "changingSince" in cluster.status("machine-a-1"))
            acting.cancel()
        assert "a-1" in cluster.machines(), "it began, and nothing was deleted yet"
        await waits("" if limit == 2 else "machine-a-1 does")
        operator = await shifts.next()
        assert (await operator.act("machine-a-1")).deed is Deed.REPLACE
        await waits("Machine a-1 leaves")
        await cluster.take_out("a-1")
        await waits("MachineSet a has to make another")
        await cluster.make("a-2")
        await waits("Machine a-2 is not a ready node yet")
        operator = await shifts.next()
        await known(operator, "machine-a-2")
        assert (await operator.act("machine-a-2")).deed is Deed.APPLY
        await waits("Machine a-2 is not a ready node yet")
        operator = await shifts.next()
        assert (await operator.act("machine-a-2")).deed is Deed.REST
        await decided(await shifts.next(), LAST, Deed.CORDON)


@pytest.mark.parametrize("restarted", [False, True])
async def test_while_an_entry_changes_machines_wait_and_go_on_when_it_is_well(
    restarted: bool,
) -> None:
    cluster = await mixed()
    async with Shifts(cluster, 1, restarted=restarted) as shifts:
        for deed in (Deed.CORDON, Deed.APPLY, Deed.UNCORDON, Deed.REST):
            assert (await (await shifts.next()).act(LAST)).deed is deed
            if deed is not Deed.REST:
                why = f"one changes at a time, and now {LAST} does"
                await decided(await shifts.next(), "machine-a-1", Deed.WAIT, why)
        await decided(await shifts.next(), "machine-a-1", Deed.REPLACE)


@pytest.mark.parametrize(
    ("first", "second"),
    [(FIRST, LAST), (FIRST, "machine-a-1"), ("machine-a-1", LAST), ("machine-a-1", "machine-b-1")],
)
@pytest.mark.parametrize("restarted", [False, True])
async def test_two_at_a_time_are_any_two(first: str, second: str, restarted: bool) -> None:
    cluster = await mixed()
    others = {FIRST, LAST, "machine-a-1", "machine-b-1"} - {first, second}
    async with Shifts(cluster, 2, restarted=restarted) as shifts:
        for name in (first, second):
            deed = Deed.REPLACE if name.startswith("machine-") else Deed.CORDON
            assert (await (await shifts.next()).act(name)).deed is deed
        assert cluster.down() == 2
        for name in others:
            await decided(await shifts.next(), name, Deed.WAIT, "2 change at a time, and now ")


@pytest.mark.parametrize("how", ["scaled down", "deleted", "being deleted"])
async def test_a_set_that_makes_no_other_is_not_waited_for(how: str) -> None:
    cluster = await mixed()
    await cluster.leave("a-1")
    async with life(cluster) as operator:
        await decided(operator, LAST, Deed.WAIT, "Machine a-1 leaves")
        if how == "scaled down":
            await cluster.set("a", 0)
        elif how == "deleted":
            await cluster.remove(f"{SETS}/a")
        else:
            await cluster.set("a", 1, deletionTimestamp=LEFT)
        await decided(operator, LAST, Deed.CORDON)


async def test_a_machine_that_was_taken_out_of_our_care_is_not_waited_for() -> None:
    cluster = await mixed()
    await cluster.make("a-1", labels={})
    async with life(cluster) as operator:
        await until(lambda: not operator.care.machines.stays("a-1"))
        await decided(operator, LAST, Deed.CORDON)


async def test_one_that_failed_while_it_changed_holds_both_kinds() -> None:
    cluster = await mixed()
    async with life(cluster, 3) as operator:
        await operator.act(LAST)
        await operator.care.objects.save(LAST, lambda status: setattr(status, "failure", "no"))
        for name in (FIRST, "machine-a-1"):
            await decided(operator, name, Deed.WAIT, f"{LAST} failed while it changed")
        await decided(operator, LAST, Deed.APPLY)


async def test_a_new_machine_that_cannot_become_a_node_holds_both_kinds() -> None:
    cluster = await mixed()
    async with life(cluster, 3) as operator:
        await operator.act("machine-a-1")
        await cluster.take_out("a-1")
        await cluster.make("a-2")
        await known(operator, "machine-a-2")
        await decided(operator, LAST, Deed.CORDON)
        operator.care.turns.withdraw(LAST)
        await operator.care.objects.save(
            "machine-a-2", lambda status: setattr(status, "failure", "no")
        )
        for name in (FIRST, LAST, "machine-b-1"):
            await decided(operator, name, Deed.WAIT, "machine-a-2 failed while it changed")


async def test_a_machine_that_cannot_be_replaced_now_keeps_nobody_waiting() -> None:
    """It wanted to before, and would have been the first."""
    cluster = await mixed()
    async with life(cluster) as operator:
        await operator.act(FIRST)
        await decided(operator, "machine-a-1", Deed.WAIT, f"{FIRST} does")
        await cluster.set("a", 1, ready=0)
        await decided(operator, "machine-a-1", Deed.WAIT, "0 of 1 are ready")
        for _ in range(3):
            await operator.act(FIRST)
        await decided(operator, LAST, Deed.CORDON)


async def test_a_machine_that_has_begun_is_replaced_also_when_its_set_is_not_whole_any_more() -> (
    None
):
    cluster = await mixed()
    await cluster.begin("machine-a-1")
    await cluster.set("a", 1, ready=0)
    async with life(cluster) as operator:
        await decided(operator, "machine-a-1", Deed.REPLACE)


@pytest.mark.parametrize("path", [folder(), SETS])
async def test_while_nobody_knows_which_machines_change_nobody_begins_and_who_has_begun_goes_on(
    path: str,
) -> None:
    cluster = await mixed()
    await cluster.begin(FIRST)
    await cluster.begin("machine-a-1")
    cluster.refuse(path, FORBIDDEN)
    async with life(cluster, 9) as operator:
        for name in (LAST, "machine-b-1"):
            await decided(operator, name, Deed.WAIT, "are not known, nor how many of them change")
            await decided(operator, name, Deed.WAIT, str(FORBIDDEN))
        await decided(operator, FIRST, Deed.CORDON)
        await decided(operator, "machine-a-1", Deed.REPLACE)


async def test_where_the_settings_name_no_machines_only_theirs_wait() -> None:
    cluster = await mixed()
    async with life(cluster, namespace="") as operator:
        await decided(operator, "machine-a-1", Deed.WAIT, "machineNamespace is empty")
        await decided(operator, LAST, Deed.CORDON)


@pytest.mark.parametrize("is_mortal", [False, True])
@pytest.mark.parametrize("limit", [1, 2, 3])
async def test_all_are_changed_in_the_end_and_never_more_at_a_time_however_operators_die(
    limit: int, is_mortal: bool
) -> None:
    """Lives of one write, of two, and so on; nobody waits until what was written is heard of."""
    cluster = await mixed()
    await cluster.set("c", 2)
    for name in ("c-1", "c-2"):
        await cluster.node_of_set(name)
    most, deaths = 0, 0

    async def work(operator: Life) -> None:
        nonlocal most
        for _ in range(10):
            await operator.reconcile()
            for name in sorted(operator.care.objects.known):
                if cluster.is_there(name):
                    await operator.act(name)
                most = max(most, cluster.down())
            await cluster.step()
            await asyncio.sleep(0.001)

    deadline = time.monotonic() + 60
    while not cluster.is_changed():
        assert time.monotonic() < deadline, (deaths, cluster.machines())
        api = DyingApi(cluster, deaths % 20 + 1) if is_mortal else cluster
        async with life(cluster, limit, api=api) as operator:
            working = asyncio.ensure_future(work(operator))
            dying = asyncio.ensure_future(api.died.wait() if isinstance(api, DyingApi) else working)
            await asyncio.wait({working, dying}, return_when=asyncio.FIRST_COMPLETED)
            deaths += not working.done()
            if working.done():
                working.result()
            for task in (working, dying):
                task.cancel()
            await asyncio.gather(working, dying, return_exceptions=True)
    assert most == limit
    assert bool(deaths) == is_mortal
