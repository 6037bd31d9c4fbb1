"""Boots stock Debian guests under emulation, installs winpod and runs a user's session on them."""
