"""CRI v1 server, used by kubelet, crictl and critest."""
