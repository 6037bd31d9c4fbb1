"""For every test: neither a busy machine nor the way the tests were started fails any of them.

Programs started in the background, as by `nohup`, ignore signals, and so do their children.
"""

import signal

from hypothesis import settings

settings.register_profile("patient", deadline=None)
settings.load_profile("patient")

for _heard in (signal.SIGHUP, signal.SIGQUIT):
    signal.signal(_heard, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)
