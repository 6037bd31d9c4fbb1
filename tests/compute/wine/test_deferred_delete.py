"""Deferred deletion removes each directory once."""

import asyncio
from pathlib import Path

from winpod.compute.wine.backend import DeferredDelete


async def test_directory_added_during_cleanup_is_deleted_once(tmp_path: Path) -> None:
    cleared: list[str] = []
    began, may_go = asyncio.Event(), asyncio.Event()

    async def clear(folder: Path) -> None:
        cleared.append(folder.name)
        began.set()
        await may_go.wait()
        await asyncio.to_thread(folder.rmdir)

    (tmp_path / "place/old").mkdir(parents=True)
    (tmp_path / "new").mkdir()
    deferred = DeferredDelete(tmp_path / "place", clear)
    opening = asyncio.create_task(deferred.open())
    await began.wait()
    await deferred.add(tmp_path / "new")
    may_go.set()
    await opening
    await deferred.close()
    assert cleared == ["old", "new"]
    assert not list((tmp_path / "place").iterdir())
