"""Facts about Windows: builds, isolation, handlers, platforms, users, paths and the Pod API.

Pure: nothing here reads a file, a clock or the network, or imports other packages of winpod.
"""
