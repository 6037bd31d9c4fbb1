"""Images for pods: kept under the names that pods have for them, pulled no more than is needed."""

import json
from pathlib import Path
from typing import Any

from lightkube.models import core_v1 as v1

from tests.cri.test_images import push
from tests.images.registries import PASSWORD, auths, log_in
from tests.node.known_objects import encoded, read
from tests.node.small_node import SmallNode, pod_of
from winpod.cli.main import app
from winpod.cri.rpc import Client

FAILED_SECRETS = "FailedToRetrieveImagePullSecret"


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


def pull_secret(registry: str, password: str) -> v1.Secret:
    return secret_of(json.dumps(auths(registry, password=password)))


def secret_of(config: str) -> v1.Secret:
    data = encoded(**{".dockerconfigjson": config})
    return read(v1.Secret, {"type": "kubernetes.io/dockerconfigjson", "data": data})


async def test_pull_secrets_are_tried_in_turn_and_those_that_are_missing_are_told(
    node: SmallNode, client: Client, basic_registry: str, home: Path
) -> None:
    log_in(home, auths(basic_registry))
    image = await push(home, f"{basic_registry}/team/app:1", "2022")
    log_in(home, {})
    node.objects.secrets |= {
        "shop/wrong": pull_secret(basic_registry, "wrong"),
        "shop/other": pull_secret("registry.example", PASSWORD),
        "shop/right": pull_secret(basic_registry, PASSWORD),
        "shop/odd": secret_of("{"),
    }
    names = ("missing", "odd", "wrong", "other", "right")
    async with node.engine(client) as engine:
        engine.set(pod_of(image, imagePullSecrets=[{"name": name} for name in names]))
        await node.until(lambda: node.said.last("uid-web").phase == "Running")
        told = [text for _, why, text, _ in node.said.events if why == FAILED_SECRETS]
        assert len(told) == 1
        assert told[0].startswith("Unable to retrieve some image pull secrets (missing, odd: ")
        assert told[0].endswith("); attempting to pull the image may not succeed.")
        wrong, anew = [{"name": "wrong"}], [{"imagePullPolicy": "Always"}]
        engine.set(pod_of(image, "locked", imagePullSecrets=wrong, with_each=anew))
        await node.until(lambda: "Failed" in node.said.reasons("uid-locked"))
