"""winpod runs Windows pods for Kubernetes."""

__version__ = "0.1.0"
