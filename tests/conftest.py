"""Setup of all tests.

hypothesis gets no deadline, because the machine may be busy. Signals are reset to their defaults:
programs started in the background, as by `nohup`, ignore them, and so do their children.
"""

import signal

from hypothesis import settings

settings.register_profile("patient", deadline=None)
settings.load_profile("patient")

for _signal in (signal.SIGHUP, signal.SIGQUIT):
    signal.signal(_signal, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)
