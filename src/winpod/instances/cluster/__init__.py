"""Cluster side of instances: inventory, bootstrap tokens, certificates, Nodes and the CRD."""
