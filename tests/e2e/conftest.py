"""Fixtures that start real programs."""

from collections.abc import Iterator

import pytest
from tests.e2e.controlplane import ControlPlane
from tests.support.e2e.go_build import Say
from tests.support.e2e.windows_cluster import WindowsCluster, windows_cluster
from tests.support.e2e.windows_programs import cache

from winpod.images.base.builder import Base, build_base


@pytest.fixture(scope="session")
def control_plane(
    tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config
) -> Iterator[ControlPlane]:
    """A complete control plane for the session; each test uses its own namespaces and names."""
    say = _progress_printer(pytestconfig)
    with ControlPlane(tmp_path_factory.mktemp("control-plane"), say=say) as running:
        yield running


@pytest.fixture(scope="session")
def cluster(
    tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config, base: Base
) -> Iterator[WindowsCluster]:
    """Windows nodes of two builds with Wine in a separate network, shared by the session."""
    folder = tmp_path_factory.mktemp("cluster")
    with windows_cluster(folder, base, _progress_printer(pytestconfig)) as running:
        yield running


def _progress_printer(pytestconfig: pytest.Config) -> Say:
    def say(line: str) -> None:
        with pytestconfig.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
            print(line, flush=True)

    return say


@pytest.fixture(scope="session")
def base() -> Base:
    """The Wine base, built once per recipe and cached outside of the repository."""
    return build_base(cache() / "root")


@pytest.fixture(scope="session")
def base_32bit() -> Base:
    return build_base(cache() / "root", with_32bit=True)
