/* codec.c: the C end of the wire for the tests: decodes what is on stdin, says what it found,
   and writes it again from its fields. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "wire/wire.h"

static void rebuild(const struct nm_message *message, int direction, struct nm_build *build)
{
    nm_build_begin(build, message->verb, 0);
    for (int key = 0; key < NM_KEY_COUNT; key++) {
        char text[NM_PACKET_BYTES];
        if (!nm_message_has(message, (enum nm_key)key))
            continue;
        nm_message_text(message, (enum nm_key)key, text, sizeof text);
        if (nm_wire_key_type(key, (enum nm_direction)direction) == NM_NUMBER)
            nm_build_number(build, (enum nm_key)key,
                            nm_message_number(message, (enum nm_key)key, 0));
        else
            nm_build_text(build, (enum nm_key)key, text);
    }
}

/* The same value of one key? A number may have lost leading zeros. */
static int same_value(const struct nm_message *first, const struct nm_message *second, int key,
                      int direction)
{
    char one[NM_PACKET_BYTES], two[NM_PACKET_BYTES];
    uint64_t numbers[NM_LIST_MAX];
    int a = nm_message_text(first, (enum nm_key)key, one, sizeof one),
        b = nm_message_text(second, (enum nm_key)key, two, sizeof two);
    /* of any type: to see it stay within bounds */
    nm_message_numbers(first, (enum nm_key)key, numbers);
    if (nm_wire_key_type(key, (enum nm_direction)direction) == NM_NUMBER)
        return nm_message_number(first, (enum nm_key)key, 1) ==
               nm_message_number(second, (enum nm_key)key, 1);
    return a == b && (a < 0 || memcmp(one, two, (size_t)a) == 0);
}

/* 0: all is well. What was decoded, encoded and decoded again is the same. */
static int check(const char *packet, size_t size, int direction)
{
    struct nm_message first, second;
    struct nm_build build;
    uint16_t spans[NM_WIRE_SPANS];
    int error = nm_wire_decode(&first, packet, size, (enum nm_direction)direction);
    int count = nm_wire_spans(packet, size, (enum nm_direction)direction, spans);
    if (error != NM_WIRE_OK)
        return count == error ? 0 : 1;
    rebuild(&first, direction, &build);
    int length = nm_build_end(&build);
    if (length == NM_WIRE_TOO_LONG)
        return 0; /* it had no unknown keys left out, but escapes that need not be */
    if (length < 0 || nm_wire_decode(&second, build.packet, (size_t)length,
                                     (enum nm_direction)direction) != NM_WIRE_OK)
        return 2;
    for (int key = 0; key < NM_KEY_COUNT; key++)
        if (!same_value(&first, &second, key, direction))
            return 3;
    return first.verb == second.verb ? 0 : 4;
}

static void show(const char *packet, size_t size, int direction)
{
    struct nm_message message;
    int error = nm_wire_decode(&message, packet, size, (enum nm_direction)direction);
    if (error != NM_WIRE_OK) {
        printf("error %s\n", nm_wire_error_text(error));
        return;
    }
    printf("verb %s\n", nm_wire_verb_name((int)message.verb));
    for (int key = 0; key < NM_KEY_COUNT; key++) {
        char text[NM_PACKET_BYTES];
        int length = nm_message_text(&message, (enum nm_key)key, text, sizeof text);
        if (length >= 0) {
            printf("%s %d ", nm_wire_key_name(key), length);
            fwrite(text, 1, (size_t)length, stdout);
            printf("\n");
        }
    }
}

/* Mutations of stdin's packet by a small generator, so that a seed is a test. */
static uint64_t next_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    return *state ^= *state << 17;
}

static int fuzz(const char *packet, size_t size, int direction, uint64_t seed, unsigned rounds)
{
    static const char spice[] = "=\n%,0aZ_\xff\0";
    char copy[NM_PACKET_BYTES + 64];
    for (unsigned round = 0; round < rounds; round++) {
        size_t length = size;
        memcpy(copy, packet, size);
        for (unsigned edits = 1 + next_random(&seed) % 4; edits > 0 && length > 0; edits--) {
            size_t at = next_random(&seed) % length;
            switch (next_random(&seed) % 4) {
            case 0: copy[at] = (char)next_random(&seed); break;
            case 1: copy[at] = spice[next_random(&seed) % (sizeof spice - 1)]; break;
            case 2: length = at; break;
            default:
                if (length < sizeof copy) {
                    memmove(copy + at + 1, copy + at, length - at);
                    length++;
                }
            }
        }
        /* of its own size, so that the sanitizer sees one byte too many */
        char *exact = malloc(length > 0 ? length : 1);
        memcpy(exact, copy, length);
        int wrong = check(exact, length, direction);
        free(exact);
        if (wrong != 0) {
            fprintf(stderr, "round %u: %d\n", round, wrong);
            return 1;
        }
    }
    return 0;
}

/* Many packets: for each a byte (1: up), its size in two bytes, itself. */
static int stream(void)
{
    unsigned char head[3];
    while (fread(head, 1, sizeof head, stdin) == sizeof head) {
        int direction = head[0] ? NM_UP : NM_DOWN;
        size_t size = head[1] | (size_t)head[2] << 8;
        char *exact = malloc(size > 0 ? size : 1);
        if (fread(exact, 1, size, stdin) != size)
            return 2;
        show(exact, size, direction);
        if (size <= NM_PACKET_BYTES && check(exact, size, direction) != 0)
            return 1;
        free(exact);
    }
    return 0;
}

int main(int count, char **arguments)
{
    if (count == 2 && strcmp(arguments[1], "stream") == 0)
        return stream();
    char packet[4096];
    size_t size = fread(packet, 1, sizeof packet, stdin);
    unsigned long long seed = 0;
    unsigned rounds = 0;
    if (count < 2)
        return 2;
    int direction = strcmp(arguments[1], "UP") == 0 ? NM_UP : NM_DOWN;
    if (count == 2) {
        show(packet, size, direction);
        return check(packet, size, direction);
    }
    if (count != 4 || sscanf(arguments[2], "%llu", &seed) != 1 ||
        sscanf(arguments[3], "%u", &rounds) != 1 || size > NM_PACKET_BYTES)
        return 2;
    return fuzz(packet, size, direction, (uint64_t)seed, rounds);
}
