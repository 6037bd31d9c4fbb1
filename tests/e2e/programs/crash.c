/* Writes where nothing may be written. */
void start(void)
{
    *(volatile int *)8 = 1;
}
