/* wire.h: packets to fields, and back. One message a packet: "NODEMGR/1 VERB\n", then "KEY=value\n"
 * lines.
 *
 * Knows: wire.def (verbs, keys, types): no socket, no clock, no earlier packets. Must not know: the
 * meaning of a verb.
 *
 * Decoding is strict and total: any bytes give a message that follows the table, or one of enum
 * nm_wire_error. It copies nothing: fields are offsets into the packet.
 */
#ifndef NM_WIRE_H
#define NM_WIRE_H

#include <stddef.h>
#include <stdint.h>

#define NM_PACKET_BYTES 1200 /* also asserted below the cffi part */
#define NM_MAC_LINE_BYTES 69 /* "mac=" + 64 hex + "\n" */
#define NM_KEY_BYTES 32      /* the secret of an environment on UDP */
#define NM_LIST_MAX 16       /* entries of a list: the GPUs of a node */

enum nm_verb {
    NM_VERB_NONE,
#define NM_VERB(name, direction, required) NM_VERB_##name,
#include "wire/wire.def"
    NM_VERB_COUNT
};

enum nm_key {
#define NM_KEY(name, up, down) NM_KEY_##name,
#include "wire/wire.def"
    NM_KEY_COUNT
};

/* cffi: begin */
enum nm_direction { NM_UP = 1, NM_DOWN = 2 };

enum nm_type { NM_NUMBER, NM_TEXT, NM_NAME, NM_HEX, NM_NUMBERS, NM_NAMES };

enum nm_wire_error {
    NM_WIRE_OK = 0,
    NM_WIRE_TOO_LONG = -1,
    NM_WIRE_NOT_OURS = -2,     /* does not begin with NODEMGR/1 */
    NM_WIRE_UNKNOWN_VERB = -3,
    NM_WIRE_DIRECTION = -4,    /* a verb of the other direction */
    NM_WIRE_BAD_LINE = -5,     /* no '=', no line end, a bad key */
    NM_WIRE_REPEATED_KEY = -6,
    NM_WIRE_BAD_VALUE = -7,    /* not of the key's type */
    NM_WIRE_MISSING_KEY = -8,
    NM_WIRE_TOO_MANY_KEYS = -9,
    NM_WIRE_BAD_MAC = -10
};

/* Decodes for a reader in Python: out gets the verb, then (key, offset, length, escaped) for
 * each known field in the packet's order; returns how many uint16_t were written, or an
 * nm_wire_error. out must hold NM_WIRE_SPANS. */
int nm_wire_spans(const void *packet, size_t size, enum nm_direction direction, uint16_t *out);

/* The size of the packet without its last line, if that is the right MAC; else NM_WIRE_BAD_MAC.
   key has 32 bytes. */
int nm_wire_verify(const void *packet, size_t size, const void *key);
/* Appends the MAC line; capacity bytes at packet. The new size, or NM_WIRE_TOO_LONG. */
int nm_wire_sign(void *packet, size_t size, size_t capacity, const void *key);

/* Checks one value of a key before it is put into a packet; NM_WIRE_OK or NM_WIRE_BAD_VALUE.
   value is not escaped yet. */
int nm_wire_check_value(int key, enum nm_direction direction, const void *value, size_t size);

const char *nm_wire_error_text(int error);       /* one line */
/* NULL outside 1..; for a reader that lists them */
const char *nm_wire_verb_name(int verb);
int nm_wire_verb_direction(int verb);
uint64_t nm_wire_verb_required(int verb);        /* bit k: key k is required */
const char *nm_wire_key_name(int key);           /* NULL outside 0.. */
int nm_wire_key_type(int key, enum nm_direction direction);
/* cffi: end */

struct nm_hmac_key; /* mac.h */
/* nm_wire_verify with a prepared key. */
int nm_wire_verify_with(const void *packet, size_t size, const struct nm_hmac_key *key);

#define NM_WIRE_SPANS (1 + 4 * NM_KEY_COUNT)

/* A decoded message: spans into the packet, which must outlive it. */
struct nm_message {
    enum nm_verb verb;
    uint64_t present; /* bit k: key k is present */
    const char *packet;
    uint16_t offset[NM_KEY_COUNT], length[NM_KEY_COUNT]; /* raw: TEXT is still escaped */
};

int nm_wire_decode(struct nm_message *message, const void *packet, size_t size,
                   enum nm_direction direction);

static inline int nm_message_has(const struct nm_message *message, enum nm_key key)
{
    return (int)(message->present >> key & 1);
}
/* The value of a NUMBER, or `absent`. */
uint64_t nm_message_number(const struct nm_message *message, enum nm_key key, uint64_t absent);
/* Unescaped, NUL-terminated, cut at size; a NUL inside becomes '?'. Length, or -1 if absent. */
int nm_message_text(const struct nm_message *message, enum nm_key key, char *out, size_t size);
/* Entries of NUMBERS (as values) or NAMES (as spans into the packet): how many, 0 if absent. */
int nm_message_numbers(const struct nm_message *message, enum nm_key key,
                       uint64_t out[NM_LIST_MAX]);
int nm_message_names(const struct nm_message *message, enum nm_key key,
                     const char *name[NM_LIST_MAX], size_t length[NM_LIST_MAX]);

/* A packet being written. An error is kept and returned by nm_build_end. */
struct nm_build {
    char packet[NM_PACKET_BYTES];
    size_t size, limit;
    uint64_t present;
    enum nm_verb verb;
    enum nm_wire_error error;
};

/* reserve: bytes to leave free at the end (NM_MAC_LINE_BYTES for UDP, else 0). */
void nm_build_begin(struct nm_build *build, enum nm_verb verb, size_t reserve);
void nm_build_number(struct nm_build *build, enum nm_key key, uint64_t value);
/* escaped if the type is TEXT */
void nm_build_text(struct nm_build *build, enum nm_key key, const char *value);
/* Like nm_build_text, but cut to at most `most` bytes of the packet, never inside an escape or a
   UTF-8 character. */
void nm_build_text_cut(struct nm_build *build, enum nm_key key, const char *value, size_t most);
int nm_build_end(struct nm_build *build); /* the size, or an nm_wire_error */

#endif
