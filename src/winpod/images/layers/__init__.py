"""Layers of Windows images: unpack them, recognise base layers, stack them for overlayfs."""

from winpod.images.layers.base_layers import is_base_layer
from winpod.images.layers.names import NameMap
from winpod.images.layers.overlay import overlay_lowerdirs
from winpod.images.layers.tree import UnpackedLayer, UnpackLimits
from winpod.images.layers.unpack import unpack_layer

__all__ = [
    "NameMap",
    "UnpackLimits",
    "UnpackedLayer",
    "is_base_layer",
    "overlay_lowerdirs",
    "unpack_layer",
]
