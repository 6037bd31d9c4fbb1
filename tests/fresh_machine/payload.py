"""Disks of a session in addition to the guest's own: the payload and winpod's root.

The payload changes with every run: winpod's wheel, the wheels of its dependencies for the guest's
Python, packed images and the session's scripts. The root disk holds the Wine base as `winpod base
build` leaves it in /var/lib/winpod, and is cached.
"""

import json
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.fresh_machine.guests import (
    PAYLOAD_LABEL,
    ROOT_LABEL,
    Guest,
    Release,
    build_guest,
    make_disk,
    run,
)
from tests.support.e2e.windows_programs import c_program, cache, once
from winpod.compute.hypervisor.assets import build_assets
from winpod.images.base.build_container import with_parent_death_signal
from winpod.images.base.builder import build_base

SOURCE = Path(__file__).resolve().parents[2]
"""Checkout whose winpod is installed in the guests."""
_START = """#!/bin/sh
PYTHONPATH=/mnt/payload exec python3 -m tests.fresh_machine.session
"""
_NO_BYTECODE = shutil.ignore_patterns("__pycache__")
VENV = "/root/winpod"
_INSTALL = """
mount -o loop "$1" "$2"
mount --bind "$3" "$2/mnt"
mount -t proc proc "$2/proc"
inside() {
    env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root chroot "$@"
}
[ -e "$2$4" ] || inside "$2" python3 -m venv "$4"
inside "$2" sh -c '"$0/bin/pip" install --quiet --no-index --find-links /mnt /mnt/*.whl' "$4"
umount "$2/proc" "$2/mnt" "$2"
"""
_ROOT_SIZE = "12G"
_PAYLOAD_SIZE = "1G"
_OLDEST_GLIBC, _GUEST_GLIBC = 17, 36
_PIN = re.compile(r"^([A-Za-z0-9._-]+)(?:\[[^]]*\])?==([^ ;\\]+)", re.MULTILINE)


def build_root_disk() -> Path:
    """Return a cached disk with the Wine base and QEMU, to be mounted at /var/lib/winpod."""
    base, assets = build_base(cache() / "root"), build_assets(cache() / "root")

    def make(disk: Path) -> None:
        with tempfile.TemporaryDirectory(dir=disk.parent) as work:
            for path in (base.path, assets.path):
                folder = Path(work) / path.parent.name
                folder.mkdir()
                run(["cp", "--archive", "--link", str(path), str(folder / path.name)])
            make_disk(disk, ROOT_LABEL, Path(work), _ROOT_SIZE)

    return once("winpod-root", f"{base.path} {assets.path} {_ROOT_SIZE}", make)


def build_wheel(folder: Path) -> Path:
    """Build winpod's wheel from the checkout."""
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    run([*pip, "--wheel-dir", str(folder), str(SOURCE)])
    return next(folder.glob("winpod-*.whl"))


def pack_images(layout: Path) -> None:
    """Pack the images of the session into an OCI layout."""
    with _path_with_winpod() as environment:
        for script in ("pack-images", "web/pack"):
            command = [str(SOURCE / "examples" / script), str(layout)]
            subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)
        for name, file in (("tools", c_program("hostile")), ("files", SOURCE / "LICENSE")):
            with tempfile.TemporaryDirectory() as content:
                shutil.copy(file, content)
                reference = f"oci:{layout}:registry.example/{name}:1.0"
                pack = ["winpod", "image", "pack", content, "-t", reference]
                pack += ["--os-version", "2022"]
                subprocess.run(pack, check=True, env=environment, stdout=subprocess.DEVNULL)


def prepare_guest(release: Release) -> Guest:
    """Return a guest that has a virtual environment with winpod's dependencies, cached.

    Installing them takes minutes under emulation, and seconds in a chroot of the same disk.
    """
    stock, wheels = build_guest(release), dependencies(release)
    decides = f"{stock.folder}\n{wheels}\n{_INSTALL}"

    def make(folder: Path) -> None:
        _copy_and_install(stock, wheels, folder)

    return Guest(once("prepared-guest", decides, make))


def install_winpod(guest: Guest, wheel: Path, folder: Path) -> Guest:
    """Return a copy of a guest with winpod installed by the guest's own pip, in a chroot."""
    return _copy_and_install(guest, wheel.parent, folder)


def _copy_and_install(guest: Guest, wheels: Path, folder: Path) -> Guest:
    folder.mkdir()
    for name in ("kernel", "initrd", "disk"):
        run(["cp", "--sparse=always", str(guest.folder / name), str(folder / name)])
    copied = Guest(folder)
    with tempfile.TemporaryDirectory(dir=folder) as place:
        # The mounts end with this mount namespace.
        script = [str(copied.disk), place, str(wheels), VENV]
        run(with_parent_death_signal(["sh", "-ec", _INSTALL, "sh", *script]))
    return copied


def make_payload(
    disk: Path, release: Release, wheel: Path, images: Path, settings: Mapping[str, Any]
) -> None:
    with tempfile.TemporaryDirectory(dir=disk.parent) as work:
        folder = Path(work)
        shutil.copytree(dependencies(release), folder / "wheels")
        shutil.copy(wheel, folder / "wheels")
        shutil.copytree(images, folder / "images")
        _copy_session(folder)
        (folder / "settings.json").write_text(json.dumps(settings))
        make_disk(disk, PAYLOAD_LABEL, folder, _PAYLOAD_SIZE)


def _copy_session(folder: Path) -> None:
    here = Path(__file__).parent
    package = folder / here.relative_to(SOURCE)
    shutil.copytree(here / "session", package / "session", ignore=_NO_BYTECODE)
    for init in (here / "__init__.py", here.parent / "__init__.py"):
        shutil.copy(init, folder / init.relative_to(SOURCE))
    (folder / "start").write_text(_START)


def dependencies(release: Release) -> Path:
    """Download the wheels of the dependencies of winpod and its extras, of the locked versions."""
    project = tomllib.loads((SOURCE / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].values()
    listed = {*project["dependencies"], *(name for extra in extras for name in extra)}
    requirements = sorted(name for name in listed if not name.startswith("winpod["))
    pins = [f"{name}=={version}" for name, version in _PIN.findall(_lock())]

    def make(folder: Path) -> None:
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as constraints:
            constraints.write("\n".join(pins) + "\n")
            constraints.flush()
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--only-binary=:all:"]
            command += ["--python-version", release.python, "--constraint", constraints.name]
            for minor in range(_OLDEST_GLIBC, _GUEST_GLIBC + 1):
                command += ["--platform", f"manylinux_2_{minor}_x86_64"]
            command += ["--platform", "manylinux2014_x86_64", "--dest", str(folder)]
            run([*command, *requirements])

    return once("wheels", "\n".join([release.python, *requirements, *pins]), make)


def _lock() -> str:
    return (SOURCE / "requirements.lock").read_text()


@contextmanager
def _path_with_winpod() -> Iterator[dict[str, str]]:
    """Yield an environment in which `winpod` and `python3` are the checkout's."""
    with tempfile.TemporaryDirectory() as work:
        for name, command in (("winpod", "-m winpod"), ("python3", "")):
            program = Path(work) / name
            program.write_text(f'#!/bin/sh\nexec {sys.executable} {command} "$@"\n')
            program.chmod(0o755)
        path = f"{work}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
        yield {"PATH": path, "HOME": work, "PYTHONPATH": str(SOURCE / "src"), "LANG": "C.UTF-8"}
