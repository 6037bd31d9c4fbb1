/* Parses the command line like Windows' tar, for the supported options. */

#include "tar.h"

static const struct {
    const WCHAR *name;
    WCHAR letter;
} long_names[] = {
    {L"create", L'c'},    {L"extract", L'x'}, {L"get", L'x'},       {L"list", L't'},
    {L"file", L'f'},      {L"cd", L'C'},      {L"directory", L'C'}, {L"verbose", L'v'},
    {L"gzip", L'z'},      {L"bzip2", L'j'},   {L"xz", L'J'},        {L"version", L'V'},
    {L"help", L'h'},      {L"modification-time", L'm'},
    {L"same-permissions", L'p'}, {L"preserve-permissions", L'p'},
    {L"no-same-permissions", L'o'}, {L"no-same-owner", L'o'},
};
static const WCHAR usage[] =
    L"tar c|x|t [v] [m] [p] [o] f FILE|- [-C DIRECTORY] [PATH...]\r\n"
    L"  c creates an archive, x extracts one, t lists it; - is standard input or output.\r\n"
    L"  -m sets no times; -p and -o change nothing, since files here have no modes or owners.\r\n"
    L"This is winpod's tar. It makes and reads tar archives of files and directories, and does\r\n"
    L"not compress.\r\n";

static const WCHAR unknown[] = L"winpod's tar does not have this option; see tar --help";

static BOOL same(const WCHAR *one, const WCHAR *two)
{
    return CompareStringOrdinal(one, -1, two, -1, FALSE) == CSTR_EQUAL;
}

/* Returns the next argument in place, with Windows' rules for quotes and backslashes. NULL after the
 * last. */
static WCHAR *next_argument(WCHAR **line)
{
    WCHAR *from = *line, *to, *argument;
    while (*from == L' ' || *from == L'\t')
        from++;
    if (!*from)
        return NULL;
    argument = to = from;
    for (BOOL quoted = FALSE; *from && (quoted || (*from != L' ' && *from != L'\t'));) {
        SIZE_T slashes = 0;
        while (from[slashes] == L'\\')
            slashes++;
        BOOL before_quote = from[slashes] == L'"';
        from += slashes;
        for (SIZE_T i = before_quote ? slashes / 2 : slashes; i; i--)
            *to++ = L'\\';
        if (before_quote && slashes % 2 == 0) {
            if (quoted && from[1] == L'"')
                *to++ = *from++;
            else
                quoted = !quoted;
            from++;
        } else if (*from && (before_quote || quoted || (*from != L' ' && *from != L'\t'))) {
            *to++ = *from++;
        }
    }
    *line = *from ? from + 1 : from;
    *to = 0;
    return argument;
}

static const WCHAR *value_of(WCHAR letter, const WCHAR *rest, WCHAR **line)
{
    const WCHAR *value = *rest ? rest : next_argument(line);
    WCHAR option[] = {L'-', letter, 0};
    if (!value)
        fail(option, L"the option needs a value");
    return value;
}

static void print_and_end(const WCHAR *text)
{
    print(GetStdHandle(STD_OUTPUT_HANDLE), text, L"", L"");
    finish();
}

static void apply_option(struct options *options, WCHAR letter, const WCHAR *value)
{
    WCHAR option[] = {L'-', letter, 0};
    switch (letter) {
    case L'c':
    case L'x':
    case L't':
        if (options->action && options->action != letter)
            fail(option, L"only one of -c, -x and -t can be given");
        options->action = letter;
        return;
    case L'f':
        options->archive = value;
        return;
    case L'C':
        options->directory = full_path(options->directory, value);
        if (!(GetFileAttributesW(options->directory) + 1))
            fail_with_error(value);
        return;
    case L'v':
        options->verbose = TRUE;
        return;
    case L'm':
        options->now = TRUE;
        return;
    case L'p':
    case L'o':
        return;
    case L'V':
        print_and_end(L"tar of winpod: pax, ustar and GNU archives, without compression\r\n");
    case L'h':
        print_and_end(usage);
    case L'z':
    case L'j':
    case L'J':
        fail(option, L"winpod's tar does not compress or decompress");
    default:
        fail(option, unknown);
    }
}

static BOOL has_value(WCHAR letter)
{
    return letter == L'f' || letter == L'C';
}

static void apply_long_option(struct options *options, WCHAR *name, WCHAR **line)
{
    WCHAR *value = name;
    while (*value && *value != L'=')
        value++;
    if (*value)
        *value++ = 0;
    for (SIZE_T i = 0; i < ARRAYSIZE(long_names); i++) {
        if (same(name, long_names[i].name)) {
            WCHAR letter = long_names[i].letter;
            apply_option(options, letter, has_value(letter) ? value_of(letter, value, line) : NULL);
            return;
        }
    }
    fail(concat(L"--", name, L""), unknown);
}

/* Letters after a dash, or the first argument without one, whose values all follow it. */
static void apply_letters(struct options *options, const WCHAR *letters, BOOL dashed, WCHAR **line)
{
    for (; *letters; letters++) {
        if (!has_value(*letters)) {
            apply_option(options, *letters, NULL);
        } else {
            apply_option(options, *letters, value_of(*letters, dashed ? letters + 1 : L"", line));
            if (dashed)
                return;
        }
    }
}

struct options read_options(WCHAR *line)
{
    struct options options = {.directory = full_path(L".", L"")};
    options.operands = allocate(((SIZE_T)lstrlenW(line) / 2 + 1) * sizeof *options.operands);
    BOOL first = TRUE, ended = FALSE;
    next_argument(&line);
    for (WCHAR *one; (one = next_argument(&line)); first = FALSE) {
        if (!ended && same(one, L"--"))
            ended = TRUE;
        else if (!ended && one[0] == L'-' && one[1] == L'-')
            apply_long_option(&options, one + 2, &line);
        else if (!ended && one[0] == L'-' && one[1])
            apply_letters(&options, one + 1, TRUE, &line);
        else if (first)
            apply_letters(&options, one, FALSE, &line);
        else
            options.operands[options.count++] = (struct operand){one, options.directory, FALSE};
    }
    if (!options.action)
        fail(L"-c, -x, -t", L"one of them is required; see tar --help");
    if (!options.archive)
        fail(L"-f", L"the archive is required; - is standard input or output");
    if (options.action == L'c' && !options.count)
        fail(L"-c", L"no path to archive is given");
    return options;
}
