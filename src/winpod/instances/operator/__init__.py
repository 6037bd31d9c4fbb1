"""Operator of the instances of a cluster."""
