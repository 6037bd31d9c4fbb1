"""Instances changed by a command, without an operator."""
