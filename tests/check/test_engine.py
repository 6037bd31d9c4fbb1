"""Tests of `winpod check` with images in a real registry and pull secrets of the manifests."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.pushed_images import push
from tests.support.registries import auths, log_in
from winpod.check.engine import Report, WorkloadReport, check, default_target
from winpod.images.resolver import ImageResolver
from winpod.k8s.manifests import read_manifests
from winpod.placement.verdicts import Status


def pod(image: str, name: str = "p", **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "shop"},
        "spec": {
            "nodeSelector": {"kubernetes.io/os": "windows"},
            "containers": [{"name": "c", "image": image}],
            **spec,
        },
    }


async def checked(home: Path, *objects: dict[str, Any], offline: bool = False) -> Report:
    file = home / "app.yaml"
    file.write_text(yaml.safe_dump_all(objects), "utf-8")
    seen: list[tuple[int, int]] = []
    async with ImageResolver(offline=offline, sizes=False, time_limit=10) as sources:
        report = await check(
            read_manifests([str(file)]),
            default_target(),
            sources,
            on_image=lambda done, total: seen.append((done, total)),
        )
    assert seen[-1][0] == seen[-1][1] == len(seen)
    return report


def only(report: Report) -> WorkloadReport:
    (one,) = report.checked
    return one


async def test_platforms_come_from_the_registry(home: Path, registry: str) -> None:
    image = await push(home, f"{registry}/app:1", "10.0.17763.805", "10.0.20348.2113")
    one = only(await checked(home, pod(image)))
    assert one.images[image].builds() == ("10.0.17763.805", "10.0.20348.2113")
    assert one.status is Status.RUNS
    again = only(await checked(home, pod(image), offline=True))
    assert again.images[image].builds() == one.images[image].builds()


async def test_equal_images_are_resolved_once(home: Path, registry: str) -> None:
    image = await push(home, f"{registry}/app:2", "2022")
    report = await checked(home, *(pod(image, f"p{i}") for i in range(50)))
    assert len(report.checked) == 50


async def test_missing_image_cannot_run(home: Path, registry: str) -> None:
    one = only(await checked(home, pod(f"{registry}/gone:1")))
    assert one.status is Status.CANNOT_RUN
    assert [(p.rule, p.severity) for p in one.problems] == [("image/not-found", "error")]


async def test_invalid_image_name_cannot_run(home: Path) -> None:
    for text in ("Upper:1", "oci:somewhere:x"):
        one = only(await checked(home, pod(text)))
        assert one.status is Status.CANNOT_RUN
        assert [p.rule for p in one.problems] == ["image/not-found"]


async def test_unresponsive_registry_leaves_the_outcome_unknown(home: Path) -> None:
    one = only(await checked(home, pod("127.0.0.1:1/app:1")))
    assert one.status is Status.UNKNOWN
    assert [p.rule for p in one.problems] == ["image/unknown"]


async def test_broken_user_config_does_not_mark_the_image_missing(home: Path) -> None:
    (home / ".docker").mkdir()
    (home / ".docker" / "config.json").write_text("{broken", "utf-8")
    one = only(await checked(home, pod("127.0.0.1:1/app:1")))
    assert one.status is Status.UNKNOWN
    assert [(p.rule, p.severity) for p in one.problems] == [("image/unknown", "warning")]
    assert "config.json is not JSON" in one.problems[0].message


@pytest.mark.parametrize("values", [{"data": [1]}, {"stringData": "x", "data": {"a": None}}])
async def test_broken_pull_secret_is_reported(home: Path, values: dict[str, Any]) -> None:
    broken = {**secret("127.0.0.1:1", "pull", "kubernetes.io/dockerconfigjson"), **values}
    asked = pod("127.0.0.1:1/app:1", imagePullSecrets=[{"name": "pull"}])
    one = only(await checked(home, asked, broken))
    assert one.status is Status.UNKNOWN
    assert 'has no ".dockerconfigjson"' in one.problems[0].message


def secret(registry: str, name: str, kind: str) -> dict[str, Any]:
    config = auths(registry)
    key = ".dockerconfigjson"
    if kind == "kubernetes.io/dockercfg":
        config, key = config["auths"], ".dockercfg"
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "namespace": "shop"},
        "type": kind,
        "data": {key: base64.b64encode(json.dumps(config).encode()).decode()},
    }


@pytest.mark.parametrize("kind", ["kubernetes.io/dockerconfigjson", "kubernetes.io/dockercfg"])
async def test_pull_secrets_of_the_manifests_are_used(
    home: Path, basic_registry: str, kind: str
) -> None:
    log_in(home, auths(basic_registry))
    image = await push(home, f"{basic_registry}/private:1", "2022")
    log_in(home, {"auths": {}})
    refused = only(await checked(home, pod(image)))
    assert refused.status is Status.UNKNOWN
    with_secret = pod(image, imagePullSecrets=[{"name": "pull"}])
    opened = await checked(home, with_secret, secret(basic_registry, "pull", kind))
    assert only(opened).images[image].builds() == ("10.0.20348",)
    other = secret(basic_registry, "pull", kind)
    other["metadata"]["namespace"] = "elsewhere"
    assert only(await checked(home, with_secret, other)).status is Status.UNKNOWN


async def test_strict_counts_what_is_ignored_and_what_may_fail(home: Path, registry: str) -> None:
    image = await push(home, f"{registry}/app:3", "2019", "2022", "2025")
    good = await checked(home, pod(image))
    assert good.passes(strict=True)
    ignored = await checked(home, pod(image, securityContext={"runAsUser": 5}))
    assert ignored.passes()
    assert not ignored.passes(strict=True)
