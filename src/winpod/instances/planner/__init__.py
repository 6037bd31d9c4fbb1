"""Desired state, observed state and the steps between them; pure, used by operator and CLI."""
