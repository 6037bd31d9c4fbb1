"""Invocation of CNI plugins and mapping of their errors, with shell scripts as plugins."""

import asyncio
import contextlib
import json
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest

from tests.support.network_machine import NOTHING, Machine, run
from winpod.errors import WinpodError
from winpod.network.attachments import Bandwidth, Dns, PortMapping
from winpod.network.cni import CniNotReady, CniReady
from winpod.network.errors import (
    CacheUnwritable,
    NetworkConflict,
    NoCniConfig,
    PluginFailed,
    PluginMissing,
    PluginNotReady,
    PluginTimedOut,
)

ALL_CAPABILITIES = ("portMappings", "dns", "bandwidth", "ips", "aliases")


def recorder(machine: Machine, name: str, answer: str = "{}") -> dict[str, Any]:
    """Install a plugin that records its calls."""
    log = machine.directory / "calls"
    said = f'{{"plugin":"{name}","command":"\'$CNI_COMMAND\'","netns":"\'$CNI_NETNS\'",'
    said += '"args":"\'$CNI_ARGS\'","id":"\'$CNI_CONTAINERID\'","given":'
    text = f"( printf '%s' '{said}'; cat; echo '}}' ) >> {log}\necho '{answer}'"
    return machine.script(name, text)


def calls(machine: Machine) -> list[dict[str, Any]]:
    log = machine.directory / "calls"
    recorded = [json.loads(line) for line in log.read_text().splitlines()]
    log.unlink()
    return recorded


def summary(machine: Machine) -> list[tuple[str, str]]:
    return [(call["command"], call["plugin"]) for call in calls(machine)]


async def test_plugins_run_in_order_and_in_reverse_with_prev_result(
    machine: Machine,
) -> None:
    first = recorder(machine, "first", '{"ips":[{"address":"10.250.1.9/24"}]}')
    second = recorder(machine, "second", '{"ips":[{"address":"10.250.1.10/24"}]}')
    machine.configure(first, second)
    networks = machine.networks()
    pod = {"pod_name": "web", "pod_namespace": "shop", "pod_uid": "u-1"}
    attached = await networks.connect(machine.attachment("one", **pod))
    assert attached.ip == "10.250.1.10"
    await networks.cni.check(machine.attachment("one"))
    await networks.disconnect("one")
    recorded = calls(machine)
    assert [(call["command"], call["plugin"]) for call in recorded] == [
        ("ADD", "first"),
        ("ADD", "second"),
        ("CHECK", "first"),
        ("CHECK", "second"),
        ("DEL", "second"),
        ("DEL", "first"),
    ]
    results = [call["given"].get("prevResult") for call in recorded]
    final = {"ips": [{"address": "10.250.1.10/24"}]}
    assert results == [None, {"ips": [{"address": "10.250.1.9/24"}]}, final, final, final, final]
    for call in recorded:
        assert (call["given"]["name"], call["given"]["cniVersion"]) == ("own", "1.0.0")
        assert call["id"] == "one"
        assert call["netns"] == str(networks.netns("one"))
        assert "K8S_POD_NAME=web;" in call["args"]
        assert "K8S_POD_NAMESPACE=shop;" in call["args"]


async def test_plugin_gets_only_the_capability_arguments_it_declares(machine: Machine) -> None:
    knowing = recorder(machine, "knowing") | {"capabilities": dict.fromkeys(ALL_CAPABILITIES, True)}
    some = recorder(machine, "some") | {"capabilities": {"dns": True, "ips": False}}
    machine.configure(knowing, some, recorder(machine, "none"))
    attachment = machine.attachment(
        "one",
        hostname="web-0",
        port_mappings=(PortMapping(53, 5353, "udp", "127.0.0.1"), PortMapping(80)),
        dns=Dns(("10.0.0.10",), ("svc.cluster.local",), ("ndots:5",)),
        bandwidth=Bandwidth(ingress=1000),
        ips=("10.250.1.77",),
    )
    networks = machine.networks()
    await networks.connect(attachment)
    await networks.disconnect("one")
    dns = {"servers": ["10.0.0.10"], "searches": ["svc.cluster.local"], "options": ["ndots:5"]}
    everything = {
        "portMappings": [
            {"hostPort": 5353, "containerPort": 53, "protocol": "udp", "hostIP": "127.0.0.1"}
        ],
        "dns": dns,
        "bandwidth": {"ingressRate": 1000, "ingressBurst": 0xFFFFFFFF},
        "ips": ["10.250.1.77"],
        "aliases": ["web-0"],
    }
    told = [(call["plugin"], call["given"].get("runtimeConfig")) for call in calls(machine)]
    there = [("knowing", everything), ("some", {"dns": dns}), ("none", None)]
    assert told == [*there, *reversed(there)]


async def test_dns_of_the_cni_result_is_returned(machine: Machine) -> None:
    answer = '{"dns":{"nameservers":["10.0.0.1"],"search":["a.example"],"options":["ndots:2"]}}'
    machine.configure(recorder(machine, "naming", answer))
    attached = await machine.networks().connect(machine.attachment("one"))
    assert attached.dns == Dns(("10.0.0.1",), ("a.example",), ("ndots:2",))


async def test_portmap_runs_only_for_sandboxes_with_ports(machine: Machine) -> None:
    portmap = recorder(machine, "portmap") | {"capabilities": {"portMappings": True}}
    machine.configure(recorder(machine, "first"), portmap)
    networks = machine.networks()
    await networks.connect(machine.attachment("one"))
    await networks.cni.check(machine.attachment("one"))
    await networks.disconnect("one")
    assert summary(machine) == [("ADD", "first"), ("CHECK", "first"), ("DEL", "first")]
    await networks.connect(machine.attachment("two", port_mappings=(PortMapping(80, 8080),)))
    await networks.disconnect("two")
    assert ("ADD", "portmap") in (seen := summary(machine))
    assert ("DEL", "portmap") in seen
    machine.configure(recorder(machine, "first"), portmap | {"runtimeConfig": {"portMappings": []}})
    await networks.connect(machine.attachment("three"))
    assert ("ADD", "portmap") in summary(machine)


BROKEN = {
    "says-why": (
        """echo '{"cniVersion":"1.0.0","code":100,"msg":"no luck","details":"at all"}'; exit 1""",
        PluginFailed,
        r'The CNI plugin broken of network "own" failed at ADD for sandbox one: no luck: at all\.',
    ),
    "says-nothing": ("exit 3", PluginFailed, r"exit code 3, no output\."),
    "says-it-elsewhere": ("echo Segmentation fault >&2; exit 139", PluginFailed, "Segmentation"),
    "answers-nonsense": ("echo hello", PluginFailed, "not JSON: hello"),
    "tries-again-later": (
        """echo '{"code":11,"msg":"busy"}'; exit 1""",
        PluginNotReady,
        "busy",
    ),
    "is-no-program": ("", PluginFailed, "cannot be run"),
    "hangs": ("sleep 600 & wait", PluginTimedOut, "did not finish ADD within 1 seconds"),
}


@pytest.mark.parametrize("how", BROKEN)
@pytest.mark.parametrize("place", ["first", "last"])
async def test_failed_plugin_is_named_and_add_is_rolled_back(
    machine: Machine, how: str, place: str
) -> None:
    text, kind, sentence = BROKEN[how]
    broken = machine.script("broken", text)
    if how == "is-no-program":
        (machine.own_plugins / "broken").write_bytes(b"\x7fELF nonsense")
    plugins = [machine.bridge(ipMasq=True), broken]
    machine.configure(*(plugins if place == "last" else reversed(plugins)))
    with pytest.raises(kind, match=sentence):
        await machine.networks(time_limit=1).connect(machine.attachment("one"))
    assert machine.leftovers() == NOTHING


async def test_failed_delete_keeps_the_cache_entry_until_it_succeeds(
    machine: Machine,
) -> None:
    machine.configure(machine.bridge(), machine.script("moody", "echo '{}'"))
    networks = machine.networks()
    await networks.connect(machine.attachment("one"))
    machine.script("moody", "exit 1")
    with pytest.raises(PluginFailed, match=r"moody .* failed at DEL for sandbox one"):
        await networks.disconnect("one")
    assert machine.leased() == ["10.250.1.2"]
    machine.script("moody", "exit 0")
    await networks.disconnect("one")
    assert machine.leftovers() == NOTHING


async def test_cancelled_add_is_rolled_back(machine: Machine) -> None:
    machine.configure(
        machine.bridge(), machine.script("slow", "[ $CNI_COMMAND = DEL ] || sleep 600")
    )
    connecting = asyncio.create_task(machine.networks().connect(machine.attachment("one")))
    while not machine.leased():  # noqa: ASYNC110 - a file, which tells nobody
        await asyncio.sleep(0.01)
    connecting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await connecting
    assert machine.leftovers() == NOTHING


async def test_missing_plugin_error_names_the_debian_package(machine: Machine) -> None:
    for own in ("bridge", "host-local"):
        (machine.own_plugins / own).unlink(missing_ok=True)
    networks = machine.networks()
    networks.cni._plugins.directories = (machine.own_plugins,)
    machine.configure(machine.bridge())
    sentence = (
        r"The CNI plugin bridge of network .* was not found in .*Debian's containernetworking"
    )
    with pytest.raises(PluginMissing, match=sentence):
        await networks.connect(machine.attachment("one"))
    assert machine.leftovers() == NOTHING
    status = await networks.cni.status()
    assert isinstance(status, CniNotReady)
    assert "containernetworking-plugins" in status.reason
    machine.configure({"type": "calico"})
    with pytest.raises(PluginMissing, match=r"calico .* or remove it"):
        await networks.connect(machine.attachment("one"))


async def test_bridge_with_another_address_is_a_conflict(machine: Machine) -> None:
    run("ip", "link", "add", "own0", "type", "bridge")
    run("ip", "addr", "add", "10.250.1.99/24", "dev", "own0")
    machine.configure(machine.bridge())
    with pytest.raises(NetworkConflict, match=r"different from 10\.250\.1\.1.*ip link delete own0"):
        await machine.networks().connect(machine.attachment("one"))
    assert machine.leftovers() == NOTHING


async def test_missing_iptables_error_names_the_package(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("winpod.network.cni_plugins._SYSTEM_PATH", "")
    monkeypatch.setenv("PATH", "/nowhere")
    machine.use_default()
    with pytest.raises(WinpodError, match="Install Debian's iptables"):
        await machine.networks().connect(machine.attachment("one"))
    machine.configure(machine.bridge(ipMasq=True))
    with pytest.raises(WinpodError, match="Install Debian's iptables"):
        await machine.networks().connect(machine.attachment("two"))
    monkeypatch.undo()
    assert machine.leftovers() == NOTHING


async def test_status_is_ready_or_has_the_reason(machine: Machine) -> None:
    cni = machine.cni()
    assert isinstance(status := await cni.status(), CniNotReady)
    assert "has no CNI configuration" in status.reason
    machine.use_default()
    assert await cni.status() == CniReady("winpod")
    assert await machine.networks().unavailable_reason() == ""
    machine.configure(machine.bridge(), cniVersion="1.1.0")
    assert isinstance(status := await cni.status(), CniNotReady)
    assert "bridge does not support version 1.1.0" in status.reason
    assert "It supports 0.1.0," in status.reason
    machine.write("10-own.conflist", '{"name": ')
    assert isinstance(status := await cni.status(), CniNotReady)
    assert "10-own.conflist cannot be used: it is not JSON" in status.reason
    with pytest.raises(NoCniConfig, match="not JSON"):
        await machine.networks().connect(machine.attachment("one"))
    assert machine.leftovers() == NOTHING
    (machine.conf_dir / "10-own.conflist").unlink()
    assert await cni.status() == CniReady("winpod")


VERSION_1_1 = """if [ $CNI_COMMAND = VERSION ]; then
  echo '{"cniVersion":"1.1.0","supportedVersions":["1.0.0","1.1.0"]}'; exit; fi"""


async def test_status_runs_status_of_cni_1_1_plugins(machine: Machine) -> None:
    unwell = """echo '{"code":50,"msg":"no route"}'; exit 1"""
    plugin = machine.script("modern", f"{VERSION_1_1}\n{unwell}")
    machine.configure(plugin, cniVersion="1.1.0")
    assert isinstance(status := await machine.cni().status(), CniNotReady)
    assert "modern" in status.reason
    assert "no route" in status.reason
    machine.script("modern", VERSION_1_1)
    assert await machine.cni().status() == CniReady("own")


@pytest.mark.parametrize(
    ("version", "further", "collects"),
    [("1.1.0", {}, True), ("1.0.0", {}, False), ("1.1.0", {"disableGC": True}, False)],
)
async def test_remove_unknown_runs_gc_of_cni_1_1_plugins(
    machine: Machine, version: str, further: dict[str, Any], collects: bool
) -> None:
    machine.configure(recorder(machine, "modern"), cniVersion=version, **further)
    networks = machine.networks()
    for name in ("one", "two"):
        await networks.connect(machine.attachment(name))
    calls(machine)
    assert await networks.remove_unknown(["one"]) == []
    swept, *collected = calls(machine)
    assert (swept["command"], swept["id"]) == ("DEL", "two")
    valid = [{"containerID": "one", "ifname": "eth0"}]
    assert [call["command"] for call in collected] == ["GC"] * collects
    assert all(call["given"]["cni.dev/valid-attachments"] == valid for call in collected)


async def test_before_cni_0_4_check_is_skipped_and_del_has_no_prev_result(machine: Machine) -> None:
    answer = '{"ip4":{"ip":"10.250.1.9/24"},"dns":{}}'
    machine.configure(recorder(machine, "old", answer), cniVersion="0.2.0")
    networks = machine.networks()
    assert (await networks.connect(machine.attachment("one"))).ip == "10.250.1.9"
    await networks.cni.check(machine.attachment("one"))
    await networks.disconnect("one")
    recorded = calls(machine)
    assert [call["command"] for call in recorded] == ["ADD", "DEL"]
    assert "prevResult" not in recorded[1]["given"]


async def test_check_can_be_disabled(machine: Machine) -> None:
    machine.configure(recorder(machine, "first"), disableCheck=True)
    networks = machine.networks()
    await networks.connect(machine.attachment("one"))
    await networks.cni.check(machine.attachment("one"))
    assert summary(machine) == [("ADD", "first")]


@pytest.mark.parametrize("room", [0, 1], ids=["at once", "half way"])
async def test_unwritable_cache_is_named_and_add_is_rolled_back(
    machine: Machine, room: int
) -> None:
    """The disk fills up before the first entry, or while the plugin runs."""
    machine.cache_dir.mkdir()
    run("mount", "-t", "tmpfs", "-o", "size=16k", "none", str(machine.cache_dir))
    try:
        filler = machine.cache_dir / "filler"
        fill = f"dd if=/dev/zero of={filler} bs=4096 2>/dev/null"
        answer = """echo '{"dns":{"domain":"'$(printf %05000d 0)'"}}'"""
        filling = machine.script("filling", f"[ $CNI_COMMAND = DEL ] && exit\n{fill}\n{answer}")
        machine.configure(machine.bridge(), filling)
        if not room:
            with contextlib.suppress(OSError):
                filler.write_bytes(bytes(1 << 20))
        with pytest.raises(CacheUnwritable, match="cannot be written: No space left on device"):
            await machine.networks().connect(machine.attachment("one"))
        filler.unlink()
        assert machine.leftovers() == NOTHING
    finally:
        run("umount", str(machine.cache_dir))


def test_unwritable_configuration_directory_is_named(machine: Machine) -> None:
    machine.conf_dir.symlink_to("/proc/1")
    with pytest.raises(NoCniConfig, match=r"99-winpod.conflist cannot be written"):
        machine.cni().write_default()


def test_default_network_is_written_only_if_there_is_none(machine: Machine) -> None:
    written = machine.cni().write_default(leases=machine.leases)
    assert written
    before = written.read_bytes()
    assert machine.cni().write_default(leases=machine.leases) is None
    written.unlink()
    machine.configure(machine.bridge())
    assert machine.cni().write_default(leases=machine.leases) is None
    (machine.conf_dir / "10-own.conflist").unlink()
    cni = machine.cni()
    cni._plugins.directories = (Path("/nowhere"),)
    assert cni.write_default() is None
    assert json.loads(before)["name"] == "winpod"


async def test_changed_pod_cidr_applies_to_new_pods(machine: Machine) -> None:
    def told(subnet: str) -> Path | None:
        return machine.cni().write_node_network(
            [ip_network(subnet)],
            bridge="winpod0",
            leases=machine.leases,
            cluster=ip_network("10.244.0.0/16"),
        )

    assert told("10.244.3.0/24")
    assert told("10.244.3.0/24") is None
    networks = machine.networks()
    first = await networks.connect(machine.attachment("one"))
    assert told("10.244.7.0/24")
    second = await networks.connect(machine.attachment("two"))
    assert first.addresses[0].startswith("10.244.3.")
    assert second.addresses[0].startswith("10.244.7.")
    rules = run("iptables", "-t", "nat", "-S", "POSTROUTING")
    assert "-s 10.244.3.0/24 ! -d 10.244.0.0/16" in rules
    await networks.disconnect("one")
    await networks.disconnect("two")


def test_foreign_configuration_is_not_replaced(machine: Machine) -> None:
    machine.configure(machine.bridge())
    subnets = [ip_network("10.244.3.0/24")]
    cni = machine.cni()
    assert cni.write_node_network(subnets, bridge="b", leases=machine.leases, cluster=None) is None
    assert len(list(machine.conf_dir.iterdir())) == 1
