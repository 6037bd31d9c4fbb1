from pathlib import Path
from typing import Any

import pytest

from tests.support.known_objects import node_config_in, pod_of
from winpod.cri.proto import api_pb2 as api
from winpod.k8s.pods import ConfigError
from winpod.kubelet.cri_convert import container_config, dns_config, hostname_of, sandbox_config


def config_of(tmp_path: Path, spec: dict[str, Any], **more: Any) -> api.ContainerConfig:
    pod = pod_of(spec)
    assert pod.spec
    given: dict[str, Any] = {"env": {}, "mounts": (), "restart_count": 0, **more}
    image = api.ImageSpec(image="app:1")
    return container_config(
        pod, pod.spec.containers[0], node_config=node_config_in(tmp_path), image=image, **given
    )


def app(**more: Any) -> dict[str, Any]:
    return {"containers": [{"name": "app", "image": "app:1", **more}]}


def test_sandbox_config_matches_windows_kubelet(tmp_path: Path) -> None:
    ports = [{"containerPort": 80, "hostPort": 8080}, {"containerPort": 53, "protocol": "UDP"}]
    options = {"runAsUserName": "ContainerUser", "gmsaCredentialSpec": "{}"}
    pod = pod_of(
        {**app(ports=ports), "securityContext": {"windowsOptions": options}},
        labels={"app": "web"},
        annotations={"note": "x"},
    )
    config = sandbox_config(pod, node_config_in(tmp_path), attempt=2)
    assert (config.metadata.name, config.metadata.attempt) == ("web", 2)
    assert config.hostname == "web"
    assert config.log_directory == f"{tmp_path}/logs/shop_web_uid-1"
    assert dict(config.labels)["io.kubernetes.pod.uid"] == "uid-1"
    assert dict(config.labels)["app"] == "web"
    assert dict(config.annotations) == {"note": "x"}
    assert [(p.container_port, p.host_port) for p in config.port_mappings] == [(80, 8080), (53, 0)]
    assert config.port_mappings[1].protocol == api.UDP
    assert config.windows.security_context.run_as_username == "ContainerUser"
    assert config.windows.security_context.credential_spec == "{}"
    assert config.linux.security_context.namespace_options.network == api.POD


@pytest.mark.parametrize(
    ("spec", "servers", "searches", "options"),
    [
        (
            {},
            ["10.96.0.10"],
            ["shop.svc.cluster.local", "svc.cluster.local", "cluster.local"],
            ["ndots:5"],
        ),
        ({"dnsPolicy": "Default"}, [], [], []),
        (
            {"dnsPolicy": "None", "dnsConfig": {"nameservers": ["1.1.1.1"], "searches": ["a.b"]}},
            ["1.1.1.1"],
            ["a.b"],
            [],
        ),
        (
            {
                "dnsConfig": {
                    "nameservers": ["10.96.0.10", "8.8.8.8"],
                    "options": [{"name": "ndots", "value": "2"}, {"name": "rotate"}],
                }
            },
            ["10.96.0.10", "8.8.8.8"],
            ["shop.svc.cluster.local", "svc.cluster.local", "cluster.local"],
            ["ndots:2", "rotate"],
        ),
    ],
)
def test_dns_config_follows_policy(
    tmp_path: Path,
    spec: dict[str, Any],
    servers: list[str],
    searches: list[str],
    options: list[str],
) -> None:
    config = dns_config(pod_of(spec), node_config_in(tmp_path))
    assert list(config.servers) == servers
    assert list(config.searches) == searches
    assert list(config.options) == options


@pytest.mark.parametrize(
    ("spec", "name", "expected"),
    [
        ({}, "web", "web"),
        ({"hostname": "other"}, "web", "other"),
        ({}, "a" * 70, "a" * 63),
        ({}, "a" * 62 + "-bcd", "a" * 62),
        (
            {"hostname": "h", "subdomain": "s", "setHostnameAsFQDN": True},
            "web",
            "h.s.shop.svc.cluster.local",
        ),
    ],
)
def test_hostname_of_pod(tmp_path: Path, spec: dict[str, Any], name: str, expected: str) -> None:
    assert hostname_of(pod_of(spec, name=name), node_config_in(tmp_path)) == expected


@pytest.mark.parametrize(
    ("limits", "maximum", "memory"),
    [
        ({}, 0, 0),
        ({"cpu": "1"}, 2500, 0),
        ({"cpu": "1m"}, 2, 0),
        ({"cpu": "100u"}, 1, 0),
        ({"cpu": "400"}, 10_000, 0),
        ({"memory": "64Mi"}, 0, 64 << 20),
    ],
)
def test_limits_are_converted_to_windows(
    tmp_path: Path, limits: dict[str, str], maximum: int, memory: int
) -> None:
    resources = config_of(tmp_path, app(resources={"limits": limits})).windows.resources
    assert (resources.cpu_maximum, resources.memory_limit_in_bytes) == (maximum, memory)
    assert (resources.cpu_count, resources.cpu_shares) == (0, 0)


def test_command_and_args_are_expanded(tmp_path: Path) -> None:
    spec = app(command=["run.exe", "$(MODE)"], args=["$(NOT)", "$$(MODE)"])
    config = config_of(tmp_path, spec, env={"MODE": "fast"}, restart_count=3)
    assert list(config.command) == ["run.exe", "fast"]
    assert list(config.args) == ["$(NOT)", "$(MODE)"]
    assert config.log_path == "app/3.log"
    assert config.annotations["io.kubernetes.container.restartCount"] == "3"
    assert config.metadata.attempt == 3


def test_container_user_overrides_pod_user(tmp_path: Path) -> None:
    spec = {
        **app(securityContext={"windowsOptions": {"runAsUserName": "ContainerAdministrator"}}),
        "securityContext": {"windowsOptions": {"runAsUserName": "ContainerUser"}},
    }
    config = config_of(tmp_path, spec)
    assert config.windows.security_context.run_as_username == "ContainerAdministrator"


def test_administrator_violates_run_as_non_root(tmp_path: Path) -> None:
    options = {"runAsNonRoot": True, "windowsOptions": {"runAsUserName": "containeradministrator"}}
    with pytest.raises(ConfigError, match="will break non-root policy"):
        config_of(tmp_path, app(securityContext=options))
