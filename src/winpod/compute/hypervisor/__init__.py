"""Hypervisor isolation: pods in QEMU microVMs, each a clone of a template booted before.

`assets` has QEMU and a kernel, `template` the booted guest, `microvm` a pod's clone of it,
`guest_client` the client of its first process, `accelerator` whether the host has KVM.
"""
