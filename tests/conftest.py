"""For every test: a machine that is busy with other things fails none of them."""

from hypothesis import settings

settings.register_profile("patient", deadline=None)
settings.load_profile("patient")
