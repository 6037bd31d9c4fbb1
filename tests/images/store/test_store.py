"""Image store: lookup, removal, garbage collection, concurrency and crash recovery."""

import asyncio
import contextlib
import multiprocessing
import os
import signal
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.pull_crash_points import killed_at_every_change
from tests.support.store_invariants import check, leftovers
from tests.support.windows_images import V2022, app_layer, bundle, large_layer, make, two_builds
from winpod.database import Database
from winpod.errors import InvalidInput
from winpod.files import FileLock
from winpod.images.errors import ImageNotPulled, StoreUnavailable
from winpod.images.layout import write_image
from winpod.images.pull.puller import pull
from winpod.images.store import database
from winpod.images.store.records import StoredImage
from winpod.images.store.store import BLOB, LAYER, Store
from winpod.windows.builds import DEFAULT_HOST, Build
from winpod.windows.handlers import (
    BUILTIN_HANDLERS,
    HYPERVISOR_HANDLER,
    PROCESS_HANDLER,
    UnknownHandler,
)

GUEST_2019 = BUILTIN_HANDLERS.get("runhcs-wcow-hypervisor-17763")
FORK = multiprocessing.get_context("fork")


@pytest.fixture
def layout(tmp_path: Path) -> Path:
    """Return a layout with two builds under one name, and another image."""
    path = tmp_path / "layout"
    write_image(path, "example/app:1", bundle(two_builds()))
    write_image(path, "example/app:2", bundle(two_builds()))
    write_image(path, "example/other:1", bundle([make(V2022, app_layer("other"))]))
    return path


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path / "root") as opened:
        yield opened


def add(
    store: Store, layout: Path, name: str, handler: str = "", host: Build = DEFAULT_HOST
) -> StoredImage:
    return asyncio.run(pull(store, f"oci:{layout}:{name}", BUILTIN_HANDLERS.get(handler), host))


def test_empty_store_has_no_images(store: Store) -> None:
    assert store.images() == []
    assert store.find("app:1") is None
    assert store.remove("app:1") == []
    assert store.usage().bytes == 0
    assert store.usage().mountpoint == store.root


def test_image_is_found_by_every_name(store: Store, layout: Path) -> None:
    image = add(store, layout, "example/app:1")
    assert add(store, layout, "example/app:2").id == image.id
    found = store.find("example/app:1")
    assert found
    assert found.tags == ("docker.io/example/app:1", "docker.io/example/app:2")
    (digest,) = found.digests
    names = ["docker.io/example/app:2", digest, image.id, image.id[7:], image.id[7:19]]
    names += [f"example/app@{image.manifest}", f"example/app:7@{digest.partition('@')[2]}"]
    assert {one.id for one in map(store.find, names) if one} == {image.id}
    assert all(map(store.find, names))
    for name in ("example/app:3", "other/app:1", "0" * 64, "example/app@" + image.id):
        assert store.find(name) is None


def test_ambiguous_id_prefix_is_rejected(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "many"
    ids: dict[str, str] = {}
    for number in range(1000):
        made = make(V2022, app_layer(str(number)))
        if (start := made.id[7:11]) in ids:
            break
        ids[start] = str(number)
    for name in (ids[start], str(number)):
        write_image(path, f"a:{name}", bundle([make(V2022, app_layer(name))]))
        add(store, path, f"a:{name}")
    with pytest.raises(InvalidInput, match="several image ids"):
        store.find(start)


def test_image_belongs_to_its_handler(store: Store, layout: Path) -> None:
    old = add(store, layout, "example/app:1", GUEST_2019.name)
    assert store.find("example/app:1") is None
    assert store.find("example/app:1", "containerd-hyperv-1809") == old
    new = add(store, layout, "example/app:1")
    assert new.id != old.id
    assert (new.os_version, old.os_version) == ("10.0.20348.2113", "10.0.17763.805")
    assert store.layers_of(new) == store.layers_of(old)
    assert store.images("docker") == [new]
    assert len(store.images()) == 2
    for call in (store.find, store.remove, store.pin):
        with pytest.raises(UnknownHandler):
            call("example/app:1", "runc")


def test_removal_for_one_handler_keeps_the_others(store: Store, layout: Path) -> None:
    old = add(store, layout, "example/app:1", GUEST_2019.name)
    new = add(store, layout, "example/app:1")
    assert store.remove("example/app:1", "docker") == [new]
    assert store.images() == [old]
    assert all(path.exists() for path in store.layers_of(old))
    assert store.content(old.manifest)
    store.remove(old.id)
    assert leftovers(store.root) == set()


def test_removal_by_one_tag_removes_all_tags_of_the_id(store: Store, layout: Path) -> None:
    for name in ("example/app:1", "example/app:2", "example/other:1"):
        add(store, layout, name)
    add(store, layout, "example/app:2", HYPERVISOR_HANDLER.name)
    store.remove("example/app:1", PROCESS_HANDLER.name)
    assert [(i.tags, i.handler) for i in store.images()] == [
        (("docker.io/example/app:2",), HYPERVISOR_HANDLER.name),
        (("docker.io/example/other:1",), PROCESS_HANDLER.name),
    ]


def test_removal_without_a_handler_removes_every_variant(store: Store, layout: Path) -> None:
    add(store, layout, "example/app:1")
    add(store, layout, "example/app:1", GUEST_2019.name)
    add(store, layout, "example/app:2", HYPERVISOR_HANDLER.name)
    assert len(store.remove("example/app:1")) == 3
    assert leftovers(store.root) == set()


def test_nodes_of_two_builds_share_only_content(tmp_path: Path, layout: Path) -> None:
    old, new = Build(10, 0, 17763), DEFAULT_HOST
    with Store(tmp_path / "root", host=old) as one, Store(tmp_path / "root", host=new) as other:
        on_old = add(one, layout, "example/app:1", host=old)
        on_new = add(other, layout, "example/app:1", host=new)
        assert one.images() == [on_old]
        assert other.images() == [on_new]
        assert one.layers_of(on_old) == other.layers_of(on_new)
        assert one.remove(on_new.id) == []
        one.remove("example/app:1")
        assert other.images() == [on_new]
        assert other.layers_of(on_new)


def test_moved_tag_keeps_the_old_image_by_digest(store: Store, layout: Path) -> None:
    old = add(store, layout, "example/app:1")
    write_image(layout, "example/app:1", bundle([make(V2022, app_layer("newer"))]))
    new = add(store, layout, "example/app:1")
    assert store.find("example/app:1") == new
    found = store.find(old.id)
    assert found
    assert found.tags == ()
    assert found.digests == old.digests


def test_retained_content_stays_until_released(store: Store, layout: Path) -> None:
    image = add(store, layout, "example/app:1")
    store.retain("container-1", image)
    store.retain("container-1", image)
    store.remove(image.id)
    assert store.images() == []
    assert all(path.exists() for path in store.layers_of(image))
    assert store.content(image.id)
    store.release("container-1")
    assert leftovers(store.root) == set()
    with pytest.raises(ImageNotPulled, match="winpod pull"):
        store.retain("container-2", image)


def test_pins_are_persisted_and_do_not_prevent_removal(store: Store, layout: Path) -> None:
    image = add(store, layout, "example/app:1")
    store.pin(image.id)
    add(store, layout, "example/app:1")
    (pinned,) = store.images()
    assert pinned.pinned
    store.unpin("example/app:1", "docker")
    assert not store.images()[0].pinned
    store.pin(image.id)
    assert store.remove(image.id)
    with pytest.raises(ImageNotPulled):
        store.pin(image.id)


def test_usage_equals_du(store: Store, tmp_path: Path) -> None:
    write_image(tmp_path / "big", "big", bundle([make(V2022, large_layer(2))]))
    add(store, tmp_path / "big", "big")
    found = subprocess.run(
        ["du", "-s", "-B1", *(store.root / part for part in ("layers", "content"))],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    assert abs(store.usage().bytes - sum(int(line.split()[0]) for line in found.splitlines())) < (
        1 << 14
    )
    assert store.usage().inodes >= 5
    assert store.images()[0].size > 2 << 20


def test_missing_layer_is_named_and_pulled_again(store: Store, layout: Path) -> None:
    image = add(store, layout, "example/app:1")
    (path,) = store.layers_of(image)
    subprocess.run(["rm", "-r", path], check=True)
    with pytest.raises(ImageNotPulled, match=f"{path.name}.*is missing"):
        store.layers_of(image)
    assert store.layers_of(add(store, layout, "example/app:1")) == [path]


def test_damaged_document_is_fetched_again(store: Store, layout: Path) -> None:
    image = add(store, layout, "example/app:1")
    path = store.root / "content" / image.manifest.replace(":", "/")
    path.write_bytes(b"{}")
    with pytest.raises(Exception, match=image.manifest):
        store.content(image.manifest)
    add(store, layout, "example/app:1")
    assert store.content(image.manifest)


def test_store_of_a_newer_version_is_rejected(tmp_path: Path) -> None:
    Store(tmp_path).close()
    connection = sqlite3.connect(tmp_path / "state.db")
    connection.execute(f"PRAGMA user_version = {len(database.MIGRATIONS) + 1}")
    connection.close()
    with pytest.raises(StoreUnavailable, match=r"version \d+.*created by a newer winpod"):
        Store(tmp_path)


def test_older_store_is_migrated(tmp_path: Path, layout: Path) -> None:
    with Store(tmp_path / "new") as store:
        image = add(store, layout, "example/app:1")
        rows = {
            table: store._database.execute(f"SELECT * FROM {table}").fetchall()
            for table in ("manifests", "manifest_layers", "layers", "images", "names", "documents")
        }
    (tmp_path / "new").rename(tmp_path / "old")
    (tmp_path / "old" / "state.db").unlink()
    connection = Database(tmp_path / "old" / "state.db", database.MIGRATIONS[:1])
    for table, content in rows.items():
        columns = [c[1] for c in connection.execute(f"PRAGMA table_info({table})")]
        marks = ", ".join("?" * len(columns))
        connection.executemany(
            f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks})",
            [[row[column] for column in columns] for row in content],
        )
    assert connection.execute("PRAGMA user_version").fetchone()[0] == 1
    connection.close()
    with Store(tmp_path / "old") as store:
        assert store.images() == [image]
        assert store.layers_of(image)
        store.retain("container", image)
        store.pin(image.id)
    check(tmp_path / "old")


def test_unusable_store_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreUnavailable, match="cannot be used"):
        Store(tmp_path / "file" / "root")
    Store(tmp_path / "root").close()
    (tmp_path / "root" / "state.db").write_bytes(b"not a connection, and longer than a header" * 50)
    with pytest.raises(StoreUnavailable, match=r"state\.db.*It is damaged"):
        Store(tmp_path / "root")


def _work_until_signalled(root: Path, ready: int, end: int) -> None:
    with Store(root) as store, store.lease("a pull") as lease:
        store.add_to_lease(lease, LAYER, "sha256:" + "1" * 64)
        store.add_to_lease(lease, BLOB, "sha256:" + "2" * 64)
        (lease.directory / "unpacking").mkdir()
        store.layer_path("sha256:" + "1" * 64).mkdir()
        store.blob_path("sha256:" + "2" * 64).write_bytes(b"half of")
        os.write(ready, b"!")
        os.read(end, 1)


@contextlib.contextmanager
def _busy_process(root: Path) -> Iterator[int]:
    """Run a process in the middle of a pull, and yield its pid."""
    (is_ready, ready), (end, tell) = os.pipe(), os.pipe()
    process = FORK.Process(target=_work_until_signalled, args=(root, ready, end))
    process.start()
    os.read(is_ready, 1)
    assert process.pid
    try:
        yield process.pid
    finally:
        os.write(tell, b"!")
        process.join()
        for descriptor in (is_ready, ready, end, tell):
            os.close(descriptor)


def test_work_of_a_live_process_is_kept(tmp_path: Path) -> None:
    with _busy_process(tmp_path):
        for _ in range(2):
            Store(tmp_path, grace_seconds=0).close()
        assert len(list(tmp_path.glob("ingest/session-*/unpacking"))) == 1
        assert len(list(tmp_path.glob("layers/*"))) == 1
        assert len(list(tmp_path.glob("ingest/blobs/*"))) == 1


def test_resumable_work_of_a_killed_process_is_kept_for_a_day(
    tmp_path: Path,
) -> None:
    with _busy_process(tmp_path) as pid:
        os.kill(pid, signal.SIGKILL)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        Store(tmp_path).close()
        assert not list(tmp_path.glob("ingest/session-*"))
        assert len(list(tmp_path.glob("layers/*"))) == 1
        assert len(list(tmp_path.glob("ingest/blobs/*"))) == 1
        Store(tmp_path, grace_seconds=0).close()
        assert leftovers(tmp_path) == set()


def _remove(root: Path, image: str, barrier: int) -> None:
    with Store(root) as store:
        os.read(barrier, 1)
        store.remove(image)


def test_concurrent_removals_of_an_image_succeed(tmp_path: Path, layout: Path) -> None:
    with Store(tmp_path / "root") as store:
        image = add(store, layout, "example/app:1")
    wait, start = os.pipe()
    removers = [
        FORK.Process(target=_remove, args=(tmp_path / "root", image.id, wait)) for _ in range(6)
    ]
    for remover in removers:
        remover.start()
    os.write(start, b"!" * 6)
    for remover in removers:
        remover.join()
    os.close(wait)
    os.close(start)
    assert [remover.exitcode for remover in removers] == [0] * 6
    assert leftovers(tmp_path / "root") == set()


def _open_often(root: Path) -> None:
    for _ in range(10):
        Store(root).close()


def test_store_is_created_concurrently(tmp_path: Path) -> None:
    openers = [FORK.Process(target=_open_often, args=(tmp_path / "root",)) for _ in range(6)]
    for opener in openers:
        opener.start()
    for opener in openers:
        opener.join()
    assert [opener.exitcode for opener in openers] == [0] * 6


def test_removed_lock_file_is_recreated(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    first = FileLock.acquire(path)
    assert FileLock.try_acquire(path) is None
    first.remove()
    second = FileLock.acquire(path)
    assert FileLock.try_acquire(path) is None
    second.release()


def test_removal_killed_at_any_change_leaves_a_consistent_store(
    tmp_path: Path, layout: Path
) -> None:
    with Store(tmp_path / "origin") as store:
        images = [add(store, layout, name) for name in ("example/app:1", "example/other:1")]
        store.retain("container", images[1])
    for number in range(1, 100):
        subprocess.run(["cp", "-a", tmp_path / "origin", tmp_path / str(number)], check=True)

    def act(root: Path) -> None:
        Store(root).remove("example/app:1")

    states = []
    for root in killed_at_every_change(tmp_path, act):
        check(root)
        assert leftovers(root) == set()
        with Store(root) as store:
            states.append(len(store.images()))
            assert images[1] in store.images()
    assert states == sorted(states, reverse=True)
    assert set(states) == {1, 2}
    assert len(states) > 12


def test_store_creation_killed_at_any_point_is_completed_later(tmp_path: Path) -> None:
    made = 0
    for root in killed_at_every_change(tmp_path, lambda path: Store(path).close()):
        made += 1
        check(root)
        assert leftovers(root) == set()
    assert made > 15
