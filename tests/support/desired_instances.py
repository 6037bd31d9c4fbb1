"""Desired states of instances."""

from __future__ import annotations

from winpod.instances.planner.desired import DesiredService, DesiredState, inline_file

LINE = r'"C:\k\bin\kubelet.exe" --label="a b" --100%done --and=&|<>^'
DESIRED = DesiredState(
    version="1.0.0",
    features=("Containers",),
    directories=(r"C:\k", r"C:\k\bin", r"C:\k\containerd", r"C:\var", r"C:\var\log"),
    managed_directories=(r"C:\k\bin", r"C:\k\containerd"),
    files=(
        inline_file(r"C:\k\bin\containerd.exe", b"containerd", ("containerd",)),
        inline_file(r"C:\k\bin\crictl.exe", b"crictl"),
        inline_file(r"C:\k\containerd\secret", b"s3cret", is_secret=True),
        inline_file(r"C:\k\winpod-version", "1.0.0"),
    ),
    services=(
        DesiredService("containerd", r"C:\k\bin\containerd.exe --run-service"),
        DesiredService("kubelet", LINE, ("containerd",), "The kubelet", (10_000,), 300),
    ),
    networks=("winpod",),
    images=("registry.example/pause:1",),
)
