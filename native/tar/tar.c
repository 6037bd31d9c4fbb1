/* winpod's tar for the base's System32, which kubectl cp needs; Windows has one too.
 *
 * Writes pax archives (ustar where that is sufficient) and reads pax, ustar and GNU archives.
 * Without a C library the program needs only kernel32.
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
