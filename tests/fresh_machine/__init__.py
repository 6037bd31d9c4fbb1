"""Debian guests under emulation, in which winpod is installed and a user session is run."""
