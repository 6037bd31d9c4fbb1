/* Delivers console events as Windows does: a thread in the program runs kernelbase's CtrlRoutine.
 * Wine's own console supports only Ctrl+C and Ctrl+Break.
 */

#include "wagent.h"

static BOOL read_memory(HANDLE process, const BYTE *from, void *into, SIZE_T size)
{
    SIZE_T got;
    return ReadProcessMemory(process, from, into, size, &got) && got == size;
}

/* Returns the address of a table of a module in another process, 32-bit or 64-bit. */
static BYTE *table_of(HANDLE process, BYTE *module, int which)
{
    IMAGE_DOS_HEADER dos;
    IMAGE_NT_HEADERS64 head;
    if (!read_memory(process, module, &dos, sizeof dos)
        || !read_memory(process, module + dos.e_lfanew, &head, sizeof head))
        return NULL;
    IMAGE_DATA_DIRECTORY *directory = head.OptionalHeader.DataDirectory;
    if (head.OptionalHeader.Magic == IMAGE_NT_OPTIONAL_HDR32_MAGIC)
        directory = ((IMAGE_NT_HEADERS32 *)&head)->OptionalHeader.DataDirectory;
    return directory[which].VirtualAddress ? module + directory[which].VirtualAddress : NULL;
}

static int compare(const char *one, const char *other)
{
    while (*one && *one == *other)
        one++, other++;
    return (BYTE)*one - (BYTE)*other;
}

static BYTE *exported(HANDLE process, BYTE *module, const char *wanted)
{
    BYTE *at = table_of(process, module, IMAGE_DIRECTORY_ENTRY_EXPORT);
    IMAGE_EXPORT_DIRECTORY table;
    if (!at || !read_memory(process, at, &table, sizeof table))
        return NULL;
    BYTE *ordinals = module + table.AddressOfNameOrdinals;
    BYTE *functions = module + table.AddressOfFunctions;
    DWORD low = 0, high = table.NumberOfNames;
    while (low < high) {
        DWORD middle = low + (high - low) / 2, name, function;
        WORD ordinal;
        char found[32] = {0};
        if (!read_memory(process, module + table.AddressOfNames + 4ull * middle, &name, sizeof name)
            || !read_memory(process, module + name, found, sizeof found - 1))
            return NULL;
        int order = compare(wanted, found);
        if (order < 0)
            high = middle;
        else if (order > 0)
            low = middle + 1;
        else if (read_memory(process, ordinals + 2ull * middle, &ordinal, 2)
                 && read_memory(process, functions + 4ull * ordinal, &function, 4))
            return module + function;
        else
            return NULL;
    }
    return NULL;
}

/* Returns the import address table slot of a function. */
static BYTE *imported(HANDLE process, BYTE *module, const char *wanted, SIZE_T width)
{
    BYTE *at = table_of(process, module, IMAGE_DIRECTORY_ENTRY_IMPORT);
    IMAGE_IMPORT_DESCRIPTOR from;
    for (; at && read_memory(process, at, &from, sizeof from) && from.Name; at += sizeof from) {
        ULONGLONG name = 0;
        BYTE *names = module + from.OriginalFirstThunk;
        for (SIZE_T i = 0; read_memory(process, names + i, &name, width) && name; i += width) {
            char found[32] = {0};
            if (!(name >> (8 * width - 1))
                && read_memory(process, module + name + 2, found, sizeof found - 1)
                && !compare(wanted, found))
                return module + from.FirstThunk + i;
        }
    }
    return NULL;
}

/* A program without a handler should exit with INTERRUPTED, but Wine's default handler exits with 0.
 * Only that handler calls ntdll's exit through kernelbase's imports, so the import is replaced by
 * code that sets the exit code. */
static void exit_interrupted(HANDLE process, BYTE *kernelbase, BOOL narrow)
{
    BYTE wide_code[] = {0xB9, 0x3A, 0x01, 0x00, 0xC0, 0x48, 0xB8, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xE0};
    BYTE narrow_code[] = {0xC7, 0x44, 0x24, 0x04, 0x3A, 0x01, 0x00, 0xC0, 0xB8, 0, 0, 0, 0, 0xFF, 0xE0};
    BYTE *code = narrow ? narrow_code : wide_code, there[5];
    SIZE_T size = narrow ? sizeof narrow_code : sizeof wide_code, width = narrow ? 4 : 8, done;
    BYTE *slot = imported(process, kernelbase, "RtlExitUserProcess", width), *exit = NULL;
    if (!slot || !read_memory(process, slot, &exit, width)
        || !read_memory(process, exit, there, sizeof there))
        return;
    if (RtlCompareMemory(there, code, sizeof there) == sizeof there)
        return; /* already done for an earlier event */
    CopyMemory(code + size - 2 - width, &exit, width);
    BYTE *placed = VirtualAllocEx(process, NULL, size, MEM_COMMIT | MEM_RESERVE,
                                  PAGE_EXECUTE_READWRITE);
    DWORD before;
    if (!placed || (narrow && (ULONG_PTR)placed >> 32)
        || !WriteProcessMemory(process, placed, code, size, &done)
        || !VirtualProtectEx(process, slot, width, PAGE_READWRITE, &before))
        return;
    WriteProcessMemory(process, slot, &placed, width, &done);
    VirtualProtectEx(process, slot, width, before, &before);
}

/* Starts a thread in a program that runs its handlers of an event. libuv, and so Node.js, ignores
 * CTRL_SHUTDOWN_EVENT, so its programs get CTRL_CLOSE_EVENT. */
HANDLE raise_event(HANDLE process, DWORD event)
{
    HMODULE modules[16];
    DWORD size, count;
    BOOL narrow = FALSE;
    IsWow64Process(process, &narrow);
    if (!K32EnumProcessModulesEx(process, modules, sizeof modules, &size,
                                 narrow ? LIST_MODULES_32BIT : LIST_MODULES_64BIT))
        return NULL;
    count = min(size, sizeof modules) / sizeof *modules;
    if (count && event == CTRL_SHUTDOWN_EVENT
        && exported(process, (BYTE *)modules[0], "uv_signal_start"))
        event = CTRL_CLOSE_EVENT;
    for (DWORD i = 1; i < count; i++) {
        WCHAR name[32];
        if (!K32GetModuleBaseNameW(process, modules[i], name, 32)
            || lstrcmpiW(name, L"kernelbase.dll"))
            continue;
        BYTE *routine = exported(process, (BYTE *)modules[i], "CtrlRoutine");
        exit_interrupted(process, (BYTE *)modules[i], narrow);
        return routine ? CreateRemoteThread(process, NULL, 0, (LPTHREAD_START_ROUTINE)(void *)routine,
                                            (void *)(ULONG_PTR)event, 0, NULL)
                       : NULL;
    }
    return NULL;
}
