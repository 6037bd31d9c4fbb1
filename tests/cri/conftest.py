from tests.images.registries import basic_registry, home, registry

__all__ = ["basic_registry", "home", "registry"]
