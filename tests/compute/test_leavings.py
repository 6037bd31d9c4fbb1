"""What was removed is cleared once, whoever asks for it."""

import asyncio
from pathlib import Path

from winpod.compute.leavings import Leavings


async def test_what_comes_while_an_earlier_start_is_cleared_waits_its_turn(tmp_path: Path) -> None:
    cleared: list[str] = []
    began, may_go = asyncio.Event(), asyncio.Event()

    async def clear(folder: Path) -> None:
        cleared.append(folder.name)
        began.set()
        await may_go.wait()
        await asyncio.to_thread(folder.rmdir)

    (tmp_path / "place/old").mkdir(parents=True)
    (tmp_path / "new").mkdir()
    leavings = Leavings(tmp_path / "place", clear)
    opening = asyncio.create_task(leavings.open())
    await began.wait()
    await leavings.take(tmp_path / "new")
    may_go.set()
    await opening
    await leavings.close()
    assert cleared == ["old", "new"]
    assert not list((tmp_path / "place").iterdir())
