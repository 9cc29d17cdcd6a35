/* images.c: what csrc/memory/images.c says of each file that is named: read as a file, and in
 * memory that ends where the file does.
 *
 *   images PATH...   -> a line each: BYTES BYTES
 */
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "memory/images.c"

static uint64_t in_memory(const char *path)
{
    struct stat known;
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    int fd = open(path, O_RDONLY);
    if (fd < 0 || fstat(fd, &known) != 0)
        return UINT64_MAX;
    size_t bytes = (size_t)known.st_size, room = (bytes / page + 1) * page;
    char *memory =
        mmap(NULL, room + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    mprotect(memory + room, page, PROT_NONE);
    char *image = memory + room - bytes;
    if (read(fd, image, bytes) != (ssize_t)bytes)
        return UINT64_MAX;
    uint64_t result = nm_image_bytes(image);
    munmap(memory, room + page);
    close(fd);
    return result;
}

int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        printf("%llu %llu\n", (unsigned long long)nm_image_file_bytes(argv[i]),
               (unsigned long long)in_memory(argv[i]));
    printf("%llu %llu\n", (unsigned long long)nm_image_bytes(NULL),
           (unsigned long long)nm_image_file_bytes(NULL));
    return 0;
}
