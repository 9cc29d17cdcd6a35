/* images.c: the device memory of a module, by its image.
 *
 * Knows: the sections of ELF, and PTX declarations as tests write them: one a line, extents in
 * brackets. Must not know: the rest of an image.
 */
#include <elf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim/driver/driver.h"

static uint64_t cubin_bytes(const char *image, uint64_t bytes) {
    Elf64_Ehdr header;
    if (bytes < sizeof header) return 0;
    memcpy(&header, image, sizeof header);
    uint64_t taken = 0, names = 0;
    for (int pass = 0; pass < 2; pass++) {
        for (unsigned index = 0; index < header.e_shnum; index++) {
            Elf64_Shdr section;
            if (header.e_shoff + (index + 1) * sizeof section > bytes) return 0;
            memcpy(&section, image + header.e_shoff + index * sizeof section, sizeof section);
            if (pass == 0 && index == header.e_shstrndx) names = section.sh_offset;
            if (pass == 0 || !(section.sh_flags & SHF_ALLOC)) continue;
            if (strncmp(image + names + section.sh_name, ".nv.shared", 10) != 0)
                taken += section.sh_size;
        }
    }
    return taken;
}

/* Of one line: `.visible .global .align 4 .f32 a[3][4];`, 0 where it declares nothing. */
static uint64_t line_bytes(const char *line, size_t length) {
    char text[256];
    snprintf(text, sizeof text, "%.*s", (int)(length < sizeof text ? length : sizeof text - 1),
             line);
    const char *global = strstr(text, ".global ");
    if (!global || strncmp(text, "//", 2) == 0 || strstr(text, ".extern ") || text[0] != '.')
        return 0;
    char *declarator = strpbrk(text, "=;");
    if (declarator) *declarator = '\0';
    const char *type =
                   strpbrk(strstr(text, ".align ") ? strstr(text, ".align ") + 1 : global + 1, "."),
               *digits;
    if (!type || !(digits = strpbrk(type, "0123456789"))) return 0;
    uint64_t bytes = strtoull(digits, NULL, 10) / 8;
    for (const char *open = strchr(type, '['); open; open = strchr(open + 1, '['))
        bytes *= strtoull(open + 1, NULL, 10);
    return bytes;
}

static uint64_t ptx_bytes(const char *text) {
    uint64_t taken = 0;
    while (*text) {
        size_t length = strcspn(text, "\n");
        taken += line_bytes(text, length);
        text += length + (text[length] == '\n');
    }
    return taken;
}

/* `bytes`: the size; all ones for an image in memory, which has its own end. */
uint64_t nm_sim_image_bytes(const char *image, uint64_t bytes) {
    if (bytes >= SELFMAG && memcmp(image, ELFMAG, SELFMAG) == 0) return cubin_bytes(image, bytes);
    return strncmp(image, ".version", 8) == 0 ? ptx_bytes(image) : 0;
}
