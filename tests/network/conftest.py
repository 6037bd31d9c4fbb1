from tests.support.network_machine import machine

__all__ = ["machine"]
