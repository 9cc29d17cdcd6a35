/* output.c: the output of a job that the manager has not taken yet; see runner.h.
 *
 * Two parts of one mapping: the beginning, and a ring of the newest. Bytes without
 * room are dropped, so that the job never waits; the place of later bytes shows how many.
 */
#include <string.h>
#include <sys/mman.h>

#include "runner/runner.h"

enum { HEAD_PARTS = 8, LEAST_BYTES = 1 << 17, MOST_BYTES = 1 << 24 };

static size_t least(size_t one, size_t other)
{
    return one < other ? one : other;
}

bool nm_output_begin(struct nm_output *output, uint64_t most_bytes)
{
    const size_t most =
        most_bytes == 0 || most_bytes > MOST_BYTES ? MOST_BYTES : (size_t)most_bytes;
    const size_t room = most < LEAST_BYTES ? LEAST_BYTES : most;
    void *memory = mmap(NULL, room, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
        return false;
    output->head.bytes = memory;
    output->head.room = room / HEAD_PARTS;
    output->tail.bytes = output->head.bytes + output->head.room;
    output->tail.room = room - output->head.room;
    return true;
}

/* The oldest `size` bytes are taken or dropped. */
static void let_go(struct nm_part *part, size_t size)
{
    part->from = (part->from + size) % part->room;
    part->at += size;
    part->size -= size;
}

/* Behind those that are there; the part has room for them. */
static void append(struct nm_part *part, const char *bytes, size_t size)
{
    const size_t to = (part->from + part->size) % part->room;
    const size_t first = least(size, part->room - to);
    memcpy(part->bytes + to, bytes, first);
    memcpy(part->bytes, bytes + first, size - first);
    part->size += size;
}

void nm_output_add(struct nm_output *output, const char *bytes, size_t size)
{
    struct nm_part *head = &output->head, *tail = &output->tail;
    if (tail->size == 0) {
        const size_t count = least(size, head->room - head->size);
        if (head->size == 0)
            head->at = output->end;
        append(head, bytes, count);
        output->end += count;
        bytes += count;
        size -= count;
    }
    if (tail->size == 0)
        tail->at = output->end;
    if (tail->size + size > tail->room)
        let_go(tail, tail->size + size - tail->room);
    append(tail, bytes, size);
    output->end += size;
}

size_t nm_output_next(const struct nm_output *output, const char **bytes, uint64_t *at)
{
    const struct nm_part *part = output->head.size > 0 ? &output->head : &output->tail;
    *bytes = part->bytes + part->from;
    *at = part->at;
    return least(least(part->size, part->room - part->from), NM_PIECE_BYTES);
}

void nm_output_taken(struct nm_output *output, uint64_t until)
{
    struct nm_part *const parts[] = {&output->head, &output->tail};
    for (size_t index = 0; index < 2; index++)
        if (until > parts[index]->at)
            let_go(parts[index],
                   until - parts[index]->at < parts[index]->size ? until - parts[index]->at
                                                                 : parts[index]->size);
}
