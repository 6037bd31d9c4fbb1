"""Removal of directory trees."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from winpod.files import remove_tree


def deep(folder: Path, levels: int) -> None:
    """Create directories nested deeper than PATH_MAX."""
    here = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    for _ in range(levels):
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_RDONLY | os.O_DIRECTORY, dir_fd=here)
        os.close(here)
        here = below
    os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=here))
    os.close(here)


def test_tree_deeper_than_the_stack_is_removed(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    deep(tree, 10 * sys.getrecursionlimit())
    remove_tree(tree)
    assert list(tmp_path.iterdir()) == []


def test_every_file_type_is_removed_without_opening_it(tmp_path: Path) -> None:
    outside, tree = tmp_path / "outside", tmp_path / "tree"
    (outside / "kept").mkdir(parents=True)
    (tree / "a/b").mkdir(parents=True)
    os.mkfifo(tree / "a/fifo")
    (tree / "a/to-outside").symlink_to(outside)
    (tree / "dangling").symlink_to("nowhere")
    (tree / ("n" * 255)).touch()
    (tree / "a/b" / ("n" * 255)).mkdir()
    (tree / "a" / os.fsdecode(b"\xff\n")).touch()
    remove_tree(tree)
    assert list(tmp_path.iterdir()) == [outside]
    assert (outside / "kept").is_dir()


def test_mounts_in_a_tree_are_kept(tmp_path: Path) -> None:
    """Mounts that propagated from a container must be kept: they may be the Wine base."""
    outside, tree = tmp_path / "outside", tmp_path / "tree"
    (outside / "deep/er").mkdir(parents=True)
    (outside / "file").touch()
    for mount_point in (tree / "mounted", tree / "a/b/mounted"):
        mount_point.mkdir(parents=True)
        subprocess.run(["mount", "--bind", outside, mount_point], check=True)
    (tree / "other").mkdir()
    try:
        with pytest.raises(OSError, match="busy"):
            remove_tree(tree)
        remove_tree(tree, ignore_errors=True)
        assert not (tree / "other").exists()
        assert (outside / "file").exists()
        assert (outside / "deep/er").is_dir()
    finally:
        points = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
        for point in points:
            if point.startswith(str(tmp_path)):
                subprocess.run(["umount", "--lazy", point], check=True)
    remove_tree(tree)
    assert list(tmp_path.iterdir()) == [outside]


def test_unreadable_directories_are_removed_without_root(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "closed/inner").mkdir(parents=True)
    (tree / "closed/inner/file").touch()
    for folder in (tree / "closed/inner", tree / "closed", tree):
        os.chown(folder, 65534, 65534)
    (tree / "closed/inner").chmod(0)
    (tree / "closed").chmod(0)
    os.chown(tmp_path, 65534, 65534)
    script = """
import os
from pathlib import Path
from winpod.files import remove_tree
os.setuid(65534)
remove_tree(Path("tree"))
"""
    tmp_path.chmod(0o755)
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, check=False)
    assert done.returncode == 0
    assert not tree.exists()


def test_missing_tree_is_an_error_unless_ignored(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        remove_tree(tmp_path / "missing")
    remove_tree(tmp_path / "missing", ignore_errors=True)
