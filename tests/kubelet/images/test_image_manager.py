"""Image manager: pull policies, backoff and pull secrets."""

import json
from functools import partial
from pathlib import Path
from typing import Any

from tests.support.known_objects import encoded, read
from tests.support.pushed_images import push
from tests.support.registries import PASSWORD, auths, log_in
from tests.support.small_node import SmallNode, pod_of
from winpod.cli.main import app
from winpod.cri.rpc import CriClient
from winpod.k8s.models import core_v1 as v1

FAILED_SECRETS = "FailedToRetrieveImagePullSecret"


def pack(folder: Path, content: str, build: str = "2022") -> str:
    (folder / "content").mkdir(exist_ok=True)
    (folder / "content/file").write_text(content)
    name = f"oci:{folder}/layout:1"
    line = ["image", "pack", str(folder / "content"), "-t", name, "--os-version", build]
    app(line, standalone_mode=False)
    return name


async def test_local_image_is_pulled_again_only_if_changed(
    node: SmallNode, client: CriClient, tmp_path: Path
) -> None:
    image = pack(tmp_path, "first")

    def told() -> Any:
        return (node.reporter.last("uid-web").containerStatuses or [None])[0]

    async with node.kubelet(client) as kubelet:
        kubelet.update_pod(pod_of(image, "web", "simulate 1 0.1"))
        await node.until(lambda: told() and told().restartCount > 1)
        assert node.reporter.reasons("uid-web").count("Pulling") == 1
        first = told().imageID
        assert told().image == image
        assert first.startswith("localhost/layout@sha256:")
        pack(tmp_path, "second")
        await node.until(lambda: told().imageID not in ("", first))
        assert node.reporter.reasons("uid-web").count("Pulling") == 2


async def test_pull_backoff_reports_last_error(
    node: SmallNode, client: CriClient, tmp_path: Path
) -> None:
    image = pack(tmp_path, "old", "2019")
    async with node.kubelet(client) as kubelet:
        kubelet.update_pod(pod_of(image))

        def waiting() -> str:
            told = node.reporter.last("uid-web").containerStatuses or ()
            return told[0].state.waiting.message or "" if told else ""

        await node.until(lambda: waiting().startswith("failed to pull"))
        await node.until(lambda: waiting().startswith("Back-off"))
        assert waiting().startswith(
            f'Back-off pulling image "{image}": ErrImagePull: failed to pull image "{image}" for '
            "the handler runhcs-wcow-process: hcs::CreateComputeSystem: The container operating "
            f"system does not match the host operating system. {image} has no build 10.0.20348; "
        )


async def test_pull_backoff_ends_with_the_pod(
    node: SmallNode, client: CriClient, tmp_path: Path
) -> None:
    image = pack(tmp_path, "old", "2019")
    async with node.kubelet(client) as kubelet:
        for count in (1, 2):
            kubelet.update_pod(pod_of(image))
            await node.until(partial(has_failed, node, count))
            kubelet.remove_pod("uid-web")
            await node.until(partial(is_deleted, node, count))
        assert "BackOff" not in node.reporter.reasons("uid-web")


def has_failed(node: SmallNode, count: int) -> bool:
    return node.reporter.reasons("uid-web").count("Pulling") == count and (
        node.reporter.last("uid-web").containerStatuses[0].state.waiting.reason == "ErrImagePull"
    )


def is_deleted(node: SmallNode, count: int) -> bool:
    return len(node.reporter.deleted) == count


def pull_secret(registry: str, password: str) -> v1.Secret:
    return secret_of(json.dumps(auths(registry, password=password)))


def secret_of(config: str) -> v1.Secret:
    data = encoded(**{".dockerconfigjson": config})
    return read(v1.Secret, {"type": "kubernetes.io/dockerconfigjson", "data": data})


async def test_pull_secrets_are_tried_in_order_and_missing_ones_reported(
    node: SmallNode, client: CriClient, basic_registry: str, home: Path
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
    async with node.kubelet(client) as kubelet:
        kubelet.update_pod(pod_of(image, imagePullSecrets=[{"name": name} for name in names]))
        await node.until(lambda: node.reporter.last("uid-web").phase == "Running")
        told = [text for _, why, text, _ in node.reporter.events if why == FAILED_SECRETS]
        assert len(told) == 1
        assert told[0].startswith("Unable to retrieve some image pull secrets (missing, odd: ")
        assert told[0].endswith("); attempting to pull the image may not succeed.")
        wrong, always = [{"name": "wrong"}], [{"imagePullPolicy": "Always"}]
        kubelet.update_pod(pod_of(image, "locked", imagePullSecrets=wrong, with_each=always))
        await node.until(lambda: "Failed" in node.reporter.reasons("uid-locked"))
