/* sift.c: sifts the packets of stdin, and says what each was.
 *
 *   sift   the env "a" has the keys of 32 bytes 1 and of 32 bytes 2, the env "b" the key of 32
 *          bytes 3 stdin: (u8 level, u8 is IPv6, u16 port, u16 size, packet)... stdout, a line for
 *          each: "malformed", "forged", "throttled" or "signed KEY SIZE HOST PORT"
 */
#include "manager/sift.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KEY_BYTES = 32, SECOND = 200 /* packets */ };

struct __attribute__((packed)) head {
    uint8_t level, is_ipv6;
    uint16_t port, size;
};

static void show(const struct nm_sift_batch *batch, const char *packet, size_t size)
{
    const struct nm_sifted *first = &batch->packets[0];
    if (batch->signed_count == 1 &&
        (first->size != size || memcmp(first->bytes, packet, size) != 0))
        exit(4);
    if (batch->signed_count == 1)
        printf("signed %u %u %s %u\n", first->key, first->size, first->host, first->port);
    else
        printf("%s\n", batch->malformed ? "malformed" : batch->forged ? "forged" : "throttled");
    if (batch->malformed + batch->forged + batch->throttled + batch->signed_count != 1)
        exit(5);
}

int main(void)
{
    char keys[3 * KEY_BYTES];
    struct head head;
    struct nm_sift *sift = nm_sift_new();
    for (int key = 0; key < 3; key++)
        memset(keys + key * KEY_BYTES, key + 1, KEY_BYTES);
    if (sift == NULL || !nm_sift_set_keys(sift, "a", keys, 2) ||
        !nm_sift_set_keys(sift, "b", keys + 2 * KEY_BYTES, 1))
        return 2;
    nm_sift_know(sift, "127.0.0.1", 7, 1);
    nm_sift_know(sift, "fe80::1%lo", 7, 1);
    for (uint32_t count = 0; fread(&head, sizeof head, 1, stdin) == 1; count++) {
        char *packet = malloc(head.size); /* of its own size: a read beyond it is seen */
        if (packet == NULL || fread(packet, 1, head.size, stdin) != head.size)
            return 3;
        nm_sift_set_window(sift, count / SECOND);
        show(nm_sift_take(sift, packet, head.size, head.is_ipv6 ? "fe80::1" : "127.0.0.1",
                          head.port, head.level),
             packet, head.size);
        free(packet);
    }
    nm_sift_free(sift);
    return 0;
}
