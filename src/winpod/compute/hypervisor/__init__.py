"""Pods in microVMs: QEMU with a guest of our own, each pod a clone of one that was booted before.

`kit` has QEMU and a kernel, `template` a guest that is booted once and kept, `machines` a pod's own
clone of it; `guest` speaks to what runs inside. `accelerator` says what this machine can do.
"""
