/* wire.c: see wire.h. */
#include "wire/wire.h"

#include <string.h>

#include "base/prim.h"
#include "wire/mac.h"

static const char preamble[] = "NODEMGR/1 ";
#define PREAMBLE_BYTES (sizeof preamble - 1)
#define KEY_NAME_MAX 16
#define UNKNOWN_MAX 32 /* keys of a later version, remembered to find one that comes twice */

_Static_assert(NM_KEY_COUNT <= 64, "present is one word");

#define K(key) | UINT64_C(1) << NM_KEY_##key
#define UP NM_UP
#define DOWN NM_DOWN
static const struct {
    const char *name;
    enum nm_direction direction;
    uint64_t required;
} verbs[NM_VERB_COUNT] = {
#define NM_VERB(name, direction, required) [NM_VERB_##name] = {#name, direction, 0 required},
#include "wire/wire.def"
};
#undef UP
#undef DOWN
#undef K

static const struct {
    const char *name;
    uint8_t type[3]; /* by direction */
} keys[NM_KEY_COUNT] = {
#define NM_KEY(name, up, down) [NM_KEY_##name] = {#name, {0, NM_##up, NM_##down}},
#include "wire/wire.def"
};

static const struct {
    int error;
    const char *text;
} errors[] = {
    {NM_WIRE_OK, "no error"},
    {NM_WIRE_TOO_LONG, "longer than a packet may be"},
    {NM_WIRE_NOT_OURS, "does not begin with NODEMGR/1"},
    {NM_WIRE_UNKNOWN_VERB, "unknown verb"},
    {NM_WIRE_DIRECTION, "a verb of the other direction"},
    {NM_WIRE_BAD_LINE, "a line that is not KEY=value and a line end"},
    {NM_WIRE_REPEATED_KEY, "a key appears twice"},
    {NM_WIRE_BAD_VALUE, "a value is not of its key's type"},
    {NM_WIRE_MISSING_KEY, "a required key is missing"},
    {NM_WIRE_TOO_MANY_KEYS, "too many unknown keys"},
    {NM_WIRE_BAD_MAC, "no MAC, or a wrong one"},
};

const char *nm_wire_error_text(int error)
{
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        if (errors[i].error == error)
            return errors[i].text;
    return "unknown error";
}

const char *nm_wire_verb_name(int verb)
{
    return verb > NM_VERB_NONE && verb < NM_VERB_COUNT ? verbs[verb].name : NULL;
}

int nm_wire_verb_direction(int verb)
{
    return verb > NM_VERB_NONE && verb < NM_VERB_COUNT ? (int)verbs[verb].direction : 0;
}

uint64_t nm_wire_verb_required(int verb)
{
    return verb > NM_VERB_NONE && verb < NM_VERB_COUNT ? verbs[verb].required : 0;
}

const char *nm_wire_key_name(int key)
{
    return key >= 0 && key < NM_KEY_COUNT ? keys[key].name : NULL;
}

int nm_wire_key_type(int key, enum nm_direction direction)
{
    return key >= 0 && key < NM_KEY_COUNT && (direction == NM_UP || direction == NM_DOWN)
               ? keys[key].type[direction]
               : -1;
}

/* -- values -- */

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static bool is_name_byte(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-';
}

static bool must_escape(char c)
{
    return (unsigned char)c < 0x20 || c == 0x7f || c == '%';
}

static bool valid_number(const char *value, size_t length)
{
    uint64_t ignored;
    return nm_number(value, length, &ignored);
}

static bool valid_name(const char *value, size_t length)
{
    for (size_t i = 0; i < length; i++)
        if (!is_name_byte(value[i]))
            return false;
    return length >= 1 && length <= 64;
}

static bool valid_hex(const char *value, size_t length)
{
    for (size_t i = 0; i < length; i++)
        if (hex_digit(value[i]) < 0)
            return false;
    return length >= 1 && length <= 64;
}

static bool valid_list(const char *value, size_t length, bool (*valid)(const char *, size_t))
{
    for (unsigned entries = 1; entries <= NM_LIST_MAX; entries++) {
        const char *comma = memchr(value, ',', length);
        size_t entry = comma != NULL ? (size_t)(comma - value) : length;
        if (!valid(value, entry))
            return false;
        if (comma == NULL)
            return true;
        value += entry + 1;
        length -= entry + 1;
    }
    return false;
}

/* Valid is only a text that the encoder can write: the bytes to be escaped are escaped, and no
   others. */
static bool valid_text(const char *value, size_t length)
{
    for (size_t i = 0; i < length; i++) {
        if (value[i] == '%') {
            if (length - i < 3 || hex_digit(value[i + 1]) < 0 || hex_digit(value[i + 2]) < 0)
                return false;
            i += 2;
        } else if (must_escape(value[i])) {
            return false;
        }
    }
    return true;
}

static bool valid_value(unsigned type, const char *value, size_t length)
{
    switch (type) {
    case NM_NUMBER: return valid_number(value, length);
    case NM_TEXT: return valid_text(value, length);
    case NM_NAME: return valid_name(value, length);
    case NM_HEX: return valid_hex(value, length);
    case NM_NUMBERS: return valid_list(value, length, valid_number);
    case NM_NAMES: return valid_list(value, length, valid_name);
    default: return false;
    }
}

int nm_wire_check_value(int key, enum nm_direction direction, const void *value, size_t size)
{
    int type = nm_wire_key_type(key, direction);
    return type == NM_TEXT || (type >= 0 && valid_value((unsigned)type, value, size))
               ? NM_WIRE_OK
               : NM_WIRE_BAD_VALUE;
}

/* -- decoding -- */

static bool equals(const char *name, const char *bytes, size_t length)
{
    return strlen(name) == length && memcmp(name, bytes, length) == 0;
}

static enum nm_verb find_verb(const char *name, size_t length)
{
    for (int verb = 1; verb < NM_VERB_COUNT; verb++)
        if (equals(verbs[verb].name, name, length))
            return (enum nm_verb)verb;
    return NM_VERB_NONE;
}

static int find_key(const char *name, size_t length)
{
    for (int key = 0; key < NM_KEY_COUNT; key++)
        if (equals(keys[key].name, name, length))
            return key;
    return -1;
}

static bool valid_key(const char *name, size_t length)
{
    for (size_t i = 0; i < length; i++)
        if (!((name[i] >= 'a' && name[i] <= 'z') || name[i] == '_'))
            return false;
    return length >= 1 && length <= KEY_NAME_MAX;
}

struct unknown_keys {
    unsigned count;
    const char *name[UNKNOWN_MAX];
    size_t length[UNKNOWN_MAX];
};

static int note_unknown(struct unknown_keys *unknown, const char *name, size_t length)
{
    for (unsigned i = 0; i < unknown->count; i++)
        if (unknown->length[i] == length && memcmp(unknown->name[i], name, length) == 0)
            return NM_WIRE_REPEATED_KEY;
    if (unknown->count == UNKNOWN_MAX)
        return NM_WIRE_TOO_MANY_KEYS;
    unknown->name[unknown->count] = name;
    unknown->length[unknown->count++] = length;
    return NM_WIRE_OK;
}

/* One line without its end. *key gets the known key, or -1. */
static int decode_line(struct nm_message *message, struct unknown_keys *unknown, const char *line,
                       size_t length, enum nm_direction direction, int *key)
{
    const char *equal = memchr(line, '=', length);
    size_t name_length = equal != NULL ? (size_t)(equal - line) : 0;
    *key = -1;
    if (equal == NULL || !valid_key(line, name_length))
        return NM_WIRE_BAD_LINE;
    const char *value = equal + 1;
    size_t value_length = length - name_length - 1;
    int found = find_key(line, name_length);
    if (found < 0) {
        int error = note_unknown(unknown, line, name_length);
        return error != NM_WIRE_OK               ? error
               : valid_text(value, value_length) ? NM_WIRE_OK
                                                 : NM_WIRE_BAD_VALUE;
    }
    if (message->present >> found & 1)
        return NM_WIRE_REPEATED_KEY;
    if (!valid_value(keys[found].type[direction], value, value_length))
        return NM_WIRE_BAD_VALUE;
    message->present |= UINT64_C(1) << found;
    message->offset[found] = (uint16_t)(value - message->packet);
    message->length[found] = (uint16_t)value_length;
    *key = found;
    return NM_WIRE_OK;
}

static int decode_verb(struct nm_message *message, size_t size, enum nm_direction direction,
                       size_t *next)
{
    const char *packet = message->packet;
    if (size > NM_PACKET_BYTES)
        return NM_WIRE_TOO_LONG;
    if (size < PREAMBLE_BYTES || memcmp(packet, preamble, PREAMBLE_BYTES) != 0)
        return NM_WIRE_NOT_OURS;
    const char *end = memchr(packet, '\n', size);
    if (end == NULL)
        return NM_WIRE_BAD_LINE;
    message->verb = find_verb(packet + PREAMBLE_BYTES, (size_t)(end - packet) - PREAMBLE_BYTES);
    if (message->verb == NM_VERB_NONE)
        return NM_WIRE_UNKNOWN_VERB;
    *next = (size_t)(end - packet) + 1;
    return verbs[message->verb].direction == direction ? NM_WIRE_OK : NM_WIRE_DIRECTION;
}

/* order, count: the known keys in the packet's order. */
static int decode(struct nm_message *message, const void *packet, size_t size,
                  enum nm_direction direction, uint8_t order[NM_KEY_COUNT], unsigned *count)
{
    struct unknown_keys unknown = {.count = 0};
    size_t next = 0;
    message->packet = packet;
    message->present = 0;
    message->verb = NM_VERB_NONE;
    *count = 0;
    int error = decode_verb(message, size, direction, &next);
    while (error == NM_WIRE_OK && next < size) {
        const char *line = message->packet + next, *end = memchr(line, '\n', size - next);
        int key;
        if (end == NULL)
            return NM_WIRE_BAD_LINE;
        error = decode_line(message, &unknown, line, (size_t)(end - line), direction, &key);
        if (key >= 0)
            order[(*count)++] = (uint8_t)key;
        next += (size_t)(end - line) + 1;
    }
    if (error == NM_WIRE_OK &&
        (message->present & verbs[message->verb].required) != verbs[message->verb].required)
        error = NM_WIRE_MISSING_KEY;
    return error;
}

int nm_wire_decode(struct nm_message *message, const void *packet, size_t size,
                   enum nm_direction direction)
{
    uint8_t order[NM_KEY_COUNT];
    unsigned count;
    return decode(message, packet, size, direction, order, &count);
}

int nm_wire_spans(const void *packet, size_t size, enum nm_direction direction, uint16_t *out)
{
    struct nm_message message;
    uint8_t order[NM_KEY_COUNT];
    unsigned count;
    int error = decode(&message, packet, size, direction, order, &count);
    if (error != NM_WIRE_OK)
        return error;
    uint16_t *next = out;
    *next++ = (uint16_t)message.verb;
    for (unsigned i = 0; i < count; i++) {
        uint8_t key = order[i];
        *next++ = key;
        *next++ = message.offset[key];
        *next++ = message.length[key];
        *next++ = keys[key].type[direction] == NM_TEXT &&
                  memchr(message.packet + message.offset[key], '%', message.length[key]) != NULL;
    }
    return (int)(next - out);
}

/* -- reading a decoded message -- */

uint64_t nm_message_number(const struct nm_message *message, enum nm_key key, uint64_t absent)
{
    uint64_t value = absent;
    if (nm_message_has(message, key) &&
        !nm_number(message->packet + message->offset[key], message->length[key], &value))
        return absent;
    return value;
}

int nm_message_text(const struct nm_message *message, enum nm_key key, char *out, size_t size)
{
    if (!nm_message_has(message, key) || size == 0)
        return -1;
    const char *value = message->packet + message->offset[key], *end = value + message->length[key];
    size_t length = 0;
    for (; value < end && length < size - 1; value++) {
        char c = *value;
        if (c == '%') {
            c = (char)(hex_digit(value[1]) << 4 | hex_digit(value[2]));
            value += 2;
        }
        out[length++] = c != '\0' ? c : '?';
    }
    out[length] = '\0';
    return (int)length;
}

int nm_message_names(const struct nm_message *message, enum nm_key key,
                     const char *name[NM_LIST_MAX], size_t length[NM_LIST_MAX])
{
    if (!nm_message_has(message, key))
        return 0;
    const char *value = message->packet + message->offset[key], *end = value + message->length[key];
    int count = 0;
    while (count < NM_LIST_MAX) {
        const char *comma = memchr(value, ',', (size_t)(end - value));
        name[count] = value;
        length[count++] = (size_t)((comma != NULL ? comma : end) - value);
        if (comma == NULL)
            break;
        value = comma + 1;
    }
    return count;
}

int nm_message_numbers(const struct nm_message *message, enum nm_key key, uint64_t out[NM_LIST_MAX])
{
    const char *name[NM_LIST_MAX];
    size_t length[NM_LIST_MAX];
    int count = nm_message_names(message, key, name, length);
    for (int i = 0; i < count; i++)
        if (!nm_number(name[i], length[i], &out[i]))
            return i;
    return count;
}

/* -- encoding -- */

static void put(struct nm_build *build, const void *bytes, size_t size)
{
    if (build->limit - build->size < size) {
        build->error = NM_WIRE_TOO_LONG;
        return;
    }
    memcpy(build->packet + build->size, bytes, size);
    build->size += size;
}

void nm_build_begin(struct nm_build *build, enum nm_verb verb, size_t reserve)
{
    build->size = 0;
    build->limit = NM_PACKET_BYTES - reserve;
    build->present = 0;
    build->verb = verb;
    build->error = NM_WIRE_OK;
    put(build, preamble, PREAMBLE_BYTES);
    put(build, verbs[verb].name, strlen(verbs[verb].name));
    put(build, "\n", 1);
}

static void put_key(struct nm_build *build, enum nm_key key)
{
    if (build->present >> key & 1)
        build->error = NM_WIRE_REPEATED_KEY;
    build->present |= UINT64_C(1) << key;
    put(build, keys[key].name, strlen(keys[key].name));
    put(build, "=", 1);
}

void nm_build_number(struct nm_build *build, enum nm_key key, uint64_t value)
{
    char digits[20], *first = digits + sizeof digits;
    do
        *--first = (char)('0' + value % 10);
    while ((value /= 10) > 0);
    put_key(build, key);
    put(build, first, (size_t)(digits + sizeof digits - first));
    put(build, "\n", 1);
}

static size_t escaped_size(const char *value, size_t length)
{
    size_t size = length;
    for (size_t i = 0; i < length; i++)
        size += must_escape(value[i]) ? 2 : 0;
    return size;
}

static void put_escaped(struct nm_build *build, const char *value, size_t length)
{
    static const char hex[] = "0123456789abcdef";
    for (size_t i = 0; i < length; i++) {
        unsigned char c = (unsigned char)value[i];
        char escape[3] = {'%', hex[c >> 4], hex[c & 15]};
        if (must_escape(value[i]))
            put(build, escape, sizeof escape);
        else
            put(build, value + i, 1);
    }
}

static void build_value(struct nm_build *build, enum nm_key key, const char *value, size_t length)
{
    unsigned type = keys[key].type[verbs[build->verb].direction];
    if (type != NM_TEXT && !valid_value(type, value, length))
        build->error = NM_WIRE_BAD_VALUE;
    put_key(build, key);
    put_escaped(build, value, length);
    put(build, "\n", 1);
}

void nm_build_text(struct nm_build *build, enum nm_key key, const char *value)
{
    build_value(build, key, value, strlen(value));
}

void nm_build_text_cut(struct nm_build *build, enum nm_key key, const char *value, size_t most)
{
    size_t length = strlen(value);
    bool cut = false;
    while (length > 0 && (escaped_size(value, length) > most ||
                          (cut && ((unsigned char)value[length] & 0xc0) == 0x80))) {
        length--;
        cut = true;
    }
    build_value(build, key, value, length);
}

int nm_build_end(struct nm_build *build)
{
    if (build->error == NM_WIRE_OK &&
        (build->present & verbs[build->verb].required) != verbs[build->verb].required)
        build->error = NM_WIRE_MISSING_KEY;
    return build->error != NM_WIRE_OK ? (int)build->error : (int)build->size;
}

/* -- MAC -- */

static const char mac_key[] = "mac=";
#define MAC_KEY_BYTES (sizeof mac_key - 1)
_Static_assert(MAC_KEY_BYTES + 2 * NM_DIGEST_BYTES + 1 == NM_MAC_LINE_BYTES, "the MAC line");

static void mac_line(char line[NM_MAC_LINE_BYTES], const void *packet, size_t size,
                     const struct nm_hmac_key *key)
{
    static const char hex[] = "0123456789abcdef";
    uint8_t digest[NM_DIGEST_BYTES];
    nm_hmac(key, packet, size, digest);
    memcpy(line, mac_key, MAC_KEY_BYTES);
    for (unsigned i = 0; i < NM_DIGEST_BYTES; i++) {
        line[MAC_KEY_BYTES + 2 * i] = hex[digest[i] >> 4];
        line[MAC_KEY_BYTES + 2 * i + 1] = hex[digest[i] & 15];
    }
    line[NM_MAC_LINE_BYTES - 1] = '\n';
}

int nm_wire_verify_with(const void *packet, size_t size, const struct nm_hmac_key *key)
{
    char line[NM_MAC_LINE_BYTES];
    unsigned different = 0;
    if (size > NM_PACKET_BYTES)
        return NM_WIRE_TOO_LONG;
    if (size < NM_MAC_LINE_BYTES)
        return NM_WIRE_BAD_MAC;
    const char *last = (const char *)packet + size - NM_MAC_LINE_BYTES;
    mac_line(line, packet, size - NM_MAC_LINE_BYTES, key);
    /* all of it, even after a difference: the time must reveal nothing */
    for (unsigned i = 0; i < NM_MAC_LINE_BYTES; i++)
        different |= (unsigned)(line[i] ^ last[i]);
    return different == 0 ? (int)(size - NM_MAC_LINE_BYTES) : NM_WIRE_BAD_MAC;
}

int nm_wire_verify(const void *packet, size_t size, const void *key)
{
    struct nm_hmac_key prepared;
    nm_hmac_prepare(&prepared, key, NM_KEY_BYTES);
    return nm_wire_verify_with(packet, size, &prepared);
}

int nm_wire_sign(void *packet, size_t size, size_t capacity, const void *key)
{
    if (size > NM_PACKET_BYTES - NM_MAC_LINE_BYTES || capacity < size + NM_MAC_LINE_BYTES)
        return NM_WIRE_TOO_LONG;
    struct nm_hmac_key prepared;
    nm_hmac_prepare(&prepared, key, NM_KEY_BYTES);
    mac_line((char *)packet + size, packet, size, &prepared);
    return (int)(size + NM_MAC_LINE_BYTES);
}
