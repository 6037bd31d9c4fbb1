import gzip
import hashlib
import json
import os
import socket
import tarfile
from pathlib import Path
from typing import Any

import pytest

from winpod.errors import InvalidInput
from winpod.images.layout import open_layout, write_image
from winpod.images.manifests import OCI_INDEX, OCI_LAYER_GZIP, OCI_MANIFEST, ImageBundle
from winpod.images.pack import Compression, PackConfig, pack, parse_pack_config, read_content
from winpod.windows.builds import Build, parse_build

PLAIN = PackConfig()
B2019, B2022 = parse_build("10.0.17763.805"), parse_build("10.0.20348.2113")


@pytest.fixture
def c_drive(tmp_path: Path) -> Path:
    root = tmp_path / "c"
    (root / "app" / "données").mkdir(parents=True)
    (root / "app" / "app.exe").write_bytes(b"MZ" + b"\0" * 5000)
    (root / "app" / "données" / "a b.txt").write_text("text")
    (root / "app" / "current").symlink_to("données")
    (root / "app" / "around").symlink_to(f"../../{root.name}/empty")
    (root / "empty").mkdir()
    return root


def packed(
    root: Path, workspace: Path, *builds: Build, settings: PackConfig = PLAIN, **more: Any
) -> ImageBundle:
    workspace.mkdir(exist_ok=True)
    return pack(read_content(root), builds or (B2022,), settings, workspace, **more)


def documents(bundle: ImageBundle) -> dict[str, Any]:
    everything = (*bundle.blobs, *bundle.manifests)
    return {d.digest: json.loads(c) for d, c in everything if isinstance(c, bytes)}


def layer_paths(bundle: ImageBundle) -> dict[str, Path]:
    return {d.digest: c for d, c in bundle.blobs if isinstance(c, Path)}


def test_several_builds_have_an_index_and_share_the_content(c_drive: Path, tmp_path: Path) -> None:
    bundle = packed(c_drive, tmp_path / "w", B2022, B2019)
    assert bundle.root.media_type == OCI_INDEX
    known = documents(bundle)
    entries = known[bundle.root.digest]["manifests"]
    assert [e["platform"]["os.version"] for e in entries] == ["10.0.17763.805", "10.0.20348.2113"]
    layers = [[layer["digest"] for layer in known[e["digest"]]["layers"]] for e in entries]
    assert layers[0][0] != layers[1][0]
    assert layers[0][1] == layers[1][1]


def test_one_build_has_one_manifest(c_drive: Path, tmp_path: Path) -> None:
    assert packed(c_drive, tmp_path / "w", B2019).root.media_type == OCI_MANIFEST


def test_config_has_the_runtime_settings(c_drive: Path, tmp_path: Path) -> None:
    settings = parse_pack_config(
        entrypoint=r'C:\app\app.exe "a b"',
        cmd='["x", "y z"]',
        env=["A=1", "B=x=y"],
        workdir="/app",
        user="ContainerUser",
        ports=["80", "53/udp"],
        labels=["who=me"],
    )
    bundle = packed(c_drive, tmp_path / "w", B2019, settings=settings, architecture="arm64")
    known = documents(bundle)
    config = known[known[bundle.root.digest]["config"]["digest"]]
    assert config["config"] == {
        "Entrypoint": [r"C:\app\app.exe", "a b"],
        "Cmd": ["x", "y z"],
        "Env": ["A=1", "B=x=y"],
        "WorkingDir": r"C:\app",
        "User": "ContainerUser",
        "ExposedPorts": {"80/tcp": {}, "53/udp": {}},
        "Labels": {"who": "me"},
    }
    assert (config["os"], config["os.version"]) == ("windows", "10.0.17763.805")
    assert config["architecture"] == "arm64"
    assert config["history"][0]["created_by"] == "Apply image 10.0.17763.805"
    for layer, diff_id in zip(
        known[bundle.root.digest]["layers"], config["rootfs"]["diff_ids"], strict=True
    ):
        assert layer["mediaType"] == OCI_LAYER_GZIP
        stored = layer_paths(bundle)[layer["digest"]].read_bytes()
        assert layer["digest"] == "sha256:" + hashlib.sha256(stored).hexdigest()
        assert diff_id == "sha256:" + hashlib.sha256(gzip.decompress(stored)).hexdigest()


def test_layers_have_the_format_of_windows(c_drive: Path, tmp_path: Path) -> None:
    bundle = packed(c_drive, tmp_path / "w", B2019)
    base, content = (
        layer_paths(bundle)[layer["digest"]]
        for layer in documents(bundle)[bundle.root.digest]["layers"]
    )
    with tarfile.open(base) as tar:
        names = set(tar.getnames())
        assert {"Files/Windows/System32/ntdll.dll", "Hives/System_Base"} <= names
        assert "Files/Windows/System32/config/SOFTWARE" in names
        assert any(name.startswith("UtilityVM/Files/") for name in names)
        placeholder = tar.extractfile("Files/Windows/System32/ntdll.dll")
        assert placeholder
        assert b"placeholder" in (text := placeholder.read())
        assert b"10.0.17763.805" in text
    with tarfile.open(content) as tar:
        members = {member.name: member for member in tar}
    assert list(members) == [
        "Files",
        "Files/app",
        "Files/app/app.exe",
        "Files/app/around",
        "Files/app/current",
        "Files/app/données",
        "Files/app/données/a b.txt",
        "Files/empty",
        "Hives",
    ]
    attributes = {n: m.pax_headers["MSWINDOWS.fileattr"] for n, m in members.items()}
    assert attributes["Files/app"] == "16"
    assert attributes["Files/app/app.exe"] == "32"
    assert attributes["Files/app/current"] == str(0x410)
    assert members["Files/app/current"].linkname == "données"
    assert members["Files/app/around"].linkname == "../empty"
    assert {(m.mtime, m.uid, m.gid) for m in members.values()} == {(0, 0, 0)}


def copy_of(root: Path, target: Path) -> Path:
    """Create the same content in another order, at another time, with other modes."""
    target.mkdir()
    for path in sorted(root.rglob("*"), key=lambda p: (len(p.parts), p.name), reverse=True):
        copy = target / path.relative_to(root)
        copy.parent.mkdir(parents=True, exist_ok=True)
        if path.is_symlink():
            copy.symlink_to(target.resolve() / path.resolve().relative_to(root.resolve()))
        elif path.is_dir():
            copy.mkdir(exist_ok=True)
        else:
            copy.write_bytes(path.read_bytes())
            copy.chmod(0o600)
            os.utime(copy, (1, 1))
    return target


@pytest.mark.parametrize("compression", list(Compression))
def test_packing_is_reproducible(c_drive: Path, tmp_path: Path, compression: Compression) -> None:
    first = packed(c_drive, tmp_path / "w1", B2019, B2022, compression=compression)
    other = copy_of(c_drive, tmp_path / "other")
    second = packed(other, tmp_path / "w2", B2022, B2019, compression=compression)
    assert first.root == second.root
    (other / "app" / "app.exe").write_bytes(b"MZ")
    assert packed(other, tmp_path / "w3", B2019, B2022).root != first.root


def test_source_date_epoch_sets_all_times(
    c_drive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    bundle = packed(c_drive, tmp_path / "w")
    for path in layer_paths(bundle).values():
        with tarfile.open(path) as tar:
            assert {member.mtime for member in tar} == {1700000000}
    known = documents(bundle)
    config = known[known[bundle.root.digest]["config"]["digest"]]
    assert config["created"] == "2023-11-14T22:13:20Z"
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "yesterday")
    with pytest.raises(InvalidInput, match="SOURCE_DATE_EPOCH"):
        packed(c_drive, tmp_path / "w")


async def test_packed_image_is_readable(c_drive: Path, tmp_path: Path) -> None:
    write_image(tmp_path / "layout", "app:1", packed(c_drive, tmp_path / "w", B2019, B2022))
    layout = open_layout(tmp_path / "layout")
    image = await layout.describe("app:1", layout.find_by_name("app:1"))
    assert image.builds() == ("10.0.17763.805", "10.0.20348.2113")
    assert all(manifest.size > 0 for manifest in image.manifests)


def test_progress_counts_every_byte(c_drive: Path, tmp_path: Path) -> None:
    counted: list[int] = []
    packed(c_drive, tmp_path / "w", progress=counted.append)
    assert sum(counted) == read_content(c_drive).size == 5006


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("a:b", "':'"),
        ("nul.txt", "device"),
        ("end.", "dot"),
        (".wh.x", "deleted"),
        (os.fsdecode(b"\xff"), "UTF-8"),
    ],
)
def test_invalid_windows_names_are_rejected(c_drive: Path, name: str, says: str) -> None:
    (c_drive / "app" / name).touch()
    with pytest.raises(InvalidInput, match="cannot be the C: drive") as caught:
        read_content(c_drive)
    assert says in caught.value.message


def test_names_that_differ_only_in_case_are_rejected(c_drive: Path) -> None:
    (c_drive / "APP").mkdir()
    with pytest.raises(InvalidInput, match='"app" and "APP" differ only in case'):
        read_content(c_drive)


@pytest.mark.parametrize("target", ["/etc/passwd", "../../outside", "..", "/"])
def test_links_out_of_the_directory_are_rejected(c_drive: Path, target: str) -> None:
    (c_drive / "link").symlink_to(target)
    with pytest.raises(InvalidInput, match=r'"link" is a link to .*, outside of it'):
        read_content(c_drive)


def test_sockets_and_pipes_are_rejected(c_drive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(c_drive / "fifo")
    monkeypatch.chdir(c_drive)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")  # socket paths must be short
        with pytest.raises(InvalidInput, match="socket, a pipe or a device") as caught:
            read_content(c_drive)
    assert '"fifo"' in caught.value.message
    assert '"socket"' in caught.value.message


def test_at_most_ten_problems_are_listed(c_drive: Path) -> None:
    for number in range(13):
        (c_drive / f"{number:02}?").touch()
    with pytest.raises(InvalidInput, match="and 3 more"):
        read_content(c_drive)


def test_path_that_is_not_a_directory_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="does not exist"):
        read_content(tmp_path / "nowhere")
    (tmp_path / "file").touch()
    with pytest.raises(InvalidInput, match="is not a directory"):
        read_content(tmp_path / "file")


def test_file_truncated_during_packing_is_named(c_drive: Path, tmp_path: Path) -> None:
    content = read_content(c_drive)
    (c_drive / "app" / "app.exe").write_bytes(b"MZ")
    with pytest.raises(InvalidInput, match=r"app\.exe was truncated"):
        pack(content, [B2019], PackConfig(), tmp_path)


def test_unwritable_workspace_is_named(c_drive: Path) -> None:
    with pytest.raises(InvalidInput, match="cannot be written to"):
        pack(read_content(c_drive), [B2019], PackConfig(), c_drive / "nowhere")


@pytest.mark.parametrize("builds", [[], [B2019, B2019], [parse_build("2019"), parse_build("1809")]])
def test_missing_or_duplicate_builds_are_rejected(
    c_drive: Path, tmp_path: Path, builds: list[Build]
) -> None:
    with pytest.raises(InvalidInput):
        pack(read_content(c_drive), builds, PackConfig(), tmp_path)


def test_unsupported_architecture_is_rejected(c_drive: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="s390x"):
        packed(c_drive, tmp_path / "w", architecture="s390x")


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"env": ["=x"]}, "environment variable"),
        ({"env": ["x"]}, "environment variable"),
        ({"env": ["Path=1", "PATH=2"]}, '"PATH" is given twice'),
        ({"labels": ["=x"]}, "label"),
        ({"ports": ["0"]}, "port"),
        ({"ports": ["65536"]}, "port"),
        ({"ports": ["80/sctp"]}, "port"),
        ({"ports": ["http"]}, "port"),
        ({"entrypoint": '["a"'}, "--entrypoint"),
        ({"cmd": "[1]"}, "--cmd"),
    ],
)
def test_invalid_settings_are_explained(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_pack_config(**settings)
    assert says in caught.value.message
