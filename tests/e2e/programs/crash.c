/* Crashes with an access violation. */
void start(void)
{
    *(volatile int *)8 = 1;
}
