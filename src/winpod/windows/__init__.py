"""What Windows is: builds, isolation, platforms, placement, the Pod API, paths and command lines.

Pure: nothing here reads a file, a clock or the network, nor imports the rest of winpod.
"""
