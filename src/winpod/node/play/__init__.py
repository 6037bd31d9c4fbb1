"""Manifests run on this machine: the objects, what they ask for, and the nodes that run it."""
