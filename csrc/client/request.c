/* request.c: see request.h, and session.h for nm_start_request. */
#include "client/request.h"

#include <stdio.h>
#include <string.h>

#include "base/prim.h"
#include "client/messages.h"
#include "client/session.h"

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

/* "2-4": 2, and 4 in *most. "2": 2, and 0 in *most. */
static bool number_or_range(const char *text, uint64_t *least, uint64_t *most)
{
    const char *dash = text != NULL ? strchr(text, '-') : NULL;
    *most = 0;
    if (dash == NULL)
        return number_of(text, least);
    uint64_t first, last;
    if (!nm_number(text, (size_t)(dash - text), &first) || !number_of(dash + 1, &last) ||
        first < 1 || last < first)
        return false;
    *least = first;
    *most = last;
    return true;
}

static enum nm_visible_rule rule_of(const struct nm_variables *variables)
{
    const char *cuda = variables->cuda_visible, *mark = variables->nodemgr_visible;
    if (cuda == NULL || strlen(cuda) >= NM_VISIBLE_BYTES)
        return NM_VISIBLE_ALL;
    if (mark == NULL || strlen(mark) >= NM_VISIBLE_BYTES)
        return NM_VISIBLE_POSITIONS;
    return strcmp(cuda, mark) == 0 ? NM_VISIBLE_KEEP : NM_VISIBLE_MEMBERS;
}

void nm_request_read(struct nm_request *request, const struct nm_variables *variables,
                     int64_t gpus)
{
    memset(request, 0, sizeof *request);
    request->rule = rule_of(variables);
    if (request->rule != NM_VISIBLE_ALL)
        set_text(request->list, variables->cuda_visible);
    if (request->rule == NM_VISIBLE_MEMBERS)
        set_text(request->base, variables->nodemgr_visible);
    size_t listed = request->rule != NM_VISIBLE_ALL ? parse(request->list).count : 0;
    if (gpus >= 0) {
        request->is_named = true;
        request->gpus = (uint64_t)gpus;
    } else if (number_or_range(variables->nodemgr_gpus, &request->gpus, &request->gpus_max)) {
        request->is_named = true;
    } else if (request->rule == NM_VISIBLE_POSITIONS) {
        request->has_gpus = true;
        request->gpus = listed;
    }
    request->has_gpus |= request->is_named;
    request->hidden = request->rule != NM_VISIBLE_ALL && listed == 0;
    request->cpu = request->hidden || (request->has_gpus && request->gpus == 0);
    if (number_of(variables->local_world_size, &request->world) && !request->is_named &&
        request->has_gpus && request->gpus < request->world)
        request->gpus = request->world;
}

/* -- the value of CUDA_VISIBLE_DEVICES under a grant -- */

static bool same(struct entry a, struct entry b)
{
    return a.length == b.length && memcmp(a.text, b.text, a.length) == 0;
}

/* The member of `list` that `entry` names: the same text, or the only UUID that begins with it.
   NULL: none. */
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

/* The GPU of `base` that the entry at `position` means, an index or a UUID. One that `base` lacks is
   NULL if the program knows the number of GPUs, else it counts modulo that, a UUID by its place. */
static const struct entry *chosen(const struct list *base, struct entry entry, size_t position,
                                  bool is_known)
{
    uint64_t index = position;
    if (is_uuid(entry)) {
        const struct entry *named = member(base, entry);
        return named != NULL || is_known ? named : &base->entry[position % base->count];
    }
    nm_number(entry.text, entry.length, &index);
    return index < base->count || !is_known ? &base->entry[index % base->count] : NULL;
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

/* As in the driver, the list ends at the first entry that names no GPU. */
static void choose(const struct list *list, const struct list *base, bool as_members,
                   bool is_known, char out[NM_VISIBLE_BYTES])
{
    struct list done = {.count = 0};
    out[0] = '\0';
    for (size_t i = 0; i < list->count; i++) {
        const struct entry *found = as_members ? member(base, list->entry[i])
                                               : chosen(base, list->entry[i], i, is_known);
        if (found == NULL)
            return;
        append(out, &done, *found);
    }
}

void nm_request_visible(const struct nm_request *request, const char *granted,
                        char out[NM_VISIBLE_BYTES])
{
    struct list list = parse(request->list), grant = parse(granted), base = parse(request->base);
    bool whole = request->rule == NM_VISIBLE_ALL || grant.count == 0 || list.count == 0 ||
                 (request->rule == NM_VISIBLE_KEEP && !all_members(&list, &grant)) ||
                 (request->rule == NM_VISIBLE_POSITIONS && list.count == grant.count);
    if (whole) {
        set_text(out, granted);
        return;
    }
    bool positions = request->rule == NM_VISIBLE_POSITIONS;
    if (request->rule != NM_VISIBLE_MEMBERS || !all_members(&base, &grant))
        base = grant;
    choose(&list, &base, !positions && all_members(&list, &base),
           !positions || (request->is_named && !is_uuid(list.entry[0])), out);
}

/* -- the request of this process -- */

static bool is_token(const char *text)
{
    return text != NULL && strlen(text) == NM_TOKEN_DIGITS &&
           strspn(text, "0123456789abcdef") == NM_TOKEN_DIGITS;
}

static void take_task_token(void)
{
    const char *token = nm_env_get("NODEMGR_TASK");
    if (is_token(token)) {
        nm_copy(nm_session.task, sizeof nm_session.task, token);
        return;
    }
    snprintf(nm_session.task, sizeof nm_session.task, "%016llx%016llx",
             (unsigned long long)nm_random(), (unsigned long long)nm_random());
    nm_env_publish("NODEMGR_TASK", nm_session.task);
}

static void take_command(const char *command)
{
    char *out = nm_session.request.command;
    if (command != NULL) {
        nm_copy(out, sizeof nm_session.request.command, command);
        return;
    }
    int64_t length = nm_file_read("/proc/self/cmdline", out, sizeof nm_session.request.command);
    for (int64_t i = 0; i + 1 < length; i++)
        if (out[i] == '\0')
            out[i] = ' ';
}

static const char *set_or_null(bool set, const char *text)
{
    return set ? text : NULL;
}

static bool is_published(const char *text)
{
    return nm_session.original.saved && text != NULL &&
           strcmp(text, nm_session.original.published) == 0;
}

static void save_original(const char *cuda, const char *mark)
{
    struct nm_original *original = &nm_session.original;
    original->saved = true;
    original->has_cuda = cuda != NULL;
    original->has_mark = mark != NULL;
    nm_copy(original->cuda, sizeof original->cuda, cuda != NULL ? cuda : "");
    nm_copy(original->mark, sizeof original->mark, mark != NULL ? mark : "");
    original->published[0] = '\0';
}

static void read_gpus(int64_t gpus)
{
    const char *cuda = nm_env_get("CUDA_VISIBLE_DEVICES"), *mark = nm_env_get("NODEMGR_VISIBLE");
    const char *asked = nm_env_get("NODEMGR_GPUS");
    uint64_t least, most;
    if (!(is_published(cuda) && is_published(mark)))
        save_original(cuda, mark);
    struct nm_variables variables = {
        .cuda_visible = set_or_null(nm_session.original.has_cuda, nm_session.original.cuda),
        .nodemgr_visible = set_or_null(nm_session.original.has_mark, nm_session.original.mark),
        .nodemgr_gpus = asked,
        .local_world_size = nm_env_get("LOCAL_WORLD_SIZE"),
    };
    nm_request_read(&nm_session.request, &variables, gpus);
    if (gpus < 0 && asked != NULL && !number_or_range(asked, &least, &most))
        nm_say_later(NM_GPUS_NOT_A_NUMBER);
}

/* A number that a variable names: digits and the sign (0: none), times the unit. */
struct wish {
    const char *variable;
    char sign;
    uint64_t unit, least, most;
};

/* The caller's number, else that of the variable. */
static bool take_number(int64_t said, const struct wish *wish, uint64_t *out)
{
    const char *text = nm_env_get(wish->variable);
    size_t length = text != NULL ? strlen(text) : 0, signs = wish->sign != '\0';
    char line[160];
    if (said >= 0) {
        *out = (uint64_t)said;
        return true;
    }
    if (text == NULL)
        return false;
    if (length > signs && (signs == 0 || text[length - 1] == wish->sign) &&
        nm_number(text, length - signs, out) && *out <= wish->most / wish->unit &&
        (*out *= wish->unit) >= wish->least)
        return true;
    *out = 0;
    snprintf(line, sizeof line, signs != 0 ? NM_NOT_A_SHARE : NM_NOT_A_WHOLE_NUMBER,
             wish->variable);
    nm_say_later(line);
    return false;
}

/* Bytes, or a range of them, such as 1024-4096. */
static void take_memory(int64_t said)
{
    struct nm_request *request = &nm_session.request;
    const char *text = nm_env_get("NODEMGR_MEMORY"), *dash = NULL;
    uint64_t first, last;
    request->memory_max = 0;
    if (said < 0 && text != NULL)
        dash = strchr(text, '-');
    if (dash != NULL && nm_number(text, (size_t)(dash - text), &first) &&
        nm_number(dash + 1, strlen(dash + 1), &last) && 1 <= first && first <= last &&
        last <= NM_BYTES_MASK) {
        request->has_memory = true;
        request->memory_bytes = first;
        request->memory_max = last;
        return;
    }
    request->has_memory = take_number(
        said, &(struct wish){"NODEMGR_MEMORY", 0, 1, 0, NM_BYTES_MASK}, &request->memory_bytes);
}

static bool is_class(const char *text)
{
    static const char *const classes[] = {"latency-sensitive", "normal", "best-effort"};
    for (size_t i = 0; i < sizeof classes / sizeof *classes; i++)
        if (strcmp(text, classes[i]) == 0)
            return true;
    return false;
}

static void take_class(void)
{
    const char *text = nm_env_get("NODEMGR_CLASS");
    if (text == NULL)
        return;
    if (is_class(text))
        nm_copy(nm_session.request.task_class, sizeof nm_session.request.task_class, text);
    else
        nm_say_later(NM_NOT_A_CLASS);
}

static void take_wishes(void)
{
    static const struct wish wishes[] = {
#define NM_WISH(key, sign, variable, unit, least, most) {variable, sign, unit, least, most},
#include "wire/wishes.def"
#undef NM_WISH
    };
    for (int i = 0; i < NM_WISH_COUNT; i++)
        take_number(-1, &wishes[i], &nm_session.request.wish[i]);
}

static void take_worker_gpu(void)
{
    char *out = nm_session.request.worker_gpu;
    const char *text = nm_env_get("NODEMGR_WORKER_GPU");
    if (text != NULL && nm_copy(out, sizeof nm_session.request.worker_gpu, text) == strlen(text) &&
        nm_wire_check_value(NM_KEY_worker_gpu, NM_UP, out, strlen(out)) == NM_WIRE_OK)
        return;
    out[0] = '\0';
    if (text != NULL && text[0] != '\0') /* empty: a worker that has no GPU yet */
        nm_say_later(NM_WORKER_GPU_NO_NAME);
}

static void read_request(int64_t gpus, int64_t memory_bytes, int64_t wait_ms, const char *command)
{
    struct nm_request *request = &nm_session.request;
    read_gpus(gpus);
    take_memory(memory_bytes);
    request->has_wait = take_number(
        wait_ms, &(struct wish){"NODEMGR_WAIT", 0, 1000, 0, NM_MAX_WAIT_MS}, &request->wait_ms);
    if (nm_session.waited_in_vain) { /* a framework asks several times in one call: it waits once */
        request->has_wait = true;
        request->wait_ms = 0;
    }
    if (request->wait_ms > NM_MAX_WAIT_MS)
        request->wait_ms = NM_MAX_WAIT_MS;
    request->deadline_ns = nm_now_ns() + request->wait_ms * NM_MS;
    take_class();
    take_wishes();
    take_worker_gpu();
    const char *visible_as = nm_env_get("NODEMGR_VISIBLE_AS");
    request->by_index = visible_as != NULL && strcmp(visible_as, "index") == 0;
    take_command(command);
    take_task_token();
}

void nm_start_request(int64_t gpus, int64_t memory_bytes, int64_t wait_ms, const char *command,
                      bool starts)
{
    read_request(gpus, memory_bytes, wait_ms, command);
    nm_session.request.starts = starts;
    if (nm_session.request.cpu) {
        nm_become_cpu(NM_EVENT_CPU_WISHED, "");
        return;
    }
    nm_set_beat(nm_conf_number(&nm_session.conf, "beat_ms", 0));
    if (nm_session.channel.fd < 0)
        nm_session.retry_at_ns = nm_session.backoff_ns = 0;
    nm_session.silent_since_ns = nm_now_ns();
    nm_session.refused = nm_session.told_away = nm_session.trying = false;
    nm_session.tries = 0;
    nm_want(NM_ACQUIRE, nm_fresh_rid());
    nm_change_state(NM_EVENT_REQUESTED, "");
    nm_step();
}
