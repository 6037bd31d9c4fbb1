"""The operator's read-only dashboard."""
