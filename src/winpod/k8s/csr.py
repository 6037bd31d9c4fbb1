"""Signer names of kubelet certificate signing requests."""

from __future__ import annotations

SERVING_SIGNER = "kubernetes.io/kubelet-serving"


CLIENT_SIGNER = "kubernetes.io/kube-apiserver-client-kubelet"
