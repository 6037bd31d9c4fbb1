r"""A Windows host made of Wine behind a real OpenSSH server, for tests of instances.

Real: the SSH server (Debian's), cmd, reg, hostname, the registry, the service manager and its
services, files as Windows has them (names in any case, running programs and open files locked),
free space and its end, and containerd.exe, crictl.exe and the SFTP server, built from the Go module
proxy and run under Wine. Two lines are changed in these, where Wine is not Windows (`programs.py`).

Stand-ins of ours, in `stand_ins/`, none with code of winpod: dism, certutil, icacls, shutdown,
PowerShell (the few statements that winpod says), sc (Wine's has no qc, config and error texts; ours
speaks to the real service manager), what Windows does at a boot, and the services kubelet,
kube-proxy, docker and others, which only run. A restart of the host ends everything in it at once
and boots anew.

Not as on Windows: exit codes over SSH are cut to 8 bits; services that fail are not started again;
at a boot services start in no order; error texts are Wine's; there is one user, an administrator,
and no ACLs.

A host is one container with a limit of processes and memory. It has nothing of the machine but
Debian's /usr, read-only, and the machine's network: its address is one of 127.0.0.0/8.
"""

from tests.e2e.windows_host.host import WindowsHost, windows_host

__all__ = ["WindowsHost", "windows_host"]
