import base64
import json
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.support.registries import log_in
from winpod.errors import InvalidInput
from winpod.images.registry.auth import (
    Credential,
    ResolvedCredentials,
    find_credential,
    read_docker_config,
    read_pull_secret,
)


def entry(user: str) -> dict[str, str]:
    return {"auth": base64.b64encode(f"{user}:pass:word".encode()).decode()}


def secret(auths: object, **more: Any) -> dict[str, Any]:
    data = base64.b64encode(json.dumps({"auths": auths}).encode()).decode()
    return {
        "metadata": {"name": "pull"},
        "type": "kubernetes.io/dockerconfigjson",
        "data": {".dockerconfigjson": data},
        **more,
    }


async def user_for(home: Path, config: object, registry: str, repository: str = "a/b") -> str:
    log_in(home, config)  # type: ignore[arg-type]
    found = read_docker_config()
    assert found
    credential = await found.find(registry, repository)
    return credential.username if credential else ""


@pytest.mark.parametrize(
    ("key", "registry", "fits"),
    [
        ("https://index.docker.io/v1/", "docker.io", True),
        ("docker.io", "docker.io", True),
        ("registry-1.docker.io", "docker.io", True),
        ("https://example.com", "example.com", True),
        ("https://example.com/v2/", "example.com", True),
        ("example.com:5000", "example.com:5000", True),
        ("example.com:5000", "example.com", False),
        ("example.com", "example.com:5000", False),
        ("EXAMPLE.com", "example.com", True),
        ("*.azurecr.io", "my.azurecr.io", True),
        ("*.azurecr.io", "a.b.azurecr.io", False),
        ("*.io", "docker.io", False),
        ("example.com/a", "example.com", True),
        ("example.com/a/b", "example.com", True),
        ("example.com/a/bc", "example.com", False),
        ("example.com/c", "example.com", False),
    ],
)
async def test_keys_match_as_in_docker_and_kubelet(
    home: Path, key: str, registry: str, fits: bool
) -> None:
    assert await user_for(home, {"auths": {key: entry("u")}}, registry) == ("u" if fits else "")


async def test_most_specific_key_wins(home: Path) -> None:
    auths = {"*.example.com": entry("star"), "r.example.com": entry("host")}
    assert await user_for(home, {"auths": auths}, "r.example.com") == "host"
    auths["r.example.com/a"] = entry("path")
    assert await user_for(home, {"auths": auths}, "r.example.com") == "path"
    assert await user_for(home, {"auths": auths}, "r.example.com", "other") == "host"


async def test_password_may_contain_colons_and_is_not_in_repr(home: Path) -> None:
    log_in(home, {"auths": {"example.com": entry("u")}})
    found = read_docker_config()
    assert found
    credential = await found.find("example.com", "a")
    assert credential == Credential("u", "pass:word")
    assert "pass" not in repr(credential)


async def test_plain_names_and_identity_tokens_are_read(home: Path) -> None:
    plain = {"username": "u", "password": "p"}
    assert await user_for(home, {"auths": {"example.com": plain}}, "example.com") == "u"
    log_in(home, {"auths": {"example.com": {"identitytoken": "t"}, "empty.com": {}}})
    found = read_docker_config()
    assert found
    assert await found.find("example.com", "a") == Credential(identity_token="t")
    assert await found.find("empty.com", "a") is None


def test_missing_config_has_no_credentials(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_docker_config() is None
    other = home / "other"
    other.mkdir()
    (other / "config.json").write_text("{}")
    monkeypatch.setenv("DOCKER_CONFIG", str(other))
    assert read_docker_config()


@pytest.mark.parametrize(
    "text",
    [
        "not json",
        "[]",
        '{"auths": []}',
        '{"auths": {"x": 1}}',
        '{"auths": {"x": {"auth": "!!"}}}',
        '{"auths": {"x": {"auth": "bm9jb2xvbg=="}}}',
        '{"credHelpers": []}',
        '{"credsStore": 1}',
    ],
)
def test_invalid_config_is_named(home: Path, text: str) -> None:
    (home / ".docker").mkdir()
    (home / ".docker" / "config.json").write_text(text)
    with pytest.raises(InvalidInput, match=r"\.docker/config\.json"):
        read_docker_config()


async def test_secrets_of_both_types_are_read() -> None:
    new = read_pull_secret(secret({"example.com": entry("new")}))
    old = read_pull_secret(
        {
            "type": "kubernetes.io/dockercfg",
            "stringData": {".dockercfg": json.dumps({"example.com": entry("old")})},
        }
    )
    other = read_pull_secret({"type": "Opaque", "data": {"a": "b"}})
    found = await find_credential([other, new, old], "example.com", "a")
    assert found == Credential("new", "pass:word")
    found = await find_credential([old, new], "example.com", "a")
    assert found == Credential("old", "pass:word")
    assert await find_credential([other, new], "elsewhere.com", "a") is None


@pytest.mark.parametrize(
    "change",
    [
        {"data": {}},
        {"data": None},
        {"data": {".dockerconfigjson": "%%%"}},
        {"data": {".dockerconfigjson": base64.b64encode(b"{").decode()}},
        {"stringData": {".dockerconfigjson": "[]"}},
    ],
)
def test_invalid_secret_is_named(change: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match='Secret "pull"'):
        read_pull_secret({**secret({}), **change})


def make_helper(
    directory: Path, monkeypatch: pytest.MonkeyPatch, body: str, name: str = "test"
) -> None:
    directory.mkdir(exist_ok=True)
    path = directory / f"docker-credential-{name}"
    path.write_text(f"#!{sys.executable}\nimport sys, json\nkey = sys.stdin.read()\n{body}\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", str(directory), prepend=":")


ANSWER = "print(json.dumps({'ServerURL': key, 'Username': key, 'Secret': 's'}))"


@pytest.mark.parametrize(
    ("registry", "user"),
    [("docker.io", "https://index.docker.io/v1/"), ("example.com", "example.com")],
)
async def test_credential_store_is_queried_for_the_registry(
    home: Path, monkeypatch: pytest.MonkeyPatch, registry: str, user: str
) -> None:
    make_helper(home / "bin", monkeypatch, ANSWER)
    assert await user_for(home, {"credsStore": "test"}, registry) == user


async def test_credential_helper_takes_precedence_over_the_store(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_helper(home / "bin", monkeypatch, ANSWER)
    config = {"credHelpers": {"example.com": "test"}, "credsStore": "absent"}
    assert await user_for(home, config, "example.com") == "example.com"
    with pytest.raises(InvalidInput, match=r"docker-credential-absent of .* cannot be run"):
        await user_for(home, config, "other.com")


async def test_config_is_used_if_the_helper_has_no_credential(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    not_found = "print('credentials not found in native keychain'); sys.exit(1)"
    make_helper(home / "bin", monkeypatch, not_found)
    config = {"credsStore": "test", "auths": {"example.com": entry("file")}}
    assert await user_for(home, config, "example.com") == "file"
    make_helper(home / "bin", monkeypatch, "print('locked'); sys.exit(1)")
    with pytest.raises(InvalidInput, match=r"failed for example\.com: locked"):
        await user_for(home, config, "example.com")
    make_helper(home / "bin", monkeypatch, "print('not json')")
    with pytest.raises(InvalidInput, match="output of docker-credential-test"):
        await user_for(home, config, "example.com")
    token = "print(json.dumps({'Username': '<token>', 'Secret': 't'}))"
    make_helper(home / "bin", monkeypatch, token)
    found = read_docker_config()
    assert found
    assert await found.find("example.com", "a") == Credential(identity_token="t")


async def test_helper_must_be_a_name_without_path(home: Path) -> None:
    with pytest.raises(InvalidInput, match="invalid name"):
        await user_for(home, {"credsStore": "../../bin/sh"}, "example.com")


async def test_resolved_credentials_need_no_helpers_and_survive_json(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_helper(home / "bin", monkeypatch, ANSWER)
    log_in(
        home,
        {
            "credHelpers": {"helped.com": "test", "broken.com": "absent"},
            "auths": {
                "helped.com": entry("file"),
                "plain.com/team": entry("team"),
                "plain.com": entry("all"),
                "unrelated.com": entry("other"),
            },
        },
    )
    docker = read_docker_config()
    assert docker
    resolved = await docker.resolve(["helped.com", "plain.com", "broken.com", "unknown.com"])
    (home / "bin/docker-credential-test").unlink()
    sent = msgspec.to_builtins(resolved)
    received = msgspec.convert(json.loads(json.dumps(sent)), ResolvedCredentials)
    found = {
        (registry, repository): credential.username if credential else ""
        for registry, repository in (
            ("helped.com", "a"),
            ("plain.com", "team/a"),
            ("plain.com", "a"),
            ("unknown.com", "a"),
            ("unrelated.com", "a"),
        )
        for credential in [await received.find(registry, repository)]
    }
    assert list(found.values()) == ["helped.com", "team", "all", "", ""]
    with pytest.raises(InvalidInput, match=r"docker-credential-absent .* cannot be run"):
        await received.find("broken.com", "a")
