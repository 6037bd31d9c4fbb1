#!/bin/bash
# Process 1 of a Windows host: boots Windows, then runs sshd, until a shutdown is requested.
# Bash, because it reaps orphaned processes.
set -u
. /etc/windows-environment

while :; do
    [ -e /windows/prefix/next-hostname ] && hostname "$(cat /windows/prefix/next-hostname)"
    mkdir -p /run/sshd
    rm -f /windows/root/power
    mkfifo /windows/root/power
    exec 3<>/windows/root/power
    chroot /windows /usr/lib/wine/wineserver -p
    /shell.sh -c boot
    /usr/sbin/sshd -D -e -f /etc/ssh/sshd_config 3<&- &
    read -r -u 3 wish seconds
    sleep "$seconds"
    kill "$!"
    chroot /windows /usr/lib/wine/wineserver -k
    kill -9 -1
    wait
    [ "$wish" = reboot ] || exit 0
    sleep "$DOWN_SECONDS"
done
