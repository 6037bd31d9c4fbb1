from tests.network.machine import machine

__all__ = ["machine"]
