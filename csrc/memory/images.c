/* images.c: see images.h. */
#include "memory/images.h"

#include <elf.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

/* An image in a file, or (fd -1) in memory, with no known end: the kernel reads it, and reports
   where memory ends. */
struct source {
    const char *memory;
    int fd;
};

static uint64_t sum(uint64_t a, uint64_t b)
{
    return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}

static uint64_t product(uint64_t a, uint64_t b)
{
    uint64_t result;
    return __builtin_mul_overflow(a, b, &result) ? UINT64_MAX : result;
}

/* At most to the end of the memory's page, which is read whole. */
static size_t read_some(const struct source *source, uint64_t offset, void *out, size_t bytes)
{
    enum { PAGE_BYTES = 4096 };
    ssize_t got;
    if (source->fd >= 0) {
        got = offset <= INT64_MAX ? pread(source->fd, out, bytes, (off_t)offset) : 0;
    } else if (offset > UINTPTR_MAX - (uintptr_t)source->memory) {
        got = 0;
    } else {
        uintptr_t address = (uintptr_t)source->memory + offset;
        size_t page = PAGE_BYTES - address % PAGE_BYTES;
        struct iovec to = {out, bytes < page ? bytes : page},
                     from = {(void *)address, bytes < page ? bytes : page};
        got = process_vm_readv(getpid(), &to, 1, &from, 1, 0);
    }
    return got > 0 ? (size_t)got : 0;
}

static bool read_all(const struct source *source, uint64_t offset, void *out, size_t bytes)
{
    for (size_t done = 0, got; done < bytes; done += got) {
        got = read_some(source, sum(offset, done), (char *)out + done, bytes - done);
        if (got == 0)
            return false;
    }
    return true;
}

/* -- cubins -- */

/* Shared memory is in the multiprocessors, not in device memory. */
static bool is_shared(const struct source *source, const Elf64_Shdr *section, uint64_t names)
{
    static const char prefix[] = ".nv.shared";
    char name[sizeof prefix - 1];
    return section->sh_type == SHT_NOBITS &&
           read_all(source, sum(names, section->sh_name), name, sizeof name) &&
           memcmp(name, prefix, sizeof name) == 0;
}

static uint64_t elf_bytes(const struct source *source, const Elf64_Ehdr *header)
{
    Elf64_Shdr section, names;
    uint64_t bytes = 0, table = header->e_shoff;
    if (header->e_ident[EI_CLASS] != ELFCLASS64 || header->e_shentsize != sizeof section ||
        !read_all(source, sum(table, header->e_shstrndx * sizeof section), &names, sizeof names))
        return 0;
    for (unsigned i = 0; i < header->e_shnum; i++) {
        if (!read_all(source, sum(table, i * sizeof section), &section, sizeof section))
            return 0;
        if ((section.sh_flags & SHF_ALLOC) != 0 && !is_shared(source, &section, names.sh_offset))
            bytes = sum(bytes, section.sh_size);
    }
    return bytes;
}

/* -- PTX: words and single characters; `.global` begins a declaration -- */

struct text {
    const struct source *source;
    uint64_t offset;
    size_t at, filled;
    char buffer[4096];
};

/* '\0' at the end. */
static char look(struct text *text)
{
    if (text->at == text->filled) {
        text->filled = read_some(text->source, text->offset, text->buffer, sizeof text->buffer);
        text->offset += text->filled;
        text->at = 0;
    }
    return text->filled != 0 ? text->buffer[text->at] : '\0';
}

static char next(struct text *text)
{
    char c = look(text);
    text->at += c != '\0';
    return c;
}

static bool is_word(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '.' || c == '$' || c == '%';
}

static void skip_comment(struct text *text)
{
    bool line = next(text) == '/';
    for (char before = '\0', c; (c = next(text)) != '\0'; before = c)
        if (line ? c == '\n' : before == '*' && c == '/')
            return;
}

/* The next word, or a single character; false at the end. A word is cut to the room for it. */
static bool next_token(struct text *text, char *out, size_t size)
{
    size_t length = 0;
    for (;;) {
        char c = next(text);
        if (c == '\0')
            return false;
        if (c == '/' && (look(text) == '/' || look(text) == '*')) {
            skip_comment(text);
        } else if (c > ' ') {
            out[length++] = c;
            break;
        }
    }
    while (is_word(out[0]) && is_word(look(text))) {
        char c = next(text);
        if (length < size - 1)
            out[length++] = c;
    }
    out[length] = '\0';
    return true;
}

static uint64_t number_of(const char *word)
{
    uint64_t value = 0;
    for (; *word >= '0' && *word <= '9'; word++)
        value = sum(product(value, 10), (uint64_t)(*word - '0'));
    return value;
}

/* The bytes of `.f32`, `.b8`; the number of elements of `.v4`; else 1. */
static uint64_t width_of(const char *word)
{
    static const struct {
        char word[8];
        uint64_t times;
    } widths[] = {{".b8", 1},  {".u8", 1},  {".s8", 1},  {".b16", 2},   {".u16", 2},  {".s16", 2},
                  {".f16", 2}, {".b32", 4}, {".u32", 4}, {".s32", 4},   {".f32", 4},  {".b64", 8},
                  {".u64", 8}, {".s64", 8}, {".f64", 8}, {".b128", 16}, {".bf16", 2}, {".f16x2", 4},
                  {".v2", 2},  {".v4", 4},  {".v8", 8},  {".texref", 8}};
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++)
        if (strcmp(word, widths[i].word) == 0)
            return widths[i].times;
    return 1;
}

/* From `.global` to its semicolon: `.align 4 .v2 .f32 a[3][4], b = {1, 2};` */
static uint64_t declared_bytes(struct text *text)
{
    char token[64], before[64] = "";
    uint64_t element = 1, count = 1, bytes = 0;
    int braces = 0;
    bool more = true, initial = false;
    while (more && next_token(text, token, sizeof token)) {
        bool ends = braces == 0 && (token[0] == ';' || token[0] == ',');
        braces += token[0] == '{' || token[0] == '(';
        braces -= token[0] == '}' || token[0] == ')';
        initial = !ends && (initial || token[0] == '=');
        if (ends) {
            bytes = sum(bytes, product(element, count));
            count = 1;
            more = token[0] == ',';
        } else if (!initial && before[0] == '[') {
            count = product(count, token[0] == ']' ? 1 : number_of(token));
        } else if (!initial && token[0] == '.') {
            element = product(element, width_of(token));
        }
        memcpy(before, token, sizeof before);
    }
    return bytes;
}

static uint64_t ptx_bytes(const struct source *source)
{
    struct text text = {.source = source};
    char token[64];
    uint64_t bytes = 0;
    bool external = false;
    while (next_token(&text, token, sizeof token)) {
        if (strcmp(token, ".global") == 0) {
            uint64_t declared = declared_bytes(&text);
            bytes = sum(bytes, external ? 0 : declared);
            external = false;
        } else {
            external = strcmp(token, ".extern") == 0;
        }
    }
    return bytes;
}

/* -- either -- */

static uint64_t bytes_of(const struct source *source)
{
    Elf64_Ehdr header = {0};
    char first;
    if (read_all(source, 0, &header, sizeof header) && memcmp(header.e_ident, ELFMAG, SELFMAG) == 0)
        return elf_bytes(source, &header);
    bool is_text = read_some(source, 0, &first, 1) == 1 &&
                   (first == '/' || first == '.' || first == '\n' || first == ' ' || first == '\r');
    return is_text ? ptx_bytes(source) : 0;
}

uint64_t nm_image_bytes(const void *image)
{
    return image != NULL ? bytes_of(&(struct source){image, -1}) : 0;
}

uint64_t nm_image_file_bytes(const char *path)
{
    int fd = path != NULL ? open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK) : -1;
    if (fd < 0)
        return 0;
    uint64_t bytes = bytes_of(&(struct source){NULL, fd});
    close(fd);
    return bytes;
}
