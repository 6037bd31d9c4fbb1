from pathlib import Path
from typing import Any

import pytest

from tests.support.known_objects import KnownObjects, encoded, node_config_in, pod_of, read
from winpod.k8s.models import core_v1 as v1
from winpod.k8s.pods import ConfigError
from winpod.kubelet.environment import expand, resolve_environment

OBJECTS = KnownObjects(
    config_maps={"shop/settings": read(v1.ConfigMap, {"data": {"level": "7", "color": "blue"}})},
    secrets={
        "shop/login": read(v1.Secret, {"data": encoded(password="secret")}),
        "shop/broken": read(v1.Secret, {"data": {"password": "a"}}),
    },
    all_services={
        "shop": [
            read(
                v1.Service,
                {
                    "metadata": {"name": "my-db", "namespace": "shop"},
                    "spec": {
                        "clusterIP": "10.96.1.2",
                        "ports": [{"name": "sql", "port": 1433}, {"port": 53, "protocol": "UDP"}],
                    },
                },
            ),
            read(
                v1.Service,
                {
                    "metadata": {"name": "headless", "namespace": "shop"},
                    "spec": {"clusterIP": "None", "ports": [{"port": 1}]},
                },
            ),
        ],
        "default": [
            read(
                v1.Service,
                {
                    "metadata": {"name": "kubernetes", "namespace": "default"},
                    "spec": {"clusterIP": "10.96.0.1", "ports": [{"name": "https", "port": 443}]},
                },
            )
        ],
    },
)


def variable(source: dict[str, Any]) -> dict[str, Any]:
    return {"env": [{"name": "A", "valueFrom": source}]}


async def variables(
    tmp_path: Path, container: dict[str, Any], spec: dict[str, Any] | None = None, **metadata: Any
) -> dict[str, str]:
    described = {"name": "app", "image": "app:1", **container}
    pod = pod_of(
        {"containers": [described], "enableServiceLinks": False, **(spec or {})}, **metadata
    )
    assert pod.spec
    node_config = node_config_in(tmp_path)
    return await resolve_environment(
        pod, pod.spec.containers[0], OBJECTS, node_config, ["10.244.0.5", "fd00::5"]
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain", "plain"),
        ("$(A)-$(B)", "1-2"),
        ("$(MISSING)", "$(MISSING)"),
        ("$$(A)", "$(A)"),
        ("$$$(A)", "$1"),
        ("$A $", "$A $"),
        ("$(A", "$(A"),
        ("$()", "$()"),
    ],
)
def test_references_are_expanded_like_kubernetes(text: str, expected: str) -> None:
    assert expand(text, {"A": "1", "B": "2"}) == expected


async def test_later_variables_refer_to_and_override_earlier_ones(tmp_path: Path) -> None:
    env = [
        {"name": "A", "value": "one"},
        {"name": "B", "value": "$(A) and $(C)"},
        {"name": "C", "value": "three"},
        {"name": "color", "value": "red"},
    ]
    sources = [{"configMapRef": {"name": "settings"}, "prefix": ""}]
    env_vars = await variables(tmp_path, {"env": env, "envFrom": sources})
    assert env_vars["B"] == "one and $(C)"
    assert (env_vars["color"], env_vars["level"]) == ("red", "7")


async def test_values_come_from_config_maps_and_secrets(tmp_path: Path) -> None:
    env = [
        {"name": "L", "valueFrom": {"configMapKeyRef": {"name": "settings", "key": "level"}}},
        {"name": "P", "valueFrom": {"secretKeyRef": {"name": "login", "key": "password"}}},
        {
            "name": "NOT",
            "valueFrom": {"secretKeyRef": {"name": "none", "key": "x", "optional": True}},
        },
        {"name": "LP", "value": "$(L)$(P)"},
    ]
    sources = [{"secretRef": {"name": "login"}, "prefix": "DB_"}]
    env_vars = await variables(tmp_path, {"env": env, "envFrom": sources})
    assert (env_vars["L"], env_vars["P"], env_vars["LP"]) == ("7", "secret", "7secret")
    assert env_vars["DB_password"] == "secret"
    assert "NOT" not in env_vars


@pytest.mark.parametrize(
    ("container", "sentence"),
    [
        (
            variable({"secretKeyRef": {"name": "x", "key": "y"}}),
            'secret "x" not found',
        ),
        (
            {
                "env": [
                    {
                        "name": "A",
                        "valueFrom": {"configMapKeyRef": {"name": "settings", "key": "z"}},
                    }
                ]
            },
            "couldn't find key z in ConfigMap shop/settings",
        ),
        ({"envFrom": [{"secretRef": {"name": "broken"}}]}, 'password of secret "broken" is not ba'),
        ({"envFrom": [{"configMapRef": {"name": "none"}}]}, 'configmap "none" not found'),
        (
            variable({"fieldRef": {"fieldPath": "spec.nope"}}),
            "unsupported fieldPath: spec.nope",
        ),
    ],
)
async def test_missing_reference_fails_with_kubelet_message(
    tmp_path: Path, container: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        await variables(tmp_path, container)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("metadata.name", "web"),
        ("metadata.namespace", "shop"),
        ("metadata.uid", "uid-1"),
        ("metadata.labels['app']", "web"),
        ("metadata.annotations['none']", ""),
        ("metadata.labels", 'app="web"'),
        ("spec.nodeName", "win-1"),
        ("spec.serviceAccountName", "default"),
        ("status.hostIP", "10.0.0.9"),
        ("status.podIP", "10.244.0.5"),
        ("status.podIPs", "10.244.0.5,fd00::5"),
    ],
)
async def test_field_ref_values(tmp_path: Path, path: str, expected: str) -> None:
    env = [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": path}}}]
    env_vars = await variables(tmp_path, {"env": env}, labels={"app": "web"})
    assert env_vars["A"] == expected


@pytest.mark.parametrize(
    ("resource", "divisor", "expected"),
    [
        ("limits.cpu", "", "2"),
        ("limits.cpu", "1m", "1500"),
        ("requests.cpu", "", "1"),
        ("limits.memory", "1Mi", "64"),
        ("requests.memory", "", "0"),
        ("limits.ephemeral-storage", "1Gi", "100"),
    ],
)
async def test_resource_field_ref_is_divided_and_rounded_up(
    tmp_path: Path, resource: str, divisor: str, expected: str
) -> None:
    limits = {"limits": {"cpu": "1500m", "memory": "64Mi"}, "requests": {"cpu": "100m"}}
    reference = {"resource": resource, "divisor": divisor or None}
    env = [{"name": "A", "valueFrom": {"resourceFieldRef": reference}}]
    env_vars = await variables(tmp_path, {"env": env, "resources": limits})
    assert env_vars["A"] == expected


async def test_service_variables_follow_enable_service_links(tmp_path: Path) -> None:
    without = await variables(tmp_path, {})
    assert without["KUBERNETES_SERVICE_HOST"] == "10.96.0.1"
    assert not any(name.startswith("MY_DB") for name in without)
    env_vars = await variables(
        tmp_path, {"env": [{"name": "MY_DB_PORT", "value": "own"}]}, {"enableServiceLinks": True}
    )
    assert env_vars["MY_DB_SERVICE_HOST"] == "10.96.1.2"
    assert env_vars["MY_DB_SERVICE_PORT_SQL"] == "1433"
    assert env_vars["MY_DB_PORT"] == "own"
    assert env_vars["MY_DB_PORT_1433_TCP"] == "tcp://10.96.1.2:1433"
    assert env_vars["MY_DB_PORT_53_UDP_PROTO"] == "udp"
    assert not any(name.startswith("HEADLESS") for name in env_vars)
