/* winpod's tar, for the base's System32, where Windows has one too: kubectl cp needs it.
 *
 * Archives are made as pax (ustar where that is enough) and read as pax, ustar and GNU's. There is
 * no C library: the program needs nothing but kernel32.
 */

#include "tar.h"

void start(void)
{
    struct options options = read_options(GetCommandLineW());
    open_archive(options.archive, options.action == L'c');
    if (options.action == L'c')
        create(&options);
    else
        extract(&options);
    finish();
}
