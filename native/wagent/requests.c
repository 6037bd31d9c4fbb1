/* Requests without a program: the registry, and the list of processes. */

#include "wagent.h"

LONG NTAPI NtQuerySystemInformation(ULONG what, void *into, ULONG size, ULONG *needed);

/* Applies a change to the registry: u8 root (0 HKLM, 1 HKCU, 2 HKU), u8 operation (0 set, 1 delete
 * value, 2 delete key), u32 type, text key, text name, u32 size, data. */
static DWORD change_registry(struct reader *reader)
{
    HKEY roots[] = {HKEY_LOCAL_MACHINE, HKEY_CURRENT_USER, HKEY_USERS}, opened = NULL;
    HKEY root = roots[*bytes(reader, 1) % 3];
    BYTE what = *bytes(reader, 1);
    DWORD type = get32(bytes(reader, 4));
    WCHAR *key = text(reader, MAX_TEXT), *name = text(reader, MAX_TEXT);
    DWORD size = get32(bytes(reader, 4));
    const BYTE *data = bytes(reader, size);
    LSTATUS error = ERROR_INVALID_PARAMETER;
    if (!reader->bad && what == 2) {
        error = RegDeleteTreeW(root, key);
    } else if (!reader->bad && what < 2) {
        error = RegCreateKeyExW(root, key, 0, NULL, 0, KEY_SET_VALUE, NULL, &opened, NULL);
        if (!error)
            error = what ? RegDeleteValueW(opened, name)
                         : RegSetValueExW(opened, name, 0, type, data, size);
    }
    if (opened)
        RegCloseKey(opened);
    release(key);
    release(name);
    return what && error == ERROR_FILE_NOT_FOUND ? 0 : (DWORD)error;
}

void take_registry(DWORD id, const BYTE *payload, DWORD size)
{
    struct reader reader = {payload, payload + size, FALSE};
    DWORD error = 0;
    while (!error && reader.at < reader.end)
        error = change_registry(&reader);
    if (error)
        send_failure(id, error);
    else
        send_done(id);
}

/* SYSTEM_PROCESS_INFORMATION; only fields that are used have a name. */
struct process_information {
    ULONG next, threads;
    BYTE unused[24];
    LONGLONG created, user, kernel;
    TEXT_VIEW image;
    LONG priority;
    HANDLE pid, parent;
    BYTE unused_too[16];
    SIZE_T peak_virtual, virtual_size;
    ULONG faults;
    SIZE_T peak_working_set, working_set, unused_at_last[4], page_file, peak_page_file, private_size;
};

static void put64(BYTE *at, ULONGLONG value)
{
    put32(at, (DWORD)value);
    put32(at + 4, (DWORD)(value >> 32));
}

/* Records: u32 pid, u32 parent, u32 threads, u64 created, user and kernel time (in 100 ns), u64
 * working set, u64 private bytes, u32 size of the name, the name in UTF-16. */
void list_processes(DWORD id)
{
    ULONG needed = 64 << 10;
    BYTE *found = NULL;
    LONG status = -1;
    for (int tries = 0; tries < 5 && status < 0; tries++) {
        release(found);
        found = allocate(needed += 16 << 10);
        status = NtQuerySystemInformation(5, found, needed, &needed);
    }
    BYTE *frame = allocate(LINK_HEADER + MAX_FRAME), *at = frame + LINK_HEADER;
    BYTE *last = frame + LINK_HEADER + MAX_FRAME - 1024;
    for (BYTE *from = found; status >= 0 && at < last;) {
        struct process_information *one = (void *)from;
        DWORD size = one->image.Buffer ? min(one->image.Length, 512u) : 0;
        put32(at, (DWORD)(ULONG_PTR)one->pid);
        put32(at + 4, (DWORD)(ULONG_PTR)one->parent);
        put32(at + 8, one->threads);
        put64(at + 12, (ULONGLONG)one->created);
        put64(at + 20, (ULONGLONG)one->user);
        put64(at + 28, (ULONGLONG)one->kernel);
        put64(at + 36, one->working_set);
        put64(at + 44, one->private_size ? one->private_size : one->page_file);
        put32(at + 52, size);
        CopyMemory(at + 56, one->image.Buffer, size);
        at += 56 + size;
        if (!one->next)
            break;
        from += one->next;
    }
    send_frame(id, PROCESS_LIST, frame, (DWORD)(at - frame - LINK_HEADER));
    release(frame);
    release(found);
}
