import contextlib
import io
import json
import multiprocessing
import os
import signal
import sys
import tarfile
from pathlib import Path
from types import FrameType

import pytest

from tests.support.image_samples import LINUX, index, single, stored, windows
from winpod.errors import InvalidInput, WinpodError
from winpod.images import layout
from winpod.images.errors import CorruptContent, ImageNotFound
from winpod.images.layout import FULL_NAME, SHORT_NAME, Layout, open_layout, write_image
from winpod.images.manifests import ImageBundle, compute_digest, platform_as_json
from winpod.images.references import parse_reference

V2019, V2022 = windows("10.0.17763.805"), windows("10.0.20348.2113")


async def builds(path: Path, name: str) -> tuple[str, ...]:
    with contextlib.closing(open_layout(path)) as layout:
        return (await layout.describe(name, layout.find_by_name(name))).builds()


def archive(directory: Path, target: Path, mode: str = "w") -> Path:
    with tarfile.open(target, mode) as tar:  # type: ignore[call-overload]
        tar.add(directory, arcname=".")
    return target


async def test_image_is_found_by_any_form_of_its_name(tmp_path: Path) -> None:
    write_image(tmp_path, "user/app:1", index(V2019, V2022))
    for name in ("user/app:1", "docker.io/user/app:1", ""):
        assert await builds(tmp_path, name) == ("10.0.17763.805", "10.0.20348.2113")
    layout = open_layout(tmp_path)
    assert layout.find(parse_reference("user/app:1"))
    assert layout.find(parse_reference("user/app:2")) is None


async def test_digest_is_found_under_any_name(tmp_path: Path) -> None:
    bundle = index(V2019, V2022)
    write_image(tmp_path, "app:1", bundle)
    layout = open_layout(tmp_path)
    for descriptor, _ in bundle.manifests:
        found = layout.find(parse_reference(f"other/name@{descriptor.digest}"))
        assert found
        assert (await layout.describe("x", found)).digest == descriptor.digest
    assert layout.find(parse_reference("app@sha256:" + "0" * 64)) is None


async def test_writing_replaces_only_the_image_of_the_same_name(tmp_path: Path) -> None:
    write_image(tmp_path, "app:1", single(V2019))
    write_image(tmp_path, "other", single(LINUX))
    write_image(tmp_path, "docker.io/library/app:1", single(V2022))
    assert await builds(tmp_path, "app:1") == ("10.0.20348.2113",)
    assert open_layout(tmp_path).names == ("docker.io/library/app:1", "other")


async def test_bare_tag_is_only_a_name_within_its_layout(tmp_path: Path) -> None:
    write_image(tmp_path, "", single(V2019))
    document = json.loads((tmp_path / "index.json").read_text())
    document["manifests"][0]["annotations"] = {SHORT_NAME: "v1"}
    (tmp_path / "index.json").write_text(json.dumps(document))
    assert await builds(tmp_path, "v1") == ("10.0.17763.805",)
    assert open_layout(tmp_path).find(parse_reference("v1")) is None


def test_empty_name_requires_a_single_image(tmp_path: Path) -> None:
    write_image(tmp_path, "a", single(V2019))
    write_image(tmp_path, "b", single(V2022))
    layout = open_layout(tmp_path)
    with pytest.raises(InvalidInput, match=r"several images.*a, b"):
        layout.find_by_name("")
    with pytest.raises(ImageNotFound, match=r"no image.*It has: a, b"):
        layout.find_by_name("c")


@pytest.mark.parametrize("mode", ["w", "w:gz"])
async def test_archives_are_read_like_directories(tmp_path: Path, mode: str) -> None:
    write_image(tmp_path / "layout", "app:1", index(V2019, V2022))
    path = archive(tmp_path / "layout", tmp_path / "layout.tar", mode)
    assert await builds(path, "app:1") == ("10.0.17763.805", "10.0.20348.2113")


async def test_older_docker_save_format_is_read(tmp_path: Path) -> None:
    rootfs = {"type": "layers", "diff_ids": [compute_digest(b"12")]}
    platform = platform_as_json(windows("10.0.17763.1"))
    _, config = stored("", {**platform, "rootfs": rootfs})
    listed = [{"Config": "c.json", "RepoTags": ["app:1"], "Layers": ["l/layer.tar"]}]
    files = {"manifest.json": json.dumps(listed).encode(), "c.json": config, "l/layer.tar": b"12"}
    path = tmp_path / "save.tar"
    with tarfile.open(path, "w") as tar:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    layout = open_layout(path)
    entry = layout.find(parse_reference("app:1"))
    assert entry
    image = await layout.describe("app:1", entry)
    assert image.builds() == ("10.0.17763.1",)
    assert image.manifests[0].size == len(config) + 2


def test_path_that_is_not_a_layout_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="does not exist"):
        open_layout(tmp_path / "nowhere")
    with pytest.raises(InvalidInput, match="no oci-layout"):
        open_layout(tmp_path)
    (tmp_path / "file").write_text("text")
    with pytest.raises(InvalidInput, match=r"not a complete tar archive: [^\n]*$"):
        open_layout(tmp_path / "file")
    empty = archive(tmp_path, tmp_path.parent / "other.tar")
    with pytest.raises(InvalidInput, match="not an image archive"):
        open_layout(empty)
    with pytest.raises(InvalidInput, match="not empty and not an OCI layout"):
        write_image(tmp_path, "app", single(V2019))


@pytest.mark.parametrize("mode", ["w:gz", "w:xz", "w:bz2"])
def test_damaged_archive_raises_only_winpod_errors(tmp_path: Path, mode: str) -> None:
    write_image(tmp_path / "layout", "app:1", index(V2019, V2022))
    path = archive(tmp_path / "layout", tmp_path / "layout.tar", mode)
    whole = path.read_bytes()
    for at in range(0, len(whole), max(1, len(whole) // 60)):
        path.write_bytes(whole[:at] + b"\xaa\x55\xaa" + whole[at + 3 :])
        with contextlib.suppress(WinpodError):
            open_layout(path).close()


async def test_damaged_blob_is_detected(tmp_path: Path) -> None:
    bundle = single(V2019)
    write_image(tmp_path, "app", bundle)
    blob = tmp_path / "blobs" / bundle.root.digest.replace(":", "/")
    blob.write_bytes(b" " * bundle.root.size)
    with pytest.raises(CorruptContent, match="damaged"):
        await builds(tmp_path, "app")
    blob.unlink()
    with pytest.raises(ImageNotFound, match="incomplete"):
        await builds(tmp_path, "app")


def test_unwritable_directory_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InvalidInput, match="cannot be written"):
        write_image(tmp_path / "file" / "layout", "app", single(V2019))


def complete_images(path: Path) -> set[str]:
    """Return the names in a layout after verifying their content."""
    layout = open_layout(path)
    for name in layout.names:
        _check_blobs(path, layout.find_by_name(name).digest)
    return set(layout.names)


def _check_blobs(path: Path, digest: str) -> None:
    _, data = stored("", (path / "blobs" / digest.replace(":", "/")).read_bytes())
    assert stored("", data)[0].digest == digest
    if data.startswith(b"{"):
        document = json.loads(data)
        for entry in (*document.get("manifests", ()), *document.get("layers", ())):
            _check_blobs(path, entry["digest"])


def _die_at_line(number: int, path: Path, bundle: ImageBundle) -> None:
    lines = 0

    def trace(frame: FrameType, event: str, _: object) -> object:
        nonlocal lines
        if frame.f_code.co_filename != layout.__file__:
            return None
        lines += event == "line"
        if lines == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return trace

    sys.settrace(trace)  # type: ignore[arg-type]
    write_image(path, "new", bundle)


@pytest.mark.parametrize("exists", [False, True], ids=["new-layout", "existing-layout"])
def test_writer_killed_at_any_line_leaves_complete_images(tmp_path: Path, exists: bool) -> None:
    fork = multiprocessing.get_context("fork")
    bundle = index(V2019, V2022)
    for number in range(1, 1000):
        path = tmp_path / str(number)
        if exists:
            write_image(path, "old", single(LINUX))
        process = fork.Process(target=_die_at_line, args=(number, path, bundle))
        process.start()
        process.join()
        before = {"old"} if exists else set()
        if (path / "oci-layout").exists():
            assert complete_images(path) in (before, before | {"new"})
        if process.exitcode == 0:
            break
        assert process.exitcode == -signal.SIGKILL
        write_image(path, "new", bundle)
        assert complete_images(path) == before | {"new"}
        assert not list(path.glob(".tmp-*"))
    else:
        pytest.fail("the writer never came to its end")
    assert number > 50


def _write_many(path: Path, number: int) -> None:
    for i in range(5):
        write_image(path, f"app-{number}-{i}", single(windows(f"10.0.20348.{number}")))


def test_concurrent_writers_lose_no_images(tmp_path: Path) -> None:
    fork = multiprocessing.get_context("fork")
    writers = [fork.Process(target=_write_many, args=(tmp_path, n)) for n in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0] * 4
    assert len(complete_images(tmp_path)) == 20


def test_name_annotations_are_those_of_other_tools(tmp_path: Path) -> None:
    write_image(tmp_path, "user/app:1", single(V2019))
    document = json.loads((tmp_path / "index.json").read_text())
    assert document["manifests"][0]["annotations"] == {
        FULL_NAME: "docker.io/user/app:1",
        SHORT_NAME: "user/app:1",
    }
    assert isinstance(open_layout(tmp_path), Layout)
