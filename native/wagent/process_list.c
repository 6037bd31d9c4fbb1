/* The list of processes. */

#include "wagent.h"

LONG NTAPI NtQuerySystemInformation(ULONG what, void *into, ULONG size, ULONG *needed);

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

/* Answers with a sequence of process_info. */
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
    BYTE *frame = allocate(LINK_HEADER_SIZE + MAX_FRAME), *at = frame + LINK_HEADER_SIZE;
    BYTE *last = frame + LINK_HEADER_SIZE + MAX_FRAME - 1024;
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
        CopyMemory(at + PROCESS_INFO_SIZE, one->image.Buffer, size);
        at += PROCESS_INFO_SIZE + size;
        if (!one->next)
            break;
        from += one->next;
    }
    send_frame(id, FRAME_PROCESS_LIST, frame, (DWORD)(at - frame - LINK_HEADER_SIZE));
    release(frame);
    release(found);
}
