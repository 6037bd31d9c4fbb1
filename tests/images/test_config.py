from pathlib import Path

import pytest

from winpod.images.config import BasePolicy, Config, ImageSettings, read_config
from winpod.windows.builds import Build
from winpod.windows.errors import InvalidInput

WHOLE = """
root = "/srv/winpod"
host_build = "ltsc2019"

[images]
max_concurrent_downloads = 5
inactivity_timeout = 60
base_layers = "pull"
sync = true
"""


def write(home: Path, text: str) -> Path:
    path = home / ".config/winpod/config.toml"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    return path


def test_every_setting_has_a_default(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WINPOD_ROOT", str(home / "root"))
    write(home, "")
    assert read_config() == Config(home / "root", Build(10, 0, 20348), ImageSettings())
    assert ImageSettings() == ImageSettings(3, 300.0, BasePolicy.SKIP, False)


def test_every_setting_is_read(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(home, WHOLE)
    images = ImageSettings(5, 60.0, BasePolicy.PULL, True)
    assert read_config() == Config(Path("/srv/winpod"), Build(10, 0, 17763), images)
    monkeypatch.setenv("WINPOD_ROOT", "/elsewhere")
    assert read_config().root == Path("/elsewhere")


def test_the_environment_names_the_file(
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
    ("text", "says"),
    [
        ("root = [", "is not a configuration"),
        ("root = 5", '"root" is not text'),
        ("rot = 'x'", '"rot" is not a setting'),
        ("images = 5", '"images" is not a table'),
        ("[images]\nbase = 'skip'", '"images.base" is not a setting'),
        ("[images]\nbase_layers = 'none'", "'none' is not a valid BasePolicy"),
        ("[images]\nsync = 1", '"images.sync" is not true or false'),
        ("[images]\nmax_concurrent_downloads = 0", "from 1 to 64"),
        ("[images]\ninactivity_timeout = '5m'", "is not a number"),
        ("host_build = 'xp'", '"xp" is not a Windows build'),
    ],
)
def test_what_is_no_setting_is_refused(home: Path, text: str, says: str) -> None:
    path = write(home, text)
    with pytest.raises(InvalidInput) as caught:
        read_config()
    assert says in str(caught.value)
    assert str(path) in str(caught.value)
