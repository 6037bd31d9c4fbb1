"""The OCI configuration of a silo is locked down."""

from pathlib import Path
from typing import Any

import pytest

from winpod.compute.process.seccomp import seccomp_profile
from winpod.compute.silo import IDS_PER_SILO, SiloConfig, silo_oci_spec
from winpod.windows.users import ADMINISTRATOR, USER, User


def spec(user: User = ADMINISTRATOR, first_id: int = IDS_PER_SILO, **more: Any) -> dict[str, Any]:
    places: dict[str, Any] = {
        "rootfs": Path("/base"),
        "prefix": Path("/prefix"),
        "drive_c": Path("/c"),
    }
    return silo_oci_spec(SiloConfig(id="one", user=user, first_id=first_id, **places, **more))


def test_silo_has_no_capabilities_and_no_new_privileges() -> None:
    process = spec()["process"]
    assert process["noNewPrivileges"]
    assert len(process["capabilities"]) == 5
    assert not any(process["capabilities"].values())


def test_silo_always_has_limits() -> None:
    resources = spec()["linux"]["resources"]
    assert resources["pids"]["limit"] > 0
    assert resources["memory"]["limit"] == resources["memory"]["swap"] > 0


def test_base_is_read_only_and_nothing_else_of_the_host_is_mounted() -> None:
    config = spec()
    assert config["root"]["readonly"]
    bound = {m["source"]: m["options"][-1] for m in config["mounts"] if m["type"] == "bind"}
    own = bound.pop("/prefix")
    assert own == "rw"
    assert set(bound.values()) == {"ro"}
    assert set(bound) - {"/c"} == {
        m["source"] for m in config["mounts"] if m["destination"] == "/winpod"
    }
    for mount in config["mounts"]:
        assert mount["destination"] == "/proc" or "nosuid" in mount["options"]


def test_silo_has_private_namespaces_or_the_pods_network() -> None:
    kinds = {n["type"]: n.get("path") for n in spec()["linux"]["namespaces"]}
    assert kinds == dict.fromkeys(("pid", "ipc", "uts", "mount", "network", "user"))
    kinds = {n["type"]: n.get("path") for n in spec(netns=Path("/pod"))["linux"]["namespaces"]}
    assert kinds["network"] == "/pod"


def test_users_are_unprivileged_on_the_host_with_user_namespaces() -> None:
    mapping = [{"containerID": 0, "hostID": 7 * IDS_PER_SILO, "size": IDS_PER_SILO}]
    assert spec(first_id=7 * IDS_PER_SILO)["linux"]["uidMappings"] == mapping
    without = spec(first_id=0)["linux"]
    assert "uidMappings" not in without
    assert {"type": "user"} not in without["namespaces"]
    assert spec(USER)["process"]["user"] == {"uid": USER.uid, "gid": USER.uid}


@pytest.mark.parametrize(
    "call", ["mount", "unshare", "setns", "bpf", "init_module", "keyctl", "io_uring_setup"]
)
def test_syscalls_that_change_the_host_are_denied(call: str) -> None:
    refused, *_ = seccomp_profile(with_32bit=False)["syscalls"]
    assert call in refused["names"]
    assert (refused["action"], refused["errnoRet"]) == ("SCMP_ACT_ERRNO", 1)


def test_clone_cannot_create_namespaces_and_clone3_is_unknown() -> None:
    rules = seccomp_profile(with_32bit=False)["syscalls"]
    flags = {rule["args"][0]["value"] for rule in rules if rule["names"] == ["clone"]}
    new_user, new_network = 0x10000000, 0x40000000
    assert {new_user, new_network} <= flags
    assert rules[-1] == {"names": ["clone3"], "action": "SCMP_ACT_ERRNO", "errnoRet": 38}


def test_32_bit_syscalls_are_another_architecture() -> None:
    assert seccomp_profile(with_32bit=False)["architectures"] == ["SCMP_ARCH_X86_64"]
    assert "SCMP_ARCH_X86" in seccomp_profile(with_32bit=True)["architectures"]
