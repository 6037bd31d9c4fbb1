r"""Where things are on an instance: the places of document 002, `C:\k` and `C:\var\log`.

What is in `OWNED` is winpod's alone and is removed with all that is in it. The directories above
them may be somebody else's too, and go only when they are empty.
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
NETWORK_CONFIG = rf"{CNI_CONFIG}\10-winpod.conflist"
KUBELET = rf"{ROOT}\kubelet"
KUBELET_CONFIG = rf"{KUBELET}\kubelet.yaml"
KUBELET_CA = rf"{KUBELET}\ca.crt"
BOOTSTRAP_KUBECONFIG = rf"{KUBELET}\bootstrap.kubeconfig"
KUBECONFIG = rf"{KUBELET}\kubeconfig"
KUBE_PROXY = rf"{ROOT}\kube-proxy"
KUBE_PROXY_CONFIG = rf"{KUBE_PROXY}\kube-proxy.yaml"
VERSION = rf"{ROOT}\winpod-version"

KUBELET_DATA = r"C:\var\lib\kubelet"
CERTIFICATES = rf"{KUBELET_DATA}\pki"
LOGS = r"C:\var\log"
CONTAINERD_LOGS = rf"{LOGS}\containerd"
CONTAINERD_LOG = rf"{CONTAINERD_LOGS}\containerd.log"
POD_LOGS = rf"{LOGS}\pods"
KUBELET_LOGS = rf"{LOGS}\kubelet"
KUBE_PROXY_LOGS = rf"{LOGS}\kube-proxy"
HYBRID_OVERLAY_LOGS = rf"{LOGS}\hybrid-overlay"
CSI_PROXY_LOGS = rf"{LOGS}\csi-proxy"
EXPORTER_LOGS = rf"{LOGS}\windows_exporter"

RUNTIME_PIPE = "npipe://./pipe/containerd-containerd"
