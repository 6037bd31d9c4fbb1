"""Layers of Windows images: unpack them, recognise base layers, stack them for overlayfs."""
