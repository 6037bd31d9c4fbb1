"""Run time of `winpod check` and its growth: 5,000 pods against 500 nodes.

Every pod is a separate document with its own name, requests and node pool; images are in an OCI
layout and no registry is used. The reference is the time to parse the same YAML with the same
parser in the same run, so that ratios are meaningful on a loaded machine.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml

SIZES = ((1250, 500), (2500, 500), (5000, 500), (5000, 125), (5000, 250))
IMAGES = 40
POOLS = 10
BUILDS = ("10.0.17763.805", "10.0.20348.2113", "10.0.26100.1742")
WINPOD = (sys.executable, "-m", "winpod")

NODE = """\
apiVersion: v1
kind: Node
metadata:
  name: win-{i}
  labels:
    kubernetes.io/os: windows
    kubernetes.io/arch: amd64
    kubernetes.io/hostname: win-{i}
    node.kubernetes.io/windows-build: "{build}"
    pool: p{pool}
spec:
  taints: [{{key: os, value: windows, effect: NoSchedule}}]
status:
  allocatable: {{cpu: "{cpu}", memory: {memory}Gi, pods: "110"}}
  nodeInfo: {{kernelVersion: {build}.1, containerRuntimeVersion: "winpod://0.1.0"}}
"""

POD = """\
apiVersion: v1
kind: Pod
metadata:
  name: pod-{i}
  labels: {{app: app-{image}, team: t{pool}}}
spec:
  os: {{name: windows}}
  nodeSelector:
    kubernetes.io/os: windows
    pool: p{pool}
  tolerations:
    - {{key: os, value: windows, effect: NoSchedule}}
  containers:
    - name: app
      image: registry.example/app-{image}:1
      env:
        - {{name: INDEX, value: "{i}"}}
      resources:
        requests: {{cpu: {cpu}m, memory: {memory}Mi}}
        limits: {{cpu: "1", memory: 1Gi}}
      ports:
        - containerPort: 80
      volumeMounts:
        - {{name: data, mountPath: 'C:\\data'}}
  volumes:
    - name: data
      emptyDir: {{}}
"""


def write_nodes(file: Path, count: int) -> None:
    documents = (
        NODE.format(
            i=i,
            build=BUILDS[i % 3].rpartition(".")[0],
            pool=i % POOLS,
            cpu=2 + i % 7,
            memory=4 + i % 11,
        )
        for i in range(count)
    )
    file.write_text("---\n".join(documents), "utf-8")


def write_pods(file: Path, count: int) -> None:
    documents = (
        POD.format(i=i, image=i % IMAGES, pool=i % POOLS, cpu=100 + i % 2000, memory=64 + i % 900)
        for i in range(count)
    )
    file.write_text("---\n".join(documents), "utf-8")


def pack_images(folder: Path) -> Path:
    """Pack every third image for all builds and the others for one, for different results."""
    layout, content = folder / "images", folder / "content"
    content.mkdir()
    (content / "app.txt").write_text("an application\n", "utf-8")
    for i in range(IMAGES):
        versions = BUILDS if i % 3 == 0 else BUILDS[i % 3 : i % 3 + 1]
        options = [option for version in versions for option in ("--os-version", version)]
        name = f"oci:{layout}:registry.example/app-{i}:1"
        command = [*WINPOD, "image", "pack", str(content), "-t", name, *options]
        subprocess.run(command, check=True, capture_output=True)
    return layout


def parse_seconds(*files: Path) -> float:
    start = time.perf_counter()
    for file in files:
        for _ in yaml.load_all(file.read_text("utf-8"), yaml.CSafeLoader):
            pass
    return time.perf_counter() - start


def check_seconds(pods: Path, nodes: Path, layout: Path, output: Path) -> tuple[float, float]:
    """Return the wall time and peak memory (MiB) of one command, including its start."""
    command = [*WINPOD, "check", "--offline", "--layout", str(layout), "--nodes", str(nodes)]
    start = time.perf_counter()
    with output.open("wb") as stdout:
        process = subprocess.Popen([*command, "-f", str(pods), "-o", "json"], stdout=stdout)
        _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - start
    if os.waitstatus_to_exitcode(status) not in (0, 1):
        sys.exit("winpod check failed")
    return seconds, usage.ru_maxrss / 1024


def main() -> None:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        layout = pack_images(folder)
        pods, nodes, output = folder / "pods.yaml", folder / "nodes.yaml", folder / "out.json"
        print("pods   nodes  check      per pod    parsing    check/parsing  memory    output")
        for pod_count, node_count in SIZES:
            write_pods(pods, pod_count)
            write_nodes(nodes, node_count)
            parsing = parse_seconds(pods, nodes)
            seconds, memory = check_seconds(pods, nodes, layout, output)
            print(
                f"{pod_count:<6} {node_count:<6} {seconds:6.2f} s  "
                f"{seconds / pod_count * 1000:6.2f} ms  {parsing:6.2f} s  "
                f"{seconds / parsing:8.1f} x   {memory:6.0f} MiB"
                f"  {output.stat().st_size / 2**20:5.0f} MiB"
            )


if __name__ == "__main__":
    main()
