/* images.h: how much of the device a module will take, by its image.
 *
 * Knows: cubins (ELF files) and PTX (text). Must not know: CUDA calls, the ledger.
 *
 * Counted are a cubin's sections that are loaded, variables without initial values among them, and
 * the variables that PTX declares. Of a fat binary nothing is known: its parts are compressed, and
 * one of them is loaded when it is first used. The image is a stranger's: nothing is read that
 * might not be there, and a false word in it gives a false number, no more.
 */
#ifndef NM_IMAGES_H
#define NM_IMAGES_H

#include <stdint.h>

/* In this process's memory; 0 where nothing is known of it. */
uint64_t nm_image_bytes(const void *image);
uint64_t nm_image_file_bytes(const char *path);

#endif
