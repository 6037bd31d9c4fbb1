"""The kubelet: runs pods from manifest files or from an API server."""
