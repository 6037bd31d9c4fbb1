"""Unpack workers: streaming, full disks, and kills at any point."""

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest
from aiohttp import web

from tests.support.layer_archives import archive, file, folder, hard_link, link
from tests.support.layer_server import broken_off, serving
from tests.support.pull_crash_points import killed_at_every_change
from tests.support.pulls import FORK, pull_alone, pull_as, push, store, until
from tests.support.store_invariants import check, leftovers
from tests.support.windows_images import Layer, bundle, large_layer, layer, two_builds
from winpod.images.errors import DiskFull
from winpod.images.layers.unpack import unpack_layer
from winpod.images.pull import unpack_worker
from winpod.images.pull.unpack_worker import UnpackJob
from winpod.images.references import parse_reference
from winpod.images.registry.push import push_image
from winpod.images.store.store import Store

__all__ = ["store"]


def _run_worker(tmp_path: Path, made: Layer, counts: list[int], **changes: Any) -> dict[str, Any]:
    (tmp_path / "blob").write_bytes(b"before" + made.content)
    lines: SimpleQueue[str] = SimpleQueue()
    for count in counts:
        lines.put(f"{count}\n")
    job = UnpackJob(
        path=str(tmp_path / "blob"),
        offset=len(b"before"),
        size=made.descriptor.size,
        digest=made.descriptor.digest,
        target=str(tmp_path / "target"),
    )
    return unpack_worker._answer(replace(job, **changes), lines)


def test_layer_is_unpacked_while_it_arrives(tmp_path: Path) -> None:
    made = large_layer(1)
    answer = _run_worker(tmp_path, made, [1, 100_000, made.descriptor.size])
    assert answer["diff_id"] == made.diff_id
    assert answer["bytes"] > 1 << 20
    assert answer["inodes"] == 5
    assert (tmp_path / "target/Files/app/noise.bin").stat().st_size == 1 << 20


def test_layer_uses_the_spelling_of_the_base(tmp_path: Path) -> None:
    (tmp_path / "c/windows/system32").mkdir(parents=True)
    made = layer({"Files/Windows/System32/a.dll": b"a"})
    _run_worker(tmp_path, made, [made.descriptor.size], drive_c=str(tmp_path / "c"))
    assert (tmp_path / "target/Files/windows/system32/a.dll").exists()


@pytest.mark.parametrize(
    ("changes", "kind", "says"),
    [
        ({"digest": "sha256:" + "0" * 64}, "DigestMismatch", "has the digest sha256:"),
        ({"offset": 0}, "DigestMismatch", "has the digest sha256:"),
        ({"offset": 500}, "CorruptContent", "was truncated"),
        ({"target": "/proc/nothing/here"}, "WinpodError", "could not be unpacked"),
    ],
)
def test_worker_returns_errors(
    tmp_path: Path, changes: dict[str, Any], kind: str, says: str
) -> None:
    made = large_layer(1)
    answer = _run_worker(tmp_path, made, [made.descriptor.size], **changes)
    assert answer["error"] == kind
    assert says in answer["message"]


@contextmanager
def small_disk(path: Path, size: str) -> Iterator[Path]:
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", path], check=True)
    try:
        yield path
    finally:
        subprocess.run(["umount", path], check=True)


@pytest.mark.parametrize("size", ["2M", "5M"], ids=["while downloading", "while unpacking"])
async def test_full_disk_is_reported_and_space_is_freed(
    registry: str, tmp_path: Path, size: str
) -> None:
    name = await push(registry, "full/app:1", bundle(two_builds(large_layer(3))))
    small = await push(registry, "full/app:2", bundle(two_builds()))
    with small_disk(tmp_path / "disk", size) as disk, Store(disk / "root") as store:
        with pytest.raises(DiskFull, match="No space left"):
            await pull_as(store, name)
        assert leftovers(store.root) == set()
        assert await pull_as(store, small)
        check(store.root)


def test_pull_killed_at_any_change_is_completed_by_the_next(registry: str, tmp_path: Path) -> None:
    name = f"{registry}/killed/app:1"
    asyncio.run(push_image(parse_reference(name), bundle(two_builds(large_layer(1)))))
    count = 0
    for root in killed_at_every_change(tmp_path, lambda path: pull_alone(path, name)):
        count += 1
        if root.exists():
            check(root)
        pull_alone(root, name)
        assert leftovers(root) == set()
        check(root)
        with Store(root) as store:
            assert store.find(name)
    assert count > 40


def _unpack_and_exit(root: Path, pieces: list[bytes], number: int) -> None:
    def until_death() -> Iterator[bytes]:
        yield from pieces[:number]
        os.kill(os.getpid(), signal.SIGKILL)

    with Store(root) as store:
        target = store.work_directory().directory / "layer"
        target.mkdir()
        unpack_layer(until_death(), target, compression="none")


def test_unpack_killed_at_any_point_leaves_nothing(tmp_path: Path) -> None:
    items = (
        folder("Files"),
        file("Files/app/one.txt", b"1" * 700),
        hard_link("Files/app/two.txt", "Files/app/one.txt"),
        link("Files/app/three", "one.txt"),
        file("Files/app/.wh.gone", b""),
        folder("Hives"),
        file("Hives/System_Delta", b"hive"),
    )
    data = archive(*items)
    pieces = [data[at : at + 512] for at in range(0, len(data), 512)]
    for number in range(len(pieces) + 1):
        root = tmp_path / str(number)
        process = FORK.Process(target=_unpack_and_exit, args=(root, pieces, number))
        process.start()
        process.join()
        assert process.exitcode == -signal.SIGKILL
        assert leftovers(root) == set()
        check(root)


def test_workers_exit_when_the_pull_is_killed(tmp_path: Path) -> None:
    large = large_layer(2)

    async def half(request: web.Request, content: bytes, start: int) -> web.StreamResponse:
        kept = tmp_path / "ingest/blobs" / large.descriptor.digest.replace(":", "-")
        return await broken_off(request, content, start, len(content) // 2, kept)

    async def scenario() -> None:
        image = bundle(two_builds(large))
        async with serving(image, half, large.descriptor.digest) as (_, address):
            process = FORK.Process(target=pull_alone, args=(tmp_path, f"{address}/app:1"))
            process.start()
            await until(lambda: any(tmp_path.glob("ingest/session-*/*/Files")))
            process.kill()
            await asyncio.to_thread(process.join)

    asyncio.run(scenario())
    deadline = time.monotonic() + 120
    while list(tmp_path.glob("ingest/session-*")):
        Store(tmp_path).close()
        assert time.monotonic() < deadline, "an unpacker still holds its session"
        time.sleep(0.02)
    check(tmp_path)
