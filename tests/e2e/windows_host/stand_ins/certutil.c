/* Stand-in for certutil: `certutil -hashfile FILE SHA256`. Fails for an empty file, as on Windows. */

#include "stand_in.h"

#include <bcrypt.h>

static int fail(DWORD error, const wchar_t *name)
{
    DWORD code = 0x80070000 | error;
    wchar_t sentence[512] = L"";
    FormatMessageW(FORMAT_MESSAGE_FROM_SYSTEM, NULL, error, 0x409, sentence, 512, NULL);
    say(L"CertUtil: -hashfile command FAILED: 0x%08lx (WIN32: %lu %ls)\r\nCertUtil: %ls",
        code, error, name, *sentence ? sentence : L"\r\n");
    return (int)code;
}

static int fail_to_open(DWORD error)
{
    switch (error) {
    case ERROR_FILE_NOT_FOUND: return fail(error, L"ERROR_FILE_NOT_FOUND");
    case ERROR_PATH_NOT_FOUND: return fail(error, L"ERROR_PATH_NOT_FOUND");
    case ERROR_SHARING_VIOLATION: return fail(error, L"ERROR_SHARING_VIOLATION");
    default: return fail(error, L"ERROR_ACCESS_DENIED");
    }
}

int wmain(int count, wchar_t **words)
{
    static UCHAR buffer[1 << 18];
    UCHAR digest[32];
    BCRYPT_ALG_HANDLE algorithm;
    BCRYPT_HASH_HANDLE hash;
    LARGE_INTEGER size;
    DWORD many;
    if (count != 4 || _wcsicmp(words[1], L"-hashfile") || _wcsicmp(words[3], L"SHA256"))
        return fail(ERROR_INVALID_PARAMETER, L"ERROR_INVALID_PARAMETER");
    HANDLE file = CreateFileW(words[2], GENERIC_READ, FILE_SHARE_READ | FILE_SHARE_DELETE, NULL,
                              OPEN_EXISTING, 0, NULL);
    if (file == INVALID_HANDLE_VALUE)
        return fail_to_open(GetLastError());
    if (!GetFileSizeEx(file, &size) || !size.QuadPart)
        return fail(ERROR_FILE_INVALID, L"ERROR_FILE_INVALID");
    if (BCryptOpenAlgorithmProvider(&algorithm, BCRYPT_SHA256_ALGORITHM, NULL, 0)
        || BCryptCreateHash(algorithm, &hash, NULL, 0, NULL, 0, 0))
        return 1;
    while (ReadFile(file, buffer, sizeof buffer, &many, NULL) && many)
        BCryptHashData(hash, buffer, many, 0);
    BCryptFinishHash(hash, digest, sizeof digest, 0);
    say(L"SHA256 hash of %ls:\r\n", words[2]);
    for (size_t i = 0; i < sizeof digest; i++)
        say(L"%02x", digest[i]);
    say(L"\r\nCertUtil: -hashfile command completed successfully.\r\n");
    return 0;
}
