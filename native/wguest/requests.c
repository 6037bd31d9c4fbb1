/* The commands that the host can send: a name and its arguments. */

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

static int ping(char **words, struct answer *answer)
{
    (void)words, (void)answer;
    return 0;
}

/* SOURCE TARGET TYPE FLAGS OPTIONS */
static int mount_it(char **words, struct answer *answer)
{
    (void)answer;
    unsigned long flags = strtoul(words[3], NULL, 0);
    return mount(words[0], words[1], words[2], flags, words[4]) ? errno : 0;
}

/* PATH */
static int unmount_it(char **words, struct answer *answer)
{
    (void)answer;
    return umount2(words[0], MNT_DETACH) ? errno : 0;
}

/* PATH, with all data written; fails while files are open */
static int eject(char **words, struct answer *answer)
{
    (void)answer;
    return umount2(words[0], 0) ? errno : 0;
}

/* PATH, with its parents */
static int make_directories(char **words, struct answer *answer)
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

/* PATH: a file, or an empty directory */
static int remove_it(char **words, struct answer *answer)
{
    (void)answer;
    return remove(words[0]) ? errno : 0;
}

/* PATH MAJOR MINOR: a character device with mode 0666 */
static int make_device(char **words, struct answer *answer)
{
    (void)answer;
    dev_t number = makedev(strtoul(words[1], NULL, 10), strtoul(words[2], NULL, 10));
    return mknod(words[0], S_IFCHR, number) || chmod(words[0], 0666) ? errno : 0;
}

/* PATH OWNER */
static int change_owner(char **words, struct answer *answer)
{
    (void)answer;
    uid_t owner = (uid_t)strtoul(words[1], NULL, 10);
    return lchown(words[0], owner, owner) ? errno : 0;
}

/* PATH MODE */
static int change_mode(char **words, struct answer *answer)
{
    (void)answer;
    return chmod(words[0], (mode_t)strtoul(words[1], NULL, 8)) ? errno : 0;
}

/* PATH TEXT */
static int write_text(char **words, struct answer *answer)
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

/* PATH [SIZE] */
static int read_file(char **words, struct answer *answer)
{
    int file = open(words[0], O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return errno;
    ssize_t now;
    size_t most = words[1] ? strtoul(words[1], NULL, 10) : MAX_BYTES;
    if (most > MAX_BYTES)
        most = MAX_BYTES;
    while ((now = read(file, answer->data + answer->size, most - answer->size)) > 0)
        answer->size += (size_t)now;
    int error = now < 0 ? errno : 0;
    close(file);
    return error;
}

/* SECONDS since 1970, with a fraction */
static int set_clock(char **words, struct answer *answer)
{
    (void)answer;
    double at = strtod(words[0], NULL);
    struct timespec now = {.tv_sec = (time_t)at};
    now.tv_nsec = (long)((at - (double)now.tv_sec) * 1e9);
    return clock_settime(CLOCK_REALTIME, &now) ? errno : 0;
}

/* SEED: reseeds the random generator, which is a copy of the template's */
static int add_entropy(char **words, struct answer *answer)
{
    char *written[] = {"/dev/urandom", words[0]};
    int error = write_text(written, answer);
    int file = open("/dev/urandom", O_RDWR | O_CLOEXEC);
    if (!error && ioctl(file, RNDRESEEDCRNG))
        error = errno;
    close(file);
    return error;
}

/* INTERFACE ADDRESS PREFIX */
static int address(char **words, struct answer *answer)
{
    (void)answer;
    return set_address(words[0], words[1], words[2]);
}

/* INTERFACE GATEWAY */
static int route(char **words, struct answer *answer)
{
    (void)answer;
    return set_route(words[0], words[1]);
}

/* PORT NUMBER ADDRESS... */
static int dial_it(char **words, struct answer *answer)
{
    (void)answer;
    return dial(words);
}

static int start(char **words, struct answer *answer)
{
    (void)answer;
    return start_silo(words);
}

/* RESULT COMMAND... */
static int run(char **words, struct answer *answer)
{
    (void)answer;
    return run_program(words[0], words + 1);
}

/* NAME */
static int kill_it(char **words, struct answer *answer)
{
    (void)answer;
    return kill_silo(words[0]);
}

/* NAME SOURCE TARGET */
static int mount_inside(char **words, struct answer *answer)
{
    (void)answer;
    return mount_in_silo(words[0], words[1], words[2]);
}

/* NAME HOSTNAME */
static int rename_inside(char **words, struct answer *answer)
{
    (void)answer;
    return set_silo_hostname(words[0], words[1]);
}

static const struct {
    const char *word;
    int min_words, most;
    int (*act)(char **words, struct answer *answer);
} commands[] = {
    {"ping", 0, 0, ping},
    {"mount", 5, 5, mount_it},
    {"unmount", 1, 1, unmount_it},
    {"eject", 1, 1, eject},
    {"mkdir", 1, 1, make_directories},
    {"remove", 1, 1, remove_it},
    {"device", 3, 3, make_device},
    {"chown", 2, 2, change_owner},
    {"chmod", 2, 2, change_mode},
    {"write", 2, 2, write_text},
    {"read", 1, 2, read_file},
    {"clock", 1, 1, set_clock},
    {"stir", 1, 1, add_entropy},
    {"address", 3, 3, address},
    {"route", 2, 2, route},
    {"dial", 3, MAX_WORDS, dial_it},
    {"start", 11, MAX_WORDS, start},
    {"run", 2, MAX_WORDS, run},
    {"kill", 1, 1, kill_it},
    {"mount-inside", 3, 3, mount_inside},
    {"rename-inside", 2, 2, rename_inside},
};

int answer_request(char **words, struct answer *answer)
{
    int count = 0;
    while (words[count])
        count++;
    for (size_t i = 0; count && i < sizeof commands / sizeof *commands; i++)
        if (!strcmp(commands[i].word, words[0]))
            return count - 1 < commands[i].min_words || count - 1 > commands[i].most
                ? EINVAL
                : commands[i].act(words + 1, answer);
    return ENOSYS;
}
