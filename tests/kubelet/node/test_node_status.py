"""The Node object of a Windows node, field by field."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

from tests.support.known_objects import node_config_in
from winpod.cri.proto import api_pb2 as api
from winpod.k8s.models import core_v1 as v1
from winpod.kubelet.node.node_status import (
    EMULATED,
    WINDOWS_TAINT,
    MachineInfo,
    RuntimeFindings,
    has_changed,
    label_changes,
    new_node,
    node_status,
    osversion_labels,
    runtime_findings,
)
from winpod.kubelet.node_config import MIB, Capacity, ReservedCapacity
from winpod.windows.builds import parse_build

NOW = datetime(2024, 5, 1, 12, tzinfo=UTC)
WELL = RuntimeFindings("winpod://0.1.0")


def test_node_status_reports_windows_version(tmp_path: Path) -> None:
    node_config = replace(
        node_config_in(tmp_path, taints=(WINDOWS_TAINT,)), build=parse_build("10.0.17763.805")
    )
    node = new_node(
        node_config, WELL, node_status(node_config, MachineInfo(port=10250), WELL, None, NOW)
    )
    assert node.metadata
    assert node.metadata.labels == {
        "kubernetes.io/os": "windows",
        "kubernetes.io/arch": "amd64",
        "kubernetes.io/hostname": "win-1",
        "node.kubernetes.io/windows-build": "10.0.17763",
    }
    assert node.spec
    assert [t.to_dict() for t in node.spec.taints or ()] == [
        {"key": "os", "value": "windows", "effect": "NoSchedule"}
    ]
    assert node.status
    info = node.status.nodeInfo
    assert info
    assert info.osImage == "Windows Server 2019 Datacenter"
    assert info.kernelVersion == "10.0.17763.805"
    assert info.operatingSystem == "windows"
    assert info.containerRuntimeVersion == "winpod://0.1.0"
    assert {a.type: a.address for a in node.status.addresses or ()} == {
        "InternalIP": "10.0.0.9",
        "Hostname": "win-1",
    }


def test_allocatable_excludes_reservations(tmp_path: Path) -> None:
    reserved = ReservedCapacity(
        Capacity(Decimal("0.5"), 256 * MIB), Capacity(memory_bytes=256 * MIB)
    )
    node_config = node_config_in(tmp_path, reserved=reserved)
    status = node_status(node_config, MachineInfo(), WELL, None, NOW)
    assert status.capacity
    assert status.allocatable
    assert (status.capacity["cpu"], status.allocatable["cpu"]) == ("4", "3500m")
    assert status.capacity["memory"] == "8388608Ki"
    assert status.allocatable["memory"] == f"{(8192 - 256 - 256 - 500) * 1024}Ki"
    assert status.allocatable["pods"] == "110"


def test_runtime_without_network_makes_node_not_ready(tmp_path: Path) -> None:
    answer = api.StatusResponse(
        status=api.RuntimeStatus(
            conditions=[
                api.RuntimeCondition(type="RuntimeReady", status=True),
                api.RuntimeCondition(
                    type="NetworkReady", status=False, reason="NetworkPluginNotReady", message="no"
                ),
            ]
        ),
        runtime_handlers=[api.RuntimeHandler(name=""), api.RuntimeHandler(name="process")],
    )
    version = api.VersionResponse(runtime_name="winpod", runtime_version="0.1.0")
    findings = runtime_findings(version, answer, [], frozenset({"DiskPressure"}))
    status = node_status(node_config_in(tmp_path), MachineInfo(), findings, None, NOW)
    told = {c.type: (c.status, c.reason, c.message) for c in status.conditions or ()}
    assert told["Ready"] == (
        "False",
        "KubeletNotReady",
        "container runtime network not ready: NetworkReady=false reason:NetworkPluginNotReady "
        "message:no",
    )
    assert told["MemoryPressure"] == (
        "False",
        "KubeletHasSufficientMemory",
        "kubelet has sufficient memory available",
    )
    assert told["DiskPressure"] == (
        "True",
        "KubeletHasDiskPressure",
        "kubelet has disk pressure",
    )
    assert [handler.name for handler in status.runtimeHandlers or ()] == ["", "process"]


def test_unchanged_condition_keeps_transition_time(tmp_path: Path) -> None:
    node_config, later = node_config_in(tmp_path), NOW + timedelta(minutes=1)
    first = node_status(node_config, MachineInfo(), WELL, None, NOW)
    same = node_status(node_config, MachineInfo(), WELL, first, later)
    broken = node_status(
        node_config, MachineInfo(), replace(WELL, unready_conditions=("down",)), same, later
    )
    assert same.conditions
    assert broken.conditions
    assert {c.lastTransitionTime for c in same.conditions} == {NOW}
    assert {c.lastHeartbeatTime for c in same.conditions} == {later}
    assert broken.conditions[-1].lastTransitionTime == later
    assert has_changed(first, None)
    assert not has_changed(same, first)
    assert has_changed(broken, same)


def test_emulation_condition_follows_accelerator(
    tmp_path: Path,
) -> None:
    node_config = node_config_in(tmp_path)
    info = {"hypervisor": json.dumps({"accelerator": "emulation", "trouble": None})}
    findings = runtime_findings(
        api.VersionResponse(), api.StatusResponse(info=info), [], frozenset()
    )
    plain = node_status(node_config, MachineInfo(), WELL, None, NOW)
    emulated = node_status(node_config, MachineInfo(), findings, plain, NOW)
    without = node_status(node_config, MachineInfo(), WELL, emulated, NOW)
    assert _told(plain).get(EMULATED) is None
    assert _told(emulated)[EMULATED] == ("True", "NoHardwareVirtualization")
    assert _told(without)[EMULATED] == ("False", "NoHypervisor")
    assert has_changed(emulated, plain)
    node = new_node(node_config, findings, emulated)
    assert node.metadata
    assert (node.metadata.labels or {})["winpod.dev/hypervisor"] == "emulation"
    assert label_changes(node, findings.labels) == {}
    assert label_changes(node, WELL.labels) == {"winpod.dev/hypervisor": None}
    node.metadata.labels = osversion_labels(node_config.build, ["runhcs-wcow-hypervisor"])
    assert label_changes(node, WELL.labels) == {"capability.microsoft.com/isolation": None}


def _told(status: v1.NodeStatus) -> dict[str, tuple[str, str | None]]:
    return {c.type: (c.status, c.reason) for c in status.conditions or ()}


def test_node_status_lists_largest_images(tmp_path: Path) -> None:
    images = [
        api.Image(id=f"sha256:{n:064x}", size=n, repo_tags=[f"app:{n}"]) for n in range(1, 61)
    ]
    findings = runtime_findings(api.VersionResponse(), api.StatusResponse(), images, frozenset())
    told = node_status(node_config_in(tmp_path), MachineInfo(), findings, None, NOW).images or []
    assert len(told) == 50
    assert (told[0].names, told[0].sizeBytes) == (["app:60"], 60)


def test_osversion_labels_of_document_000_are_optional() -> None:
    build = parse_build("2019")
    assert osversion_labels(build, ["runhcs-wcow-process"]) == {
        "beta.kubernetes.io/osversion": "10.0.17763"
    }
    handlers = ["runhcs-wcow-process", "runhcs-wcow-hypervisor"]
    assert osversion_labels(build, handlers)["capability.microsoft.com/isolation"] == "hyperv"
