"""The cluster's brain: what runs where, and why not."""
