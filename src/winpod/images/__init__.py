"""Windows images: references, registries, layouts, packing."""
