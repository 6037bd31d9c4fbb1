"""Kubernetes control plane for tests, built from the Go module proxy and run on loopback."""

from tests.e2e.controlplane.control_plane import IN_TIME, Answer, ControlPlane, KubectlFailed

__all__ = ["IN_TIME", "Answer", "ControlPlane", "KubectlFailed"]
