"""Upgrades from one Windows build to the next: planned, done in steps, undone on failure."""
