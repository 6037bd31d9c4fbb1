/* Changes to the registry. */

#include "wagent.h"

/* Applies one registry_change. */
static DWORD apply_change(struct reader *reader)
{
    HKEY roots[] = {
        [REGISTRY_ROOT_MACHINE] = HKEY_LOCAL_MACHINE,
        [REGISTRY_ROOT_USER] = HKEY_CURRENT_USER,
        [REGISTRY_ROOT_USERS] = HKEY_USERS,
    };
    HKEY opened = NULL;
    HKEY root = roots[*bytes(reader, 1) % 3];
    BYTE operation = *bytes(reader, 1);
    DWORD type = get32(bytes(reader, 4));
    WCHAR *key = text(reader, MAX_TEXT), *name = text(reader, MAX_TEXT);
    DWORD size = get32(bytes(reader, 4));
    const BYTE *data = bytes(reader, size);
    LSTATUS error = ERROR_INVALID_PARAMETER;
    if (!reader->bad && operation == REGISTRY_OPERATION_DELETE_KEY) {
        error = RegDeleteTreeW(root, key);
    } else if (!reader->bad && operation < REGISTRY_OPERATION_DELETE_KEY) {
        error = RegCreateKeyExW(root, key, 0, NULL, 0, KEY_SET_VALUE, NULL, &opened, NULL);
        if (!error)
            error = operation ? RegDeleteValueW(opened, name)
                              : RegSetValueExW(opened, name, 0, type, data, size);
    }
    if (opened)
        RegCloseKey(opened);
    release(key);
    release(name);
    return operation && error == ERROR_FILE_NOT_FOUND ? 0 : (DWORD)error;
}

void change_registry(DWORD id, const BYTE *payload, DWORD size)
{
    struct reader reader = {payload, payload + size, FALSE};
    DWORD error = 0;
    while (!error && reader.at < reader.end)
        error = apply_change(&reader);
    if (error)
        send_failure(id, error);
    else
        send_done(id);
}
