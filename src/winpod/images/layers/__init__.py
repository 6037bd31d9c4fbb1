"""The layers of Windows images: unpacked, told apart, and stacked."""

from winpod.images.layers.bases import peek_base
from winpod.images.layers.limits import Limits, UnpackedLayer
from winpod.images.layers.merging import lower_directories
from winpod.images.layers.names import NameMap
from winpod.images.layers.unpack import unpack_layer

__all__ = [
    "Limits",
    "NameMap",
    "UnpackedLayer",
    "lower_directories",
    "peek_base",
    "unpack_layer",
]
