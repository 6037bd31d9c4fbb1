"""The kubelet's role: pods from manifest files or from an API server, and what to do with them."""
