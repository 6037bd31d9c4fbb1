/* Pause process, which containerd requires in every sandbox. */
#include <unistd.h>

int main(void)
{
    for (;;)
        pause();
}
