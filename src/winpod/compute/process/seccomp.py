"""The system calls that are denied to containers, whatever their user.

Wine needs little of Linux beyond files, memory, threads and sockets. The table lists calls that
change the host, create or enter namespaces, or have a history of kernel bugs; each fails with
EPERM. System calls of other architectures end the process, including 32-bit ones unless the base
has 32-bit Wine.

On the host the OCI runtime installs the filter; in a microVM `wguest` does, which has the table
from native/build.py.
"""

from __future__ import annotations

from typing import Any

_REFUSED = {
    "host state": (
        "acct adjtimex clock_adjtime clock_settime settimeofday stime reboot kexec_load "
        "kexec_file_load swapon swapoff sethostname setdomainname syslog vhangup ioperm iopl "
        "quotactl quotactl_fd nfsservctl uselib ustat sysfs _sysctl"
    ),
    "kernel modules": "init_module finit_module delete_module create_module query_module",
    "mounts": (
        "mount umount umount2 pivot_root chroot open_tree move_mount fsopen fsconfig fsmount "
        "fspick mount_setattr open_by_handle_at name_to_handle_at"
    ),
    "namespaces": "setns unshare",
    "kernel tracing": "bpf perf_event_open lookup_dcookie fanotify_init",
    "keys": "add_key request_key keyctl",
    "memory placement and userfaultfd": (
        "userfaultfd migrate_pages move_pages mbind set_mempolicy set_mempolicy_home_node"
    ),
    "io_uring": "io_uring_setup io_uring_enter io_uring_register",
}
REFUSED_CALLS = sorted(name for names in _REFUSED.values() for name in names.split())
NEW_NAMESPACES = 0x7E020000
"""The CLONE_NEW* flags, with which clone is denied."""
_NOT_PERMITTED, _NO_SUCH_CALL = 1, 38


def seccomp_profile(*, with_32bit: bool) -> dict[str, Any]:
    """Return the OCI runtime's seccomp profile."""
    return {
        "defaultAction": "SCMP_ACT_ALLOW",
        "architectures": ["SCMP_ARCH_X86_64", *(["SCMP_ARCH_X86"] if with_32bit else [])],
        "syscalls": [
            {"names": REFUSED_CALLS, "action": "SCMP_ACT_ERRNO", "errnoRet": _NOT_PERMITTED},
            *(_clone_with(1 << bit) for bit in range(32) if NEW_NAMESPACES >> bit & 1),
            # Flags of clone3 are in memory, which filters cannot read; libc falls back to clone.
            {"names": ["clone3"], "action": "SCMP_ACT_ERRNO", "errnoRet": _NO_SUCH_CALL},
        ],
    }


def _clone_with(flag: int) -> dict[str, Any]:
    return {
        "names": ["clone"],
        "action": "SCMP_ACT_ERRNO",
        "errnoRet": _NOT_PERMITTED,
        "args": [{"index": 0, "value": flag, "valueTwo": flag, "op": "SCMP_CMP_MASKED_EQ"}],
    }
