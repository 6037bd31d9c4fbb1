"""Instances looked after by an operator, each on its own, from objects in the cluster."""
