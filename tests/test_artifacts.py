"""Builds, removal and recovery of artifact directories."""

from pathlib import Path

import pytest

from winpod.artifacts import ArtifactDirectory


class Interrupted(Exception):
    pass


def names(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.iterdir())


def test_new_artifact_replaces_others_and_an_equal_one_is_kept(tmp_path: Path) -> None:
    (tmp_path / "old/tree").mkdir(parents=True)
    artifacts = ArtifactDirectory(tmp_path)
    with artifacts.lock():
        for content in ("new", "equal"):
            with artifacts.building() as work:
                (work / content).touch()
                final = artifacts.save(work, "kit")
            artifacts.keep_only(final)
    assert names(tmp_path) == [".lock", "kit"]
    assert names(tmp_path / "kit") == ["new"]
    assert artifacts.complete() == [tmp_path / "kit"]


@pytest.mark.parametrize("mode", [0o755, 0o700])
def test_artifact_has_its_mode(tmp_path: Path, mode: int) -> None:
    artifacts = ArtifactDirectory(tmp_path, mode=mode)
    with artifacts.building() as work:
        final = artifacts.save(work, "kit")
    assert final.stat().st_mode & 0o777 == mode


def test_failed_build_leaves_nothing(tmp_path: Path) -> None:
    artifacts = ArtifactDirectory(tmp_path / "kits")

    def build() -> None:
        with artifacts.lock(), artifacts.building() as work:
            (work / "file").touch()
            raise Interrupted

    with pytest.raises(Interrupted):
        build()
    assert names(tmp_path / "kits") == [".lock"]
    assert artifacts.complete() == []


def test_directories_of_crashed_builds_and_removals_are_swept(tmp_path: Path) -> None:
    for name in (".building-1/tree", ".removing-kit/tree", "kit/tree"):
        (tmp_path / name).mkdir(parents=True)
    artifacts = ArtifactDirectory(tmp_path)
    assert artifacts.complete() == [tmp_path / "kit"]
    artifacts.sweep()
    assert names(tmp_path) == ["kit"]
