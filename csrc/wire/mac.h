/* mac.h: SHA-256 and HMAC-SHA256 (FIPS 180-4, RFC 2104), for the last line of a UDP packet.
 *
 * Knows: bytes. Must not know: packets, keys' files.
 */
#ifndef NM_MAC_H
#define NM_MAC_H

#include <stddef.h>
#include <stdint.h>

#define NM_DIGEST_BYTES 32

struct nm_sha256 {
    uint32_t state[8];
    uint64_t length;
    uint8_t block[64];
};

void nm_sha256_begin(struct nm_sha256 *hash);
void nm_sha256_add(struct nm_sha256 *hash, const void *data, size_t size);
void nm_sha256_end(struct nm_sha256 *hash, uint8_t digest[NM_DIGEST_BYTES]);

/* A key, prepared for the hash. */
struct nm_hmac_key {
    struct nm_sha256 inner, outer;
};

void nm_hmac_prepare(struct nm_hmac_key *prepared, const void *key, size_t key_size);
void nm_hmac(const struct nm_hmac_key *prepared, const void *data, size_t size,
             uint8_t digest[NM_DIGEST_BYTES]);

#endif
