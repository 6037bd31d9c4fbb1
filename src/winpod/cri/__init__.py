"""The CRI server: what kubelet, crictl and critest talk to."""
