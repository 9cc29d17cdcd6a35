/* images.h: the device memory that a module takes, from its image.
 *
 * Knows: cubins (ELF files) and PTX (text). Must not know: CUDA calls, the ledger.
 *
 * Counted are a cubin's loaded sections, with variables without initial values, and the variables
 * that PTX declares. A fat binary counts for nothing: its parts are compressed, and the driver
 * loads one at its first use. The image is not trusted: a false value in it gives a false number,
 * and no read beyond its memory.
 */
#ifndef NM_IMAGES_H
#define NM_IMAGES_H

#include <stdint.h>

/* An image in this process's memory; 0 if nothing is known of it. */
uint64_t nm_image_bytes(const void *image);
uint64_t nm_image_file_bytes(const char *path);

#endif
