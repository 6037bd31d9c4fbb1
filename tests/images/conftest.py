from tests.support.registries import basic_registry, home, registry, tls_registry, token_registry

__all__ = ["basic_registry", "home", "registry", "tls_registry", "token_registry"]
