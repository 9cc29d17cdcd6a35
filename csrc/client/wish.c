/* wish.c: see wish.h. */
#include "client/wish.h"

#include <string.h>

#include "base/prim.h"

#define ENTRIES_MAX 64 /* more than a node has GPUs */

struct entry {
    const char *text;
    size_t length;
};

struct list {
    size_t count;
    struct entry entry[ENTRIES_MAX];
};

static bool is_index(struct entry entry)
{
    uint64_t ignored;
    return nm_number(entry.text, entry.length, &ignored);
}

static bool is_uuid(struct entry entry)
{
    return entry.length > 4 &&
           (memcmp(entry.text, "GPU-", 4) == 0 || memcmp(entry.text, "MIG-", 4) == 0);
}

static struct entry trimmed(const char *text, size_t length)
{
    while (length > 0 && (*text == ' ' || *text == '\t'))
        text++, length--;
    while (length > 0 && (text[length - 1] == ' ' || text[length - 1] == '\t'))
        length--;
    return (struct entry){text, length};
}

static struct list parse(const char *text)
{
    struct list list = {.count = 0};
    while (list.count < ENTRIES_MAX) {
        size_t length = strcspn(text, ",");
        struct entry entry = trimmed(text, length);
        if (!is_index(entry) && !is_uuid(entry))
            break;
        list.entry[list.count++] = entry;
        if (text[length] == '\0')
            break;
        text += length + 1;
    }
    return list;
}

static bool set_text(char out[NM_VISIBLE_BYTES], const char *text)
{
    return nm_copy(out, NM_VISIBLE_BYTES, text) == strlen(text);
}

static bool number_of(const char *text, uint64_t *out)
{
    return text != NULL && nm_number(text, strlen(text), out) && *out <= UINT32_MAX;
}

static enum nm_visible_rule rule_of(const struct nm_wish_input *input)
{
    if (input->cuda_visible == NULL || strlen(input->cuda_visible) >= NM_VISIBLE_BYTES)
        return NM_VISIBLE_ALL;
    if (input->nodemgr_visible == NULL || strlen(input->nodemgr_visible) >= NM_VISIBLE_BYTES)
        return NM_VISIBLE_POSITIONS;
    return strcmp(input->cuda_visible, input->nodemgr_visible) == 0 ? NM_VISIBLE_KEEP
                                                                    : NM_VISIBLE_MEMBERS;
}

void nm_wish_read(struct nm_wish *wish, const struct nm_wish_input *input)
{
    memset(wish, 0, sizeof *wish);
    wish->rule = rule_of(input);
    if (wish->rule != NM_VISIBLE_ALL)
        set_text(wish->list, input->cuda_visible);
    if (wish->rule == NM_VISIBLE_MEMBERS)
        set_text(wish->base, input->nodemgr_visible);
    size_t listed = wish->rule != NM_VISIBLE_ALL ? parse(wish->list).count : 0;
    if (input->gpus >= 0) {
        wish->has_gpus = true;
        wish->gpus = (uint64_t)input->gpus;
    } else if (number_of(input->nodemgr_gpus, &wish->gpus)) {
        wish->has_gpus = true;
    } else if (wish->rule == NM_VISIBLE_POSITIONS) {
        wish->has_gpus = true;
        wish->gpus = listed;
    }
    wish->hidden = wish->rule != NM_VISIBLE_ALL && listed == 0;
    wish->cpu = wish->hidden || (wish->has_gpus && wish->gpus == 0);
    if (number_of(input->local_world_size, &wish->world) && wish->has_gpus &&
        wish->gpus < wish->world)
        wish->gpus = wish->world;
}

/* -- visible -- */

static bool same(struct entry a, struct entry b)
{
    return a.length == b.length && memcmp(a.text, b.text, a.length) == 0;
}

/* The member of `list` that `entry` names: the same text, or the only UUID that begins so. NULL:
   none. */
static const struct entry *member(const struct list *list, struct entry entry)
{
    const struct entry *found = NULL;
    for (size_t i = 0; i < list->count; i++) {
        const struct entry *candidate = &list->entry[i];
        if (same(*candidate, entry))
            return candidate;
        if (is_uuid(entry) && candidate->length > entry.length &&
            memcmp(candidate->text, entry.text, entry.length) == 0) {
            if (found != NULL)
                return NULL;
            found = candidate;
        }
    }
    return found;
}

static bool all_members(const struct list *list, const struct list *of)
{
    for (size_t i = 0; i < list->count; i++)
        if (member(of, list->entry[i]) == NULL)
            return false;
    return list->count > 0;
}

/* The GPU that the entry at `position` means, as an index into `base`; a UUID that base has not:
   by its position. */
static struct entry chosen(const struct list *base, struct entry entry, size_t position)
{
    uint64_t index = position;
    const struct entry *named = is_uuid(entry) ? member(base, entry) : NULL;
    if (named != NULL)
        return *named;
    nm_number(entry.text, entry.length, &index);
    return base->entry[index % base->count];
}

static void append(char out[NM_VISIBLE_BYTES], struct list *done, struct entry entry)
{
    for (size_t i = 0; i < done->count; i++)
        if (same(done->entry[i], entry))
            return; /* the driver refuses a list that names a device twice */
    size_t used = strlen(out);
    if (done->count == ENTRIES_MAX || used + entry.length + 2 > NM_VISIBLE_BYTES)
        return;
    if (used > 0)
        out[used++] = ',';
    memcpy(out + used, entry.text, entry.length);
    out[used + entry.length] = '\0';
    done->entry[done->count++] = entry;
}

static void choose(const struct list *list, const struct list *base, bool as_members,
                   char out[NM_VISIBLE_BYTES])
{
    struct list done = {.count = 0};
    out[0] = '\0';
    for (size_t i = 0; i < list->count; i++)
        append(out, &done,
               as_members ? *member(base, list->entry[i]) : chosen(base, list->entry[i], i));
}

void nm_wish_visible(const struct nm_wish *wish, const char *granted, char out[NM_VISIBLE_BYTES])
{
    struct list list = parse(wish->list), grant = parse(granted), base = parse(wish->base);
    bool whole = wish->rule == NM_VISIBLE_ALL || grant.count == 0 || list.count == 0 ||
                 (wish->rule == NM_VISIBLE_KEEP && !all_members(&list, &grant)) ||
                 (wish->rule == NM_VISIBLE_POSITIONS && list.count == grant.count);
    if (whole) {
        set_text(out, granted);
        return;
    }
    if (wish->rule != NM_VISIBLE_MEMBERS || !all_members(&base, &grant))
        base = grant;
    choose(&list, &base, wish->rule != NM_VISIBLE_POSITIONS && all_members(&list, &base), out);
}
