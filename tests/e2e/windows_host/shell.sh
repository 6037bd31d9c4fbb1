#!/bin/sh
# Login shell of the host's user, run by sshd with `-c COMMAND`; `sftp` is the SFTP server.
set -u
command=${2-}
program='C:\windows\system32\shell.exe'
[ "$command" = sftp ] && program='C:\windows\system32\sftp-server.exe'
. /etc/windows-environment
export SSH_COMMAND="$command"
# shellcheck disable=SC2016 # meant for the other shell
exec chroot /windows /bin/sh -c 'cd /prefix/drive_c/users && exec /usr/lib/wine/wine64 "$0"' "$program"
