"""What a container may not ask of the kernel, whatever its user.

Windows programs ask Wine, and Wine needs little of Linux beyond files, memory, threads and sockets.
The table names what changes the machine, makes or enters namespaces, or has a history of bugs in
the kernel; each answers "not permitted". System calls of other architectures end the process; those
of 32-bit programs are another unless the base has such.

On the machine an OCI runtime makes a filter of it; in a microVM `wguest` does, which has the table
from native/build.py.
"""

from __future__ import annotations

from typing import Any

_REFUSED = {
    "the machine": (
        "acct adjtimex clock_adjtime clock_settime settimeofday stime reboot kexec_load "
        "kexec_file_load swapon swapoff sethostname setdomainname syslog vhangup ioperm iopl "
        "quotactl quotactl_fd nfsservctl uselib ustat sysfs _sysctl"
    ),
    "modules of the kernel": "init_module finit_module delete_module create_module query_module",
    "mounts": (
        "mount umount umount2 pivot_root chroot open_tree move_mount fsopen fsconfig fsmount "
        "fspick mount_setattr open_by_handle_at name_to_handle_at"
    ),
    "namespaces": "setns unshare",
    "tracing of the kernel": "bpf perf_event_open lookup_dcookie fanotify_init",
    "keys": "add_key request_key keyctl",
    "memory of other machines and hidden memory": (
        "userfaultfd migrate_pages move_pages mbind set_mempolicy set_mempolicy_home_node"
    ),
    "a second way to do input and output": "io_uring_setup io_uring_enter io_uring_register",
}
REFUSED_CALLS = sorted(name for names in _REFUSED.values() for name in names.split())
NEW_NAMESPACES = 0x7E020000
"""Flags of a clone that is refused too."""
_NOT_PERMITTED, _NO_SUCH_CALL = 1, 38


def seccomp_profile(*, with_32bit: bool) -> dict[str, Any]:
    """As an OCI runtime takes it."""
    return {
        "defaultAction": "SCMP_ACT_ALLOW",
        "architectures": ["SCMP_ARCH_X86_64", *(["SCMP_ARCH_X86"] if with_32bit else [])],
        "syscalls": [
            {"names": REFUSED_CALLS, "action": "SCMP_ACT_ERRNO", "errnoRet": _NOT_PERMITTED},
            *(_clone_with(1 << bit) for bit in range(32) if NEW_NAMESPACES >> bit & 1),
            # Its flags are in memory, where no filter can look; libraries fall back to clone.
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
