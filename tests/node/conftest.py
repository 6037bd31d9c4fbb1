from tests.images.registries import home, registry

__all__ = ["home", "registry"]
