r"""Paths on an instance, below `C:\k` and `C:\var\log`.

Directories in `OWNED` belong to winpod alone and are removed with their content. The `SHARED`
directories above them may be used by others and are removed only when empty.
"""

ROOT = r"C:\k"
BIN = rf"{ROOT}\bin"
CONTAINERD = rf"{ROOT}\containerd"
CONTAINERD_CONFIG = rf"{CONTAINERD}\containerd.toml"
CONTAINERD_ROOT = rf"{CONTAINERD}\root"
CONTAINERD_STATE = rf"{CONTAINERD}\state"
REGISTRIES = rf"{CONTAINERD}\registries"
CNI = rf"{ROOT}\cni"
CNI_BIN = rf"{CNI}\bin"
CNI_CONFIG = rf"{CNI}\config"
NETWORK_CONFIG = rf"{CNI_CONFIG}\10-winpod.conf"
KUBELET = rf"{ROOT}\kubelet"
KUBELET_CONFIG = rf"{KUBELET}\kubelet.yaml"
KUBELET_CA = rf"{KUBELET}\ca.crt"
BOOTSTRAP_KUBECONFIG = rf"{KUBELET}\bootstrap.kubeconfig"
KUBECONFIG = rf"{KUBELET}\kubeconfig"
KUBE_PROXY = rf"{ROOT}\kube-proxy"
KUBE_PROXY_CONFIG = rf"{KUBE_PROXY}\kube-proxy.yaml"
HYBRID_OVERLAY = rf"{ROOT}\hybrid-overlay"
VERSION = rf"{ROOT}\winpod-version"

KUBELET_DATA = r"C:\var\lib\kubelet"
CERTIFICATES = rf"{KUBELET_DATA}\pki"
CLIENT_CERTIFICATE = rf"{CERTIFICATES}\kubelet-client-current.pem"
LOGS = r"C:\var\log"
CONTAINERD_LOGS = rf"{LOGS}\containerd"
CONTAINERD_LOG = rf"{CONTAINERD_LOGS}\containerd.log"
POD_LOGS = rf"{LOGS}\pods"
KUBELET_LOGS = rf"{LOGS}\kubelet"
KUBE_PROXY_LOGS = rf"{LOGS}\kube-proxy"
HYBRID_OVERLAY_LOGS = rf"{LOGS}\hybrid-overlay"
CSI_PROXY_LOGS = rf"{LOGS}\csi-proxy"

SHARED = (ROOT, r"C:\var", LOGS, r"C:\var\lib")
OWNED = (
    BIN,
    CONTAINERD,
    CNI,
    KUBELET,
    KUBE_PROXY,
    HYBRID_OVERLAY,
    KUBELET_DATA,
    CONTAINERD_LOGS,
    POD_LOGS,
    KUBELET_LOGS,
    KUBE_PROXY_LOGS,
    HYBRID_OVERLAY_LOGS,
    CSI_PROXY_LOGS,
)

RUNTIME_PIPE = "npipe://./pipe/containerd-containerd"
