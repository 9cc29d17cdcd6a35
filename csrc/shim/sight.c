/* sight.c: see sight.h. */
#include "shim/sight.h"

#include <string.h>

#include "client/client.h"
#include "client/request.h"

enum {
    PIDS = 4096,
    ANSWER_BYTES = 48 * 1024,
    ASK_MS = 300,
    HOLDS_MS = 200,
    FAULT_HOLDS_MS = 2000, /* a manager that is away is not waited for at each call */
    LOCK_MS = 1000,        /* a forked child may find the lock held by no thread */
};
#define MS_NS UINT64_C(1000000)

/* The manager's last answer: {"gpus":[["GPU-...",limit,used],...],"pids":[...]}. */
static struct {
    struct nm_lock lock;
    uint64_t until_ns;
    /* process: the one that asked; a forked child asks anew */
    uint32_t process, gpu_count, pid_count;
    struct nm_sight_gpu gpu[NM_LEDGER_ROWS];
    uint32_t pid[PIDS];
    char answer[ANSWER_BYTES];
} holdings;

/* The digits at *at, which moves past them and the character after them. */
static bool read_number(const char **at, uint64_t *out)
{
    size_t length = strspn(*at, "0123456789");
    if (!nm_number(*at, length, out))
        return false;
    *at += length + ((*at)[length] != '\0');
    return true;
}

/* ["GPU-...",1,2] and the character after it. */
static bool read_gpu(const char **at, struct nm_sight_gpu *out)
{
    if (strncmp(*at, "[\"", 2) != 0)
        return false;
    size_t length = strcspn(*at += 2, "\"");
    if (length == 0 || length >= NM_UUID_BYTES || strncmp(*at + length, "\",", 2) != 0)
        return false;
    memcpy(out->uuid, *at, length);
    out->uuid[length] = '\0';
    *at += length + 2;
    if (!read_number(at, &out->limit_bytes) || !read_number(at, &out->used_bytes))
        return false;
    *at += **at == ',';
    return true;
}

static void read_answer(void)
{
    const char *gpus = strstr(holdings.answer, "\"gpus\":["),
               *pids = strstr(holdings.answer, "\"pids\":[");
    uint64_t pid;
    gpus = gpus != NULL ? gpus + strlen("\"gpus\":[") : "";
    pids = pids != NULL ? pids + strlen("\"pids\":[") : "";
    holdings.gpu_count = holdings.pid_count = 0;
    while (holdings.gpu_count < NM_LEDGER_ROWS &&
           read_gpu(&gpus, &holdings.gpu[holdings.gpu_count]))
        holdings.gpu_count++;
    while (holdings.pid_count < PIDS && read_number(&pids, &pid))
        holdings.pid[holdings.pid_count++] = (uint32_t)pid;
}

/* With the lock held. */
static void refresh(void)
{
    uint64_t now_ns = nm_now_ns();
    if (holdings.process == nm_pid() && now_ns < holdings.until_ns)
        return;
    bool answered =
        nodemgr_ask("holdings", NULL, holdings.answer, sizeof holdings.answer, ASK_MS) >= 0;
    if (answered || holdings.process != nm_pid()) {
        if (!answered)
            holdings.answer[0] = '\0';
        read_answer();
    }
    holdings.process = nm_pid();
    holdings.until_ns = nm_now_ns() + (answered ? HOLDS_MS : FAULT_HOLDS_MS) * MS_NS;
}

static uint64_t setting(const char *key, uint64_t absent)
{
    char text[24];
    uint64_t value;
    int length = nodemgr_setting(key, text, sizeof text);
    return length > 0 && (size_t)length < sizeof text && nm_number(text, (size_t)length, &value)
               ? value
               : absent;
}

static struct nm_request own_request(void)
{
    struct nm_request request;
    struct nm_variables variables = {
        .cuda_visible = nm_env_get("CUDA_VISIBLE_DEVICES"),
        .nodemgr_visible = nm_env_get("NODEMGR_VISIBLE"),
        .nodemgr_gpus = nm_env_get("NODEMGR_GPUS"),
        .local_world_size = nm_env_get("LOCAL_WORLD_SIZE"),
    };
    nm_request_read(&request, &variables, -1);
    return request;
}

/* The number of GPUs that a request of this process would get. */
static uint32_t wished(const struct nm_request *request)
{
    uint64_t usual = setting("gpus", 0), node = setting("node_gpus", NM_LEDGER_ROWS);
    uint64_t gpus = !request->cpu && request->has_gpus     ? request->gpus
                    : request->world > usual && usual > 0 ? request->world
                                                          : usual;
    gpus = usual == 0 ? 0 : gpus < node ? gpus : node;
    return (uint32_t)(gpus < NM_LEDGER_ROWS ? gpus : NM_LEDGER_ROWS);
}

static void look_at_lease(const struct nm_lease *lease, struct nm_sight *out)
{
    out->leased = true;
    out->count = out->expected = lease->gpu_count;
    for (uint32_t i = 0; i < lease->gpu_count; i++)
        nm_copy(out->gpu[i].uuid, NM_UUID_BYTES, lease->gpu[i].uuid);
}

void nm_sight_look(struct nm_sight *out)
{
    char line[8];
    const struct nm_lease *lease = nm_client_lease();
    if (lease == NULL && nodemgr_state(line, sizeof line) == NODEMGR_LOST)
        lease = nm_client_latest_lease(); /* a lost lease still shows its GPUs */
    *out = (struct nm_sight){0};
    if (lease != NULL) {
        look_at_lease(lease, out);
        return;
    }
    struct nm_request request = own_request();
    if (request.is_named && request.gpus == 0)
        return; /* as cuInit answers: none, nor those of the environment's other tasks */
    out->expected = wished(&request);
    out->node_count = (uint32_t)setting("node_gpus", 0);
    out->memory_per_gpu = setting("memory_per_gpu", 0);
    if (nm_lock_within(&holdings.lock, LOCK_MS * MS_NS)) {
        refresh();
        out->count = holdings.gpu_count;
        memcpy(out->gpu, holdings.gpu, sizeof out->gpu);
        nm_unlock(&holdings.lock);
    }
    if (out->expected < out->count)
        out->expected = out->count;
}

static bool is_known(uint32_t pid)
{
    for (uint32_t i = 0; i < holdings.pid_count; i++)
        if (holdings.pid[i] == pid)
            return true;
    return pid == nm_pid();
}

uint32_t nm_sight_keep_own(void *records, uint32_t count, size_t record_bytes, size_t offset)
{
    uint32_t kept = 0, pid;
    bool locked = nm_lock_within(&holdings.lock, LOCK_MS * MS_NS);
    if (locked)
        refresh();
    for (uint32_t i = 0; i < count; i++) {
        char *record = (char *)records + i * record_bytes;
        memcpy(&pid, record + offset, sizeof pid);
        if (locked ? is_known(pid) : pid == nm_pid())
            memmove((char *)records + kept++ * record_bytes, record, record_bytes);
    }
    if (locked)
        nm_unlock(&holdings.lock);
    return kept;
}

bool nm_sight_is_own(uint32_t pid)
{
    return nm_sight_keep_own(&pid, 1, sizeof pid, 0) == 1;
}
