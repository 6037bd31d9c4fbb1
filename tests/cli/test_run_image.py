"""Which image `winpod run` takes, for which handler, and what it says where there is none."""

import shutil
from pathlib import Path

import pytest

from tests.cli.winpod import winpod
from winpod.cli.run_image import Isolation, PullPolicy, handler_for, obtain_image
from winpod.cri.config import Config
from winpod.images.errors import NoMatch, NotPulled
from winpod.windows.builds import DEFAULT_HOST
from winpod.windows.handlers import PROCESS


def packed(folder: Path, *options: str) -> str:
    (folder / "content").mkdir()
    (folder / "content/app.txt").touch()
    name = f"oci:{folder}/images:app"
    ran = winpod("image", "pack", f"{folder}/content", "-t", name, *options, home=folder)
    assert ran.code == 0, ran.err
    return name


async def refusal(image: str, isolation: Isolation, folder: Path) -> str:
    config = Config(root=folder / "root", host_build=DEFAULT_HOST)

    async def obtain() -> None:
        handler = await handler_for(image, isolation, PullPolicy.MISSING, config)
        await obtain_image(image, handler, PullPolicy.MISSING, config)

    with pytest.raises(NoMatch) as refused:
        await obtain()
    return str(refused.value)


async def test_an_older_image_is_refused_with_both_ways_to_run_it(tmp_path: Path) -> None:
    said = await refusal(packed(tmp_path, "--os-version", "2019"), Isolation.PROCESS, tmp_path)
    assert "--host-build" in said
    assert "--isolation hypervisor" in said


async def test_a_newer_image_has_no_guest_on_an_older_host(tmp_path: Path) -> None:
    said = await refusal(packed(tmp_path, "--os-version", "2025"), Isolation.HYPERVISOR, tmp_path)
    assert "newer --host-build" in said


@pytest.mark.parametrize("isolation", list(Isolation))
async def test_no_build_helps_an_image_for_another_processor(
    tmp_path: Path, isolation: Isolation
) -> None:
    image = packed(tmp_path, "--os-version", "2019", "--arch", "arm64")
    said = await refusal(image, isolation, tmp_path)
    assert "has no windows/amd64 image; it has windows/arm64" in said
    assert "--host-build" not in said


async def test_the_guest_is_the_newest_that_the_host_takes(tmp_path: Path) -> None:
    builds = [word for build in ("2016", "2019", "2025") for word in ("--os-version", build)]
    config = Config(root=tmp_path / "root", host_build=DEFAULT_HOST)
    image = packed(tmp_path, *builds)
    handler = await handler_for(image, Isolation.HYPERVISOR, PullPolicy.MISSING, config)
    assert handler.name == "runhcs-wcow-hypervisor-17763"


async def test_nobody_is_asked_about_an_image_that_is_stored(tmp_path: Path) -> None:
    builds = ("--os-version", "2019", "--os-version", "2022")
    image = packed(tmp_path, *builds)
    config = Config(root=tmp_path / "root", host_build=DEFAULT_HOST)
    never = (Isolation.HYPERVISOR, PullPolicy.NEVER, config)
    stored = await obtain_image(image, PROCESS, PullPolicy.MISSING, config)
    shutil.rmtree(tmp_path / "images")
    with pytest.raises(NotPulled):
        await handler_for("registry.example/other", *never)
    for name in (*stored.tags, stored.id):
        assert (await handler_for(name, *never)).name == "runhcs-wcow-hypervisor-20348"
