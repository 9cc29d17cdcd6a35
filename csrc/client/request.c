/* request.c: what this process asks for: the caller's words, else the environment's; see session.h.
 *
 * Knows: the environment variables of a wish, and how they were before a grant of ours set them.
 * Must not know: the wire, connections.
 */
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "client/session.h"

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

static void read_wish(int64_t gpus)
{
    const char *cuda = nm_env_get("CUDA_VISIBLE_DEVICES"), *mark = nm_env_get("NODEMGR_VISIBLE");
    const char *wished = nm_env_get("NODEMGR_GPUS");
    uint64_t ignored;
    if (!(is_published(cuda) && is_published(mark)))
        save_original(cuda, mark);
    struct nm_wish_input input = {
        .cuda_visible = set_or_null(nm_session.original.has_cuda, nm_session.original.cuda),
        .nodemgr_visible = set_or_null(nm_session.original.has_mark, nm_session.original.mark),
        .nodemgr_gpus = wished,
        .local_world_size = nm_env_get("LOCAL_WORLD_SIZE"),
        .gpus = gpus,
    };
    nm_wish_read(&nm_session.request.wish, &input);
    if (gpus < 0 && wished != NULL && !nm_number(wished, strlen(wished), &ignored))
        nm_say_later("NODEMGR_GPUS is no number of GPUs: not heeded");
}

/* The caller's number, else the variable's. */
static bool take_number(int64_t said, const char *variable, uint64_t most, uint64_t *out)
{
    const char *text = nm_env_get(variable);
    char line[160];
    if (said >= 0) {
        *out = (uint64_t)said;
        return true;
    }
    if (text == NULL)
        return false;
    if (nm_number(text, strlen(text), out) && *out <= most)
        return true;
    snprintf(line, sizeof line, "%s is no whole number that could be meant: not heeded", variable);
    nm_say_later(line);
    return false;
}

static void read_request(int64_t gpus, int64_t memory_bytes, int64_t wait_ms, const char *command)
{
    struct nm_request *request = &nm_session.request;
    memset(request, 0, sizeof *request);
    read_wish(gpus);
    request->has_memory =
        take_number(memory_bytes, "NODEMGR_MEMORY", NM_BYTES_MASK, &request->memory_bytes);
    request->has_wait =
        take_number(wait_ms, "NODEMGR_WAIT", NM_MAX_WAIT_MS / 1000, &request->wait_ms);
    if (request->has_wait && wait_ms < 0)
        request->wait_ms *= 1000;
    if (nm_session.waited_in_vain) { /* one call of a framework asks several times: it waits once */
        request->has_wait = true;
        request->wait_ms = 0;
    }
    if (request->wait_ms > NM_MAX_WAIT_MS)
        request->wait_ms = NM_MAX_WAIT_MS;
    request->deadline_ns = nm_now_ns() + request->wait_ms * NM_MS;
    take_command(command);
    take_task_token();
}

void nm_start_request(int64_t gpus, int64_t memory_bytes, int64_t wait_ms, const char *command)
{
    read_request(gpus, memory_bytes, wait_ms, command);
    if (nm_session.request.wish.cpu) {
        nm_become_cpu(NM_EVENT_CPU_WISHED, "");
        return;
    }
    nm_set_beat(nm_conf_number(&nm_session.conf, "beat_ms", 0));
    if (nm_session.channel.fd < 0)
        nm_session.retry_at_ns = nm_session.backoff_ns = 0;
    nm_session.silent_since_ns = nm_now_ns();
    nm_session.refused = nm_session.told_away = nm_session.trying = false;
    nm_want(NM_ACQUIRE, nm_fresh_rid());
    nm_change_state(NM_EVENT_REQUESTED, "");
    nm_step();
}
