/* The first process of a sandbox of containerd, which has to have one. */
#include <unistd.h>

int main(void)
{
    for (;;)
        pause();
}
