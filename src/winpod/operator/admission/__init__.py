"""The admission webhook and its decisions."""
