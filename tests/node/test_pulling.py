"""Images for pods: kept under the names that pods have for them, pulled no more than is needed."""

from pathlib import Path
from typing import Any

from tests.node.small_node import SmallNode, pod_of
from winpod.cli.main import app
from winpod.cri.rpc import Client


def pack(folder: Path, content: str, build: str = "2022") -> str:
    (folder / "content").mkdir(exist_ok=True)
    (folder / "content/file").write_text(content)
    name = f"oci:{folder}/layout:1"
    line = ["image", "pack", str(folder / "content"), "-t", name, "--os-version", build]
    app(line, standalone_mode=False)
    return name


async def test_an_image_in_a_directory_is_pulled_again_only_when_it_is_another(
    node: SmallNode, client: Client, tmp_path: Path
) -> None:
    image = pack(tmp_path, "first")

    def told() -> Any:
        return (node.said.last("uid-web").containerStatuses or [None])[0]

    async with node.engine(client) as engine:
        engine.set(pod_of(image, "web", "simulate 1 0.1"))
        await node.until(lambda: told() and told().restartCount > 1)
        assert node.said.reasons("uid-web").count("Pulling") == 1
        first = told().imageID
        assert told().image == image
        assert first.startswith("localhost/layout@sha256:")
        pack(tmp_path, "second")
        await node.until(lambda: told().imageID not in ("", first))
        assert node.said.reasons("uid-web").count("Pulling") == 2


async def test_a_pull_that_waits_still_says_why_the_last_one_failed(
    node: SmallNode, client: Client, tmp_path: Path
) -> None:
    image = pack(tmp_path, "old", "2019")
    async with node.engine(client) as engine:
        engine.set(pod_of(image))

        def waiting() -> str:
            told = node.said.last("uid-web").containerStatuses or ()
            return told[0].state.waiting.message or "" if told else ""

        await node.until(lambda: waiting().startswith("failed to pull"))
        await node.until(lambda: waiting().startswith("Back-off"))
        assert waiting().startswith(
            f'Back-off pulling image "{image}": ErrImagePull: failed to pull image "{image}" for '
            "the handler runhcs-wcow-process: hcs::CreateComputeSystem: The container operating "
            f"system does not match the host operating system. {image} has no build 10.0.20348; "
        )
