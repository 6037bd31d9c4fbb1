/* The commands that the host can send, as described in agent_protocol.toml. */

#define _GNU_SOURCE
#include "wguest.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/random.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <time.h>
#include <unistd.h>

static int handle_ping(char **words, struct answer *answer)
{
    (void)words, (void)answer;
    return 0;
}

static int handle_mount(char **words, struct answer *answer)
{
    (void)answer;
    unsigned long flags = strtoul(words[3], NULL, 0);
    return mount(words[0], words[1], words[2], flags, words[4]) ? errno : 0;
}

static int handle_unmount(char **words, struct answer *answer)
{
    (void)answer;
    return umount2(words[0], MNT_DETACH) ? errno : 0;
}

static int handle_eject(char **words, struct answer *answer)
{
    (void)answer;
    return umount2(words[0], 0) ? errno : 0;
}

static int handle_mkdir(char **words, struct answer *answer)
{
    (void)answer;
    for (char *at = words[0]; at; ) {
        at = strchr(at + 1, '/');
        if (at)
            *at = 0;
        if (mkdir(words[0], 0755) && errno != EEXIST)
            return errno;
        if (at)
            *at = '/';
    }
    return 0;
}

static int handle_remove(char **words, struct answer *answer)
{
    (void)answer;
    return remove(words[0]) ? errno : 0;
}

static int handle_mknod(char **words, struct answer *answer)
{
    (void)answer;
    dev_t number = makedev(strtoul(words[1], NULL, 10), strtoul(words[2], NULL, 10));
    return mknod(words[0], S_IFCHR, number) || chmod(words[0], 0666) ? errno : 0;
}

static int handle_chown(char **words, struct answer *answer)
{
    (void)answer;
    uid_t owner = (uid_t)strtoul(words[1], NULL, 10);
    return lchown(words[0], owner, owner) ? errno : 0;
}

static int handle_chmod(char **words, struct answer *answer)
{
    (void)answer;
    return chmod(words[0], (mode_t)strtoul(words[1], NULL, 8)) ? errno : 0;
}

static int handle_write(char **words, struct answer *answer)
{
    (void)answer;
    int file = open(words[0], O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (file < 0)
        return errno;
    size_t size = strlen(words[1]);
    int error = write(file, words[1], size) == (ssize_t)size ? 0 : errno;
    close(file);
    return error;
}

static int handle_read(char **words, struct answer *answer)
{
    int file = open(words[0], O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return errno;
    ssize_t now;
    size_t most = words[1] ? strtoul(words[1], NULL, 10) : GUEST_MAX_BYTES;
    if (most > GUEST_MAX_BYTES)
        most = GUEST_MAX_BYTES;
    while ((now = read(file, answer->data + answer->size, most - answer->size)) > 0)
        answer->size += (size_t)now;
    int error = now < 0 ? errno : 0;
    close(file);
    return error;
}

static int handle_set_clock(char **words, struct answer *answer)
{
    (void)answer;
    double at = strtod(words[0], NULL);
    struct timespec now = {.tv_sec = (time_t)at};
    now.tv_nsec = (long)((at - (double)now.tv_sec) * 1e9);
    return clock_settime(CLOCK_REALTIME, &now) ? errno : 0;
}

static int handle_add_entropy(char **words, struct answer *answer)
{
    char *written[] = {"/dev/urandom", words[0]};
    int error = handle_write(written, answer);
    int file = open("/dev/urandom", O_RDWR | O_CLOEXEC);
    if (!error && ioctl(file, RNDRESEEDCRNG))
        error = errno;
    close(file);
    return error;
}

static int handle_set_address(char **words, struct answer *answer)
{
    (void)answer;
    return set_address(words[0], words[1], words[2]);
}

static int handle_set_route(char **words, struct answer *answer)
{
    (void)answer;
    return set_route(words[0], words[1]);
}

static int handle_dial(char **words, struct answer *answer)
{
    (void)answer;
    return dial(words);
}

static int handle_start_silo(char **words, struct answer *answer)
{
    (void)answer;
    return start_silo(words);
}

static int handle_run(char **words, struct answer *answer)
{
    (void)answer;
    return run_program(words[0], words + 1);
}

static int handle_kill_silo(char **words, struct answer *answer)
{
    (void)answer;
    return kill_silo(words[0]);
}

static int handle_mount_in_silo(char **words, struct answer *answer)
{
    (void)answer;
    return mount_in_silo(words[0], words[1], words[2]);
}

static int handle_set_silo_hostname(char **words, struct answer *answer)
{
    (void)answer;
    return set_silo_hostname(words[0], words[1]);
}

static const struct {
    const char *word;
    int least, greatest;
    int (*handle)(char **words, struct answer *answer);
} commands[] = {
#define COMMAND(name, word, least, greatest) {word, least, greatest, handle_##name},
    GUEST_COMMANDS(COMMAND)
};

int run_command(char **words, struct answer *answer)
{
    int count = 0;
    while (words[count])
        count++;
    for (size_t i = 0; count && i < sizeof commands / sizeof *commands; i++)
        if (!strcmp(commands[i].word, words[0]))
            return count - 1 < commands[i].least || count - 1 > commands[i].greatest
                ? EINVAL
                : commands[i].handle(words + 1, answer);
    return ENOSYS;
}
