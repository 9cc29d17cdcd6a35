/* mac.c: see mac.h. */
#include "wire/mac.h"

#include <string.h>

#define BLOCK_BYTES 64

/* The first 32 bits of the fractional parts of the cube roots of the first 64 primes. */
static const uint32_t round_constant[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

static uint32_t rotate(uint32_t x, unsigned by)
{
    return x >> by | x << (32 - by);
}

static void expand(uint32_t w[64], const uint8_t block[BLOCK_BYTES])
{
    for (unsigned i = 0; i < 16; i++)
        w[i] = (uint32_t)block[4 * i] << 24 | (uint32_t)block[4 * i + 1] << 16 |
               (uint32_t)block[4 * i + 2] << 8 | block[4 * i + 3];
    for (unsigned i = 16; i < 64; i++) {
        uint32_t a = w[i - 15], b = w[i - 2];
        w[i] = w[i - 16] + w[i - 7] + (rotate(a, 7) ^ rotate(a, 18) ^ a >> 3) +
               (rotate(b, 17) ^ rotate(b, 19) ^ b >> 10);
    }
}

static void compress(uint32_t state[8], const uint8_t block[BLOCK_BYTES])
{
    uint32_t w[64];
    uint32_t a = state[0], b = state[1], c = state[2], d = state[3], e = state[4], f = state[5],
             g = state[6], h = state[7];
    expand(w, block);
    /* in variables, not in an array that moves: half the time */
    for (unsigned i = 0; i < 64; i++) {
        const uint32_t one = h + (rotate(e, 6) ^ rotate(e, 11) ^ rotate(e, 25)) +
                             ((e & f) ^ (~e & g)) + round_constant[i] + w[i];
        const uint32_t two =
            (rotate(a, 2) ^ rotate(a, 13) ^ rotate(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
        h = g;
        g = f;
        f = e;
        e = d + one;
        d = c;
        c = b;
        b = a;
        a = one + two;
    }
    state[0] += a;
    state[1] += b;
    state[2] += c;
    state[3] += d;
    state[4] += e;
    state[5] += f;
    state[6] += g;
    state[7] += h;
}

void nm_sha256_begin(struct nm_sha256 *hash)
{
    static const uint32_t start[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                      0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    memcpy(hash->state, start, sizeof start);
    hash->length = 0;
}

void nm_sha256_add(struct nm_sha256 *hash, const void *data, size_t size)
{
    const uint8_t *next = data;
    while (size > 0) {
        size_t filled = hash->length % BLOCK_BYTES, room = BLOCK_BYTES - filled,
               part = size < room ? size : room;
        memcpy(hash->block + filled, next, part);
        hash->length += part;
        next += part;
        size -= part;
        if (part == room)
            compress(hash->state, hash->block);
    }
}

void nm_sha256_end(struct nm_sha256 *hash, uint8_t digest[NM_DIGEST_BYTES])
{
    static const uint8_t padding[BLOCK_BYTES] = {0x80};
    uint64_t bits = hash->length * 8;
    size_t filled = hash->length % BLOCK_BYTES;
    uint8_t length[8];
    for (unsigned i = 0; i < 8; i++)
        length[i] = (uint8_t)(bits >> (56 - 8 * i));
    nm_sha256_add(hash, padding, filled < 56 ? 56 - filled : 120 - filled);
    nm_sha256_add(hash, length, sizeof length);
    for (unsigned i = 0; i < NM_DIGEST_BYTES; i++)
        digest[i] = (uint8_t)(hash->state[i / 4] >> (24 - 8 * (i % 4)));
}

void nm_hmac_prepare(struct nm_hmac_key *prepared, const void *key, size_t key_size)
{
    uint8_t pad[BLOCK_BYTES] = {0};
    if (key_size > BLOCK_BYTES) {
        nm_sha256_begin(&prepared->inner);
        nm_sha256_add(&prepared->inner, key, key_size);
        nm_sha256_end(&prepared->inner, pad);
    } else {
        memcpy(pad, key, key_size);
    }
    for (unsigned i = 0; i < BLOCK_BYTES; i++)
        pad[i] ^= 0x36;
    nm_sha256_begin(&prepared->inner);
    nm_sha256_add(&prepared->inner, pad, sizeof pad);
    for (unsigned i = 0; i < BLOCK_BYTES; i++)
        pad[i] ^= 0x36 ^ 0x5c;
    nm_sha256_begin(&prepared->outer);
    nm_sha256_add(&prepared->outer, pad, sizeof pad);
}

void nm_hmac(const struct nm_hmac_key *prepared, const void *data, size_t size,
             uint8_t digest[NM_DIGEST_BYTES])
{
    struct nm_sha256 hash = prepared->inner;
    nm_sha256_add(&hash, data, size);
    nm_sha256_end(&hash, digest);
    hash = prepared->outer;
    nm_sha256_add(&hash, digest, NM_DIGEST_BYTES);
    nm_sha256_end(&hash, digest);
}
