r"""Windows host made of Wine behind an OpenSSH server, for tests of instances.

Real: the SSH server (Debian's), cmd, reg, hostname, the registry, the service manager and its
services, files with Windows semantics (case-insensitive names; running programs and open files are
locked), free disk space and its exhaustion, and containerd.exe, crictl.exe and the SFTP server,
built from the Go module proxy and run under Wine. `programs.py` patches two lines of them where
Wine differs from Windows.

Stand-ins, in `stand_ins/`, none with code of winpod: dism, certutil, icacls, shutdown, PowerShell
(only the statements that winpod runs), sc (Wine's has no qc, config and error texts; the stand-in
calls the real service manager), the boot of Windows, and the services kubelet, kube-proxy, docker
and others, which only run. A restart of the host kills all its processes at once and boots again.

Differences from Windows: exit codes over SSH are truncated to 8 bits; failed services are not
restarted; services start in no particular order at boot; error texts are Wine's; there is one user,
an administrator, and no ACLs.

A host is one container with a limit of processes and memory. From the machine it has Debian's /usr,
read-only, and the network: its address is one of 127.0.0.0/8.
"""

from tests.e2e.windows_host.host import WindowsHost, windows_host

__all__ = ["WindowsHost", "windows_host"]
