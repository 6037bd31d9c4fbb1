/* Stand-in for `ipconfig /all`: Wine's does not print DNS settings. Host name, addresses, DNS
 * servers and suffixes are read with the Windows API, so they are those that every program sees.
 */

#include <stdio.h>
#include <stdlib.h>
#include <winsock2.h>
#include <ws2tcpip.h>
#include <iphlpapi.h>
#include <windns.h>

static void say(const char *what, int first, const char *value)
{
    char label[35] = "";
    if (!first) {
        printf("%39s%s\n", "", value);
        return;
    }
    memcpy(label, what, strlen(what));
    for (size_t i = strlen(what); i < sizeof label - 1; i++)
        label[i] = i % 2 ? ' ' : '.';
    printf("   %s: %s\n", label, value);
}

static const char *text_of(SOCKET_ADDRESS *address)
{
    static char text[NI_MAXHOST];
    if (getnameinfo(address->lpSockaddr, address->iSockaddrLength, text, sizeof text, NULL, 0,
                    NI_NUMERICHOST))
        return "?";
    return text;
}

static void say_suffixes(void)
{
    WCHAR suffixes[2048];
    DWORD size = sizeof suffixes;
    if (DnsQueryConfig(DnsConfigSearchList, 0, NULL, NULL, suffixes, &size))
        return;
    for (WCHAR *one = suffixes; *one; one += wcslen(one) + 1) {
        char suffix[256];
        snprintf(suffix, sizeof suffix, "%ls", one);
        say("DNS Suffix Search List", one == suffixes, suffix);
    }
}

int main(void)
{
    WSADATA started;
    WSAStartup(MAKEWORD(2, 2), &started);
    char host[256] = "";
    gethostname(host, sizeof host);
    printf("\nWindows IP Configuration\n\n");
    say("Host Name", 1, host);
    say_suffixes();
    ULONG size = 1 << 16;
    IP_ADAPTER_ADDRESSES *all = malloc(size);
    ULONG error = GetAdaptersAddresses(AF_UNSPEC, 0, NULL, all, &size);
    if (error) {
        fprintf(stderr, "ipconfig (stand-in): the adapters are not known: error %lu\n", error);
        return (int)error;
    }
    for (IP_ADAPTER_ADDRESSES *one = all; one; one = one->Next) {
        if (one->IfType == IF_TYPE_SOFTWARE_LOOPBACK)
            continue;
        printf("\nEthernet adapter %ls:\n\n", one->FriendlyName);
        for (IP_ADAPTER_UNICAST_ADDRESS *a = one->FirstUnicastAddress; a; a = a->Next)
            say(a->Address.lpSockaddr->sa_family == AF_INET ? "IPv4 Address" : "IPv6 Address", 1,
                text_of(&a->Address));
        int first = 1;
        for (IP_ADAPTER_DNS_SERVER_ADDRESS *d = one->FirstDnsServerAddress; d; d = d->Next) {
            say("DNS Servers", first, text_of(&d->Address));
            first = 0;
        }
    }
    return 0;
}
