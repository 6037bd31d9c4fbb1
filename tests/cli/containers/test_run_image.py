"""Image and handler selection of `winpod run`."""

import shutil
from pathlib import Path

import pytest

from tests.support.winpod_cli import winpod
from winpod.cli.containers.run_image import IsolationOption, PullPolicy, ensure_image, handler_for
from winpod.config import Config
from winpod.images.errors import ImageNotPulled, NoMatchingManifest
from winpod.windows.builds import DEFAULT_HOST
from winpod.windows.handlers import PROCESS_HANDLER


def packed(folder: Path, *options: str) -> str:
    (folder / "content").mkdir()
    (folder / "content/app.txt").touch()
    name = f"oci:{folder}/images:app"
    ran = winpod("image", "pack", f"{folder}/content", "-t", name, *options, home=folder)
    assert ran.code == 0, ran.err
    return name


async def refusal(image: str, isolation: IsolationOption, folder: Path) -> str:
    config = Config(root=folder / "root", host_build=DEFAULT_HOST)

    async def obtain() -> None:
        handler = await handler_for(image, isolation, PullPolicy.MISSING, config)
        await ensure_image(image, handler, PullPolicy.MISSING, config)

    with pytest.raises(NoMatchingManifest) as refused:
        await obtain()
    return str(refused.value)


async def test_older_image_is_rejected_with_advice(tmp_path: Path) -> None:
    message = await refusal(
        packed(tmp_path, "--os-version", "2019"), IsolationOption.PROCESS, tmp_path
    )
    assert "--host-build" in message
    assert "--isolation hypervisor" in message


async def test_newer_image_cannot_be_a_guest_of_an_older_host(tmp_path: Path) -> None:
    message = await refusal(
        packed(tmp_path, "--os-version", "2025"), IsolationOption.HYPERVISOR, tmp_path
    )
    assert "newer --host-build" in message


@pytest.mark.parametrize("isolation", list(IsolationOption))
async def test_image_of_another_architecture_gets_no_build_advice(
    tmp_path: Path, isolation: IsolationOption
) -> None:
    image = packed(tmp_path, "--os-version", "2019", "--arch", "arm64")
    message = await refusal(image, isolation, tmp_path)
    assert "has no windows/amd64 image; it has windows/arm64" in message
    assert "--host-build" not in message


async def test_guest_has_the_newest_build_that_fits_the_host(tmp_path: Path) -> None:
    builds = [option for build in ("2016", "2019", "2025") for option in ("--os-version", build)]
    config = Config(root=tmp_path / "root", host_build=DEFAULT_HOST)
    image = packed(tmp_path, *builds)
    handler = await handler_for(image, IsolationOption.HYPERVISOR, PullPolicy.MISSING, config)
    assert handler.name == "runhcs-wcow-hypervisor-17763"


async def test_stored_image_is_used_without_registry_access(tmp_path: Path) -> None:
    builds = ("--os-version", "2019", "--os-version", "2022")
    image = packed(tmp_path, *builds)
    config = Config(root=tmp_path / "root", host_build=DEFAULT_HOST)
    never = (IsolationOption.HYPERVISOR, PullPolicy.NEVER, config)
    stored = await ensure_image(image, PROCESS_HANDLER, PullPolicy.MISSING, config)
    shutil.rmtree(tmp_path / "images")
    with pytest.raises(ImageNotPulled):
        await handler_for("registry.example/other", *never)
    for name in (*stored.tags, stored.id):
        assert (await handler_for(name, *never)).name == "runhcs-wcow-hypervisor-20348"
