"""Windows images: references, registry client, pull, store, layers, Wine base and packing."""
