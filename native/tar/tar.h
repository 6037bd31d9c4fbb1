/* Declarations shared by the parts of winpod's tar.
 *
 * Names are UTF-16 inside, and UTF-8 in archives and messages. Paths passed to Windows are absolute
 * and have the \\?\ prefix, which lifts the length limit.
 */

#ifndef WINPOD_TAR_H
#define WINPOD_TAR_H

#include "win_runtime.h"

#define BLOCK 512
#define CHUNK (128 * BLOCK)
#define MAX_EXTENSION (1u << 20) /* bytes of the extension headers of a member */
#define PER_SECOND 10000000ll /* units of Windows' file time, which starts in 1601 */
#define TO_1970 11644473600ll
#define END_OF_LINE L"\r\n"

enum kind { A_FILE, A_DIRECTORY, A_HARD_LINK, A_SYMBOLIC_LINK, ANOTHER };

struct member {
    enum kind kind;
    WCHAR *name, *target; /* target of a link */
    ULONGLONG size;
    LONGLONG time; /* in seconds since 1970 */
};

/* A path to archive, or a name to select from an archive. */
struct operand {
    const WCHAR *path, *directory;
    BOOL found;
};

struct options {
    WCHAR action; /* c, x or t */
    BOOL verbose, now;
    const WCHAR *archive, *directory;
    struct operand *operands;
    int count;
};

/* paths.c */
WCHAR *concat(const WCHAR *one, const WCHAR *two, const WCHAR *three);
BOOL is_slash(WCHAR letter);
char *to_utf8(const WCHAR *text);
WCHAR *to_utf16(const char *text, SIZE_T size);
WCHAR *join_path(const WCHAR *directory, const WCHAR *name);
WCHAR *full_path(const WCHAR *directory, const WCHAR *path);

/* messages.c */
void print(HANDLE to, const WCHAR *one, const WCHAR *two, const WCHAR *three);
void inform(const WCHAR *subject, const WCHAR *what);
void warn(const WCHAR *subject, const WCHAR *what);
void warn_last_error(const WCHAR *subject);
BOOL any_failed(void);
_Noreturn void fail(const WCHAR *subject, const WCHAR *what);
_Noreturn void fail_with_error(const WCHAR *subject);
_Noreturn void finish(void);

/* options.c */
struct options read_options(WCHAR *line);

/* archive.c */
void open_archive(const WCHAR *path, BOOL writing);
BOOL is_archive(const BY_HANDLE_FILE_INFORMATION *file);
DWORD read_bytes(void *to, DWORD size);
DWORD read_some(ULONGLONG most, const BYTE **data);
void skip(ULONGLONG size);
void write_bytes(const void *data, DWORD size);
void close_archive(void);
ULONGLONG padding(ULONGLONG size);

/* header.c */
struct header {
    char name[100], mode[8], user[8], group[8], size[12], time[12], sum[8], type, target[100],
        magic[8], user_name[32], group_name[32], major[8], minor[8], prefix[155], rest[12];
};

SIZE_T length(const char *text, SIZE_T most);
BOOL is_empty(const struct header *header);
BOOL is_header(const struct header *header);
LONGLONG get_number(const char *field, SIZE_T size);
void put_header(const char *name, char type, ULONGLONG size, LONGLONG time);

/* members.c */
BOOL next_member(struct member *member);

/* extract.c */
void extract(const struct options *options);

/* create.c */
void create(const struct options *options);

#endif
