"""The configuration file: all keys, and errors for invalid ones."""

from ipaddress import IPv4Network
from pathlib import Path

import pytest

from tests.support.registries import home
from winpod.compute.hypervisor.vm_annotations import parse_vm_annotations
from winpod.config import (
    BaseLayerPolicy,
    ComputeKind,
    Config,
    ImageSettings,
    NetworkSettings,
    RuntimeSettings,
    read_config,
)
from winpod.errors import InvalidInput
from winpod.windows.builds import Build
from winpod.windows.handlers import BUILTIN_HANDLERS, Handler
from winpod.windows.isolation import Isolation

__all__ = ["home"]

WHOLE = """
root = "/srv/winpod"
host_build = "ltsc2019"

[images]
max_concurrent_downloads = 5
inactivity_timeout = 60
base_layers = "pull"
sync = true

[handlers.legacy]
isolation = "hypervisor"
guest_build = "1809"
aliases = ["old"]

[network]
plugins = ["/opt/plugins"]
subnets = ["10.9.0.0/24"]

[runtime]
socket = "/run/other.sock"
tcp = "127.0.0.1:5000"
compute = "simulated"
warm_shells = 0
oci_runtime = "crun"
log_level = "debug"
"""


def write(home: Path, text: str) -> Path:
    path = home / ".config/winpod/config.toml"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    return path


def test_every_setting_has_a_default(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WINPOD_ROOT", str(home / "root"))
    write(home, "")
    assert read_config() == Config(home / "root", Build(10, 0, 20348), handlers=BUILTIN_HANDLERS)
    assert ImageSettings() == ImageSettings(3, 300.0, BaseLayerPolicy.SKIP, False)


def test_every_setting_is_read(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(home, WHOLE)
    config = read_config()
    assert (config.root, config.host_build) == (Path("/srv/winpod"), Build(10, 0, 17763))
    assert config.images == ImageSettings(5, 60.0, BaseLayerPolicy.PULL, True)
    legacy = Handler("legacy", Isolation.HYPERVISOR, Build(10, 0, 17763))
    assert config.handlers.get("legacy") == config.handlers.get("old") == legacy
    subnets = (IPv4Network("10.9.0.0/24"),)
    assert config.network == NetworkSettings(None, (Path("/opt/plugins"),), subnets)
    assert config.runtime == RuntimeSettings(
        Path("/run/other.sock"), "127.0.0.1:5000", ComputeKind.SIMULATED, 0, "crun", "debug"
    )
    monkeypatch.setenv("WINPOD_ROOT", "/elsewhere")
    assert read_config().root == Path("/elsewhere")


def test_documented_example_has_both_vm_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    example = Path(__file__).parents[1] / "examples/reserve/config.toml"
    monkeypatch.setenv("WINPOD_CONFIG", str(example))
    handlers = read_config().handlers
    reserve, two_cores = (
        parse_vm_annotations(dict(handlers.get(f"runhcs-wcow-hypervisor-{size}").annotations))
        for size in ("reserve", "reserve-2core")
    )
    assert (reserve.reserved, reserve.processors) == (True, 0)
    assert (two_cores.reserved, two_cores.processors) == (True, 2)


def test_config_file_is_named_by_the_environment(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(home, "root = 5")
    (tmp_path / "other.toml").write_text('root = "/other"')
    monkeypatch.setenv("WINPOD_CONFIG", str(tmp_path / "other.toml"))
    assert read_config().root == Path("/other")
    monkeypatch.setenv("WINPOD_CONFIG", str(tmp_path / "missing.toml"))
    with pytest.raises(InvalidInput, match="does not exist"):
        read_config()
    monkeypatch.setenv("WINPOD_CONFIG", str(tmp_path))
    with pytest.raises(InvalidInput, match="cannot be read"):
        read_config()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("root = [", "is not a valid configuration"),
        ("root = 5", "root must be text"),
        ("rot = 'x'", "rot is not a setting (there are handlers, host_build,"),
        ("images = 5", "images must be a mapping"),
        ("[images]\nbase = 'skip'", "images.base is not a setting"),
        ("[images]\nbase_layers = 'none'", 'images.base_layers is "none"'),
        ("[images]\nsync = 1", "images.sync must be true or false"),
        ("[images]\nmax_concurrent_downloads = 0", "from 1 to 64"),
        ("[images]\ninactivity_timeout = '5m'", "must be a number"),
        ("host_build = 'xp'", '"xp" is not a Windows build'),
        ("[handlers.new]", "handlers.new.isolation is required"),
        ("[network]\nsubnets = ['10.0.0.1/8']", "network.subnets[0] is not a valid subnet"),
        ("[network]\ncni = '/c'\nsubnets = ['10.0.0.0/8']", "cannot be combined with network.cni"),
        ("[runtime]\ncompute = 'docker'", "one of wine, simulated"),
        ("[runtime]\nwarm_shells = -1", "from 0 to 100"),
    ],
)
def test_invalid_setting_is_rejected(home: Path, text: str, message: str) -> None:
    path = write(home, text)
    with pytest.raises(InvalidInput) as caught:
        read_config()
    assert message in str(caught.value)
    assert str(path) in str(caught.value)
