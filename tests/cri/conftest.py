from tests.support.registries import basic_registry, home, registry

__all__ = ["basic_registry", "home", "registry"]
