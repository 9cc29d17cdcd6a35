/* client.c: see client.h. The states and the packets of one process's lease.
 *
 * One lock guards all. Nobody holds it while he waits or writes to stderr. Whoever waits is the *pumper*: he alone polls the
 * socket, the others wait for the word `events`. While a lease is held, that is a thread of our own, which also beats.
 * What must be said is a row of `pending`: it is sent when due, over UDP again and again, over a new connection once more.
 */
#include "client.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "channel.h"
#include "conf.h"
#include "wire.h"
#include "wish.h"

#define MS UINT64_C(1000000)
#define SECOND (1000 * MS)
#define NEVER UINT64_MAX

#define BEAT_MS 1000
#define TIMEOUT_MS 5000
#define RETRY_FIRST_NS (200 * MS)       /* UDP: 0.2, 0.4, 0.8, 1.6, 1.6 ... s */
#define RETRY_MOST_NS (1600 * MS)
#define NO_ROOM_NS (20 * MS)            /* the socket's buffer is full: again then */
#define BACKOFF_FIRST_NS (100 * MS)
#define BACKOFF_MOST_NS SECOND
#define REFUSED_NS SECOND               /* nobody listens: so long may a manager take to start */
#define QUEUED_NS (30 * SECOND)         /* the same for one who had a place in the queue already */
#define ANSWER_NS (SECOND / 2)          /* a cancel's or release's answer */
#define STALLED_NS SECOND               /* the word on a stalled slot */
#define EXIT_LOCK_NS (20 * MS)
#define PUMP_MOST_NS (3600 * SECOND)
#define PUMP_GRACE_NS (2 * SECOND)      /* a pumper that comes so late left by a longjmp */
#define RECEIVE_MOST 32                 /* packets before others get their turn */
#define LEASES 64                       /* remembered, for frees of what an earlier one allocated */
#define SAYINGS 4
#define COMMAND_BYTES 200
#define LINE_BYTES NM_PACKET_BYTES
#define TOKEN_DIGITS 32
#define MAX_WAIT_MS (UINT64_C(1) << 40) /* in nanoseconds it still fits a word */

enum pending { HELLO, REJOIN, CANCEL, ACQUIRE, RELEASE, ASK, PENDING_COUNT };

struct pending_row {
    bool wanted;
    uint64_t rid, due_ns, interval_ns;
};

struct question {
    bool busy, failed;
    char what[65], argument[512];
    char *out; /* the asker's */
    size_t size, length;
    uint64_t next;
};

struct request {
    struct nm_wish wish;
    bool has_memory, has_wait, answered; /* answered: the manager knows of it */
    uint64_t memory_bytes, wait_ms, deadline_ns;
    char command[COMMAND_BYTES + 1];
};

/* The variables as they were before a grant of this process set them: they are the wish of its next request. */
struct original {
    bool saved, has_cuda, has_mark;
    char cuda[NM_VISIBLE_BYTES], mark[NM_VISIBLE_BYTES], published[NM_VISIBLE_BYTES];
};

static struct {
    struct nm_lock lock;
    _Atomic uint32_t events; /* grows with each change of state, line or pumper */
    enum nodemgr_state state;
    bool trying; /* NO_MANAGER that is not final */
    uint32_t changes;
    char line[LINE_BYTES];
    char fence_reason[LINE_BYTES];

    struct nm_conf conf;
    struct request request;
    struct original original;
    char task[TOKEN_DIGITS + 1];

    struct nm_channel channel;
    struct pending_row pending[PENDING_COUNT];
    struct question question;
    bool refused, told_away;
    uint64_t retry_at_ns, backoff_ns, silent_since_ns;
    uint64_t beat_ns, next_beat_ns;
    char fault[128];

    bool pumping, thread;
    uint32_t pump_token;
    int pump_fd, orphan_fd;
    uint64_t pump_until_ns;

    struct nm_ledger ledger;         /* the latest mapping */
    struct nm_ledger private_ledger; /* UDP's */
    struct nm_file_id limits_id, usage_id;
    uint32_t lease_number, lease_next, lease_first; /* first: entries before it are the parent's */
    char lease_name[65], visible[NM_VISIBLE_BYTES];

    unsigned sayings;
    char saying[SAYINGS][LINE_BYTES];
} client = {
    .channel = {.fd = -1},
    .ledger = {.limits_fd = -1, .usage_fd = -1},
    .private_ledger = {.limits_fd = -1, .usage_fd = -1},
    .pump_fd = -1,
    .orphan_fd = -1,
};

static struct nm_lease leases[LEASES];
static _Atomic(const struct nm_lease *) current; /* NULL: nothing held */
static _Atomic(int (*)(void)) python_waiter;
static _Atomic bool prepared;

static void *beat_for_ever(void *unused);

/* -- entering and leaving -- */

/* A child has its parent's memory, but neither its threads nor its lease. Descriptors are closed, never shut down: the parent uses them. */
static void become_child(void)
{
    uint32_t number = client.lease_number, next = client.lease_next;
    atomic_store(&current, NULL);
    nm_channel_close(&client.channel);
    struct nm_ledger ledger = client.ledger;
    struct nm_file_id limits_id = client.limits_id, usage_id = client.usage_id;
    memset(&client, 0, sizeof client);
    nm_channel_init(&client.channel);
    client.ledger = ledger;
    client.limits_id = limits_id;
    client.usage_id = usage_id;
    client.private_ledger.limits_fd = client.private_ledger.usage_fd = -1;
    client.pump_fd = client.orphan_fd = -1;
    client.lease_number = number;
    client.lease_next = client.lease_first = next;
    nm_fork_mark();
}

static void prepare(void)
{
    if (atomic_exchange(&prepared, true))
        return;
    nm_say_prepare();
    nm_fork_mark();
    pthread_atfork(NULL, NULL, become_child);
}

static void enter(void)
{
    prepare();
    if (nm_forked()) /* by a clone of its own making, without the handlers */
        become_child();
    nm_lock(&client.lock);
}

/* What was to be said is said without the lock: stderr may be slow. */
static void leave(void)
{
    char saying[SAYINGS][LINE_BYTES];
    unsigned count = client.sayings;
    if (count > 0)
        memcpy(saying, client.saying, sizeof saying);
    client.sayings = 0;
    nm_unlock(&client.lock);
    for (unsigned i = 0; i < count; i++)
        nm_say("%s", saying[i]);
}

static void say_later(const char *text)
{
    if (client.sayings < SAYINGS)
        nm_copy(client.saying[client.sayings++], LINE_BYTES, text);
}

static void wake(void)
{
    atomic_fetch_add(&client.events, 1);
    nm_word_wake(&client.events);
}

static void set_state(enum nodemgr_state state, const char *line)
{
    char fresh[LINE_BYTES];
    nm_copy(fresh, sizeof fresh, line);
    nm_printable(fresh);
    if (client.state == state && strcmp(client.line, fresh) == 0)
        return;
    client.state = state;
    nm_copy(client.line, sizeof client.line, fresh);
    client.changes++;
    wake();
}

static bool underway(void)
{
    return client.state == NODEMGR_WAITING || (client.state == NODEMGR_NO_MANAGER && client.trying);
}

static bool busy(void)
{
    if (client.state == NODEMGR_HELD || underway())
        return true;
    for (unsigned i = 0; i < PENDING_COUNT; i++)
        if (client.pending[i].wanted && i != HELLO)
            return true;
    return false;
}

/* -- connection -- */

static void drop_channel(void)
{
    if (!client.pumping || client.pump_fd != client.channel.fd) {
        nm_channel_close(&client.channel);
    } else if (client.channel.fd >= 0) { /* somebody polls it: he wakes up and closes it */
        client.orphan_fd = nm_channel_abandon(&client.channel);
    }
}

static void want(enum pending row, uint64_t rid)
{
    client.pending[row] = (struct pending_row){.wanted = true, .rid = rid, .due_ns = 0, .interval_ns = RETRY_FIRST_NS};
}

static void done(enum pending row)
{
    client.pending[row].wanted = false;
    wake();
}

static uint64_t fresh_rid(void)
{
    return nm_random() >> 12; /* below 2^52: exact in every language's numbers */
}

/* Everything that is still wanted is said again on a new connection (or to a new epoch). */
static void say_all_again(void)
{
    for (unsigned i = 0; i < PENDING_COUNT; i++) {
        client.pending[i].due_ns = 0;
        client.pending[i].interval_ns = RETRY_FIRST_NS;
    }
    client.question.next = 0;
    client.question.length = 0;
    if (client.state == NODEMGR_HELD && !client.pending[REJOIN].wanted && !client.pending[RELEASE].wanted)
        want(REJOIN, fresh_rid());
}

/* Clients of a manager that restarts must not come back in step. */
static uint64_t jittered(uint64_t duration_ns)
{
    return duration_ns * 3 / 4 + nm_random() % (duration_ns / 2);
}

static void lost(const char *fault, uint64_t now_ns)
{
    nm_copy(client.fault, sizeof client.fault, fault);
    drop_channel();
    client.refused = true;
    if (client.silent_since_ns == 0)
        client.silent_since_ns = now_ns;
    client.backoff_ns = client.backoff_ns == 0 ? BACKOFF_FIRST_NS : client.backoff_ns * 2;
    if (client.backoff_ns > BACKOFF_MOST_NS)
        client.backoff_ns = BACKOFF_MOST_NS;
    client.retry_at_ns = now_ns + jittered(client.backoff_ns);
}

static bool connect_when_due(uint64_t now_ns)
{
    if (client.channel.fd >= 0)
        return true;
    if (now_ns < client.retry_at_ns)
        return false;
    nm_conf_read(&client.conf); /* a new manager may have another address; a file that is gone keeps the old one */
    char fault[sizeof client.fault];
    if (nm_channel_open(&client.channel, &client.conf, fault, sizeof fault) != NM_CHANNEL_OK) {
        lost(fault, now_ns);
        return false;
    }
    say_all_again();
    if (client.channel.udp && !client.channel.has_epoch)
        want(HELLO, fresh_rid());
    return true;
}

/* -- sending -- */

static const enum nm_verb verb_of[PENDING_COUNT] = {
    [HELLO] = NM_VERB_HELLO,     [REJOIN] = NM_VERB_REJOIN,   [CANCEL] = NM_VERB_CANCEL,
    [ACQUIRE] = NM_VERB_ACQUIRE, [RELEASE] = NM_VERB_RELEASE, [ASK] = NM_VERB_ASK,
};

static void build_acquire(struct nm_build *build)
{
    const struct request *request = &client.request;
    nm_build_text(build, NM_KEY_task, client.task);
    if (request->wish.has_gpus)
        nm_build_number(build, NM_KEY_gpus, request->wish.gpus);
    if (request->has_memory)
        nm_build_number(build, NM_KEY_memory, request->memory_bytes);
    if (request->wish.world > 0)
        nm_build_number(build, NM_KEY_world, request->wish.world);
    if (request->has_wait)
        nm_build_number(build, NM_KEY_wait_ms, request->wait_ms);
    nm_build_text_cut(build, NM_KEY_command, request->command, COMMAND_BYTES);
}

static void build_rejoin(struct nm_build *build)
{
    const struct nm_lease *lease = atomic_load(&current);
    nm_build_text(build, NM_KEY_task, client.task);
    nm_build_text(build, NM_KEY_lease, client.lease_name);
    if (lease != NULL && lease->ledger.limits_fd >= 0) {
        nm_build_number(build, NM_KEY_slot, lease->slot);
        nm_build_number(build, NM_KEY_generation, lease->generation);
    }
}

static void build_row(struct nm_build *build, enum pending row)
{
    nm_build_begin(build, verb_of[row], nm_channel_reserve(&client.channel));
    nm_build_number(build, NM_KEY_rid, client.pending[row].rid);
    switch (row) {
    case HELLO: nm_build_text(build, NM_KEY_env, client.channel.env); break;
    case ACQUIRE: build_acquire(build); break;
    case REJOIN: build_rejoin(build); break;
    case RELEASE: nm_build_text(build, NM_KEY_task, client.task); break;
    case ASK:
        nm_build_text(build, NM_KEY_what, client.question.what);
        if (client.question.argument[0] != '\0')
            nm_build_text_cut(build, NM_KEY_argument, client.question.argument, sizeof client.question.argument);
        break;
    case CANCEL:
    default: break;
    }
}

/* The ledger's files, if the program has not closed them: with them a restarted manager finds the books again. */
static int ledger_fds(int fds[2])
{
    if (client.ledger.limits == NULL || !nm_fd_is(client.ledger.limits_fd, &client.limits_id) ||
        !nm_fd_is(client.ledger.usage_fd, &client.usage_id))
        return 0;
    fds[0] = client.ledger.limits_fd;
    fds[1] = client.ledger.usage_fd;
    return 2;
}

static void sent(int result, struct pending_row *row, uint64_t now_ns)
{
    if (result == NM_CHANNEL_LATER && !client.channel.udp) {
        row->due_ns = now_ns + NO_ROOM_NS;
    } else if (!client.channel.udp) {
        row->due_ns = NEVER; /* the kernel loses nothing; a lost connection makes it due again */
    } else {
        row->due_ns = now_ns + row->interval_ns;
        row->interval_ns = row->interval_ns * 2 < RETRY_MOST_NS ? row->interval_ns * 2 : RETRY_MOST_NS;
    }
    if (client.channel.udp && client.silent_since_ns == 0)
        client.silent_since_ns = now_ns;
}

static bool may_send(enum pending row)
{
    return client.pending[row].wanted && (row == HELLO || !client.channel.udp || client.channel.has_epoch);
}

static void send_when_due(enum pending which, uint64_t now_ns)
{
    struct pending_row *row = &client.pending[which];
    struct nm_build build;
    int fds[2], fd_count = which == REJOIN ? ledger_fds(fds) : 0;
    if (!may_send(which) || now_ns < row->due_ns || client.channel.fd < 0)
        return;
    if (which == ASK && client.channel.udp) { /* its parts come in order or not at all: a new question, a new number */
        row->rid = fresh_rid();
        client.question.next = 0;
        client.question.length = 0;
    }
    build_row(&build, which);
    int result = nm_channel_send(&client.channel, &build, fds, fd_count);
    sent(result, row, now_ns);
    if (result == NM_CHANNEL_LOST)
        lost(strerror(errno), now_ns);
}

static bool beats(void)
{
    if (client.pending[REJOIN].wanted || (client.channel.udp && !client.channel.has_epoch))
        return false;
    return client.state == NODEMGR_HELD || (client.state == NODEMGR_WAITING && client.request.answered && !client.channel.udp);
}

static void beat(uint64_t now_ns)
{
    struct nm_build build;
    if (client.channel.fd < 0)
        return;
    nm_build_begin(&build, NM_VERB_BEAT, nm_channel_reserve(&client.channel));
    nm_build_text(&build, NM_KEY_task, client.task);
    if (client.state == NODEMGR_WAITING)
        nm_build_number(&build, NM_KEY_rid, client.pending[ACQUIRE].rid);
    else if (client.channel.udp)
        nm_build_number(&build, NM_KEY_rid, fresh_rid());
    client.next_beat_ns = now_ns + client.beat_ns;
    if (client.channel.udp && client.silent_since_ns == 0)
        client.silent_since_ns = now_ns;
    if (nm_channel_send(&client.channel, &build, NULL, 0) == NM_CHANNEL_LOST)
        lost(strerror(errno), now_ns);
}

/* -- the ends of a request -- */

static void stop_asking(void)
{
    client.pending[ACQUIRE].wanted = client.pending[CANCEL].wanted = client.pending[REJOIN].wanted = false;
    client.trying = false;
}

static void publish(const char *name, const char *value)
{
    const char *now = nm_env_get(name);
    if (now == NULL || strcmp(now, value) != 0) /* each publication leaks a little */
        nm_env_publish(name, value);
}

static void publish_visible(const char *value)
{
    nm_copy(client.original.published, sizeof client.original.published, value);
    publish("CUDA_DEVICE_ORDER", "PCI_BUS_ID");
    publish("CUDA_VISIBLE_DEVICES", value);
    publish("NODEMGR_VISIBLE", value);
}

static void become_cpu(const char *line)
{
    stop_asking();
    if (!client.request.wish.hidden)
        publish_visible("");
    set_state(NODEMGR_CPU, line);
}

static void become_final(enum nodemgr_state state, const char *line)
{
    stop_asking();
    set_state(state, line);
}

static void become_lost(const char *reason)
{
    const struct nm_lease *lease = atomic_load(&current);
    if (lease != NULL && lease->ledger.limits_writable != NULL)
        nm_ledger_set_slot(&client.private_ledger, lease->slot, lease->generation, NM_SLOT_FENCED);
    atomic_store(&current, NULL);
    nm_copy(client.fence_reason, sizeof client.fence_reason, reason);
    become_final(NODEMGR_LOST, reason);
    say_later(reason);
}

/* -- silence -- */

static const char *policy(void)
{
    if (nm_conf_is(&client.conf, "no_manager", "cpu"))
        return "cpu";
    return nm_conf_is(&client.conf, "no_manager", "error") ? "error" : "wait";
}

static uint64_t patience_ns(void)
{
    uint64_t timeout_ns = nm_conf_number(&client.conf, "timeout_ms", TIMEOUT_MS) % MAX_WAIT_MS * MS;
    if (client.request.answered && strcmp(policy(), "wait") != 0)
        return QUEUED_NS;
    return client.refused ? REFUSED_NS : timeout_ns;
}

static void away_while_asking(void)
{
    char line[LINE_BYTES];
    const char *rule = policy();
    bool waits = strcmp(rule, "wait") == 0;
    snprintf(line, sizeof line, "no answer from the manager at %.400s (%s); %s (no_manager=%s)", client.channel.address,
             client.refused ? client.fault : "silence",
             waits ? "waiting for it" : strcmp(rule, "cpu") == 0 ? "going on without a GPU" : "no GPU", rule);
    if (waits) {
        client.trying = true;
        set_state(NODEMGR_NO_MANAGER, line);
    } else if (strcmp(rule, "cpu") == 0) {
        become_cpu(line);
    } else {
        become_final(NODEMGR_NO_MANAGER, line);
    }
}

static void away_while_held(void)
{
    char line[LINE_BYTES];
    if (client.told_away)
        return;
    client.told_away = true;
    snprintf(line, sizeof line, "no answer from the manager at %.400s (%s); the task goes on, and is announced again when it is back",
             client.channel.address, client.refused ? client.fault : "silence");
    say_later(line);
}

static uint64_t later(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* When the silence is to be told of, NEVER where all is well. The user's own limit is the manager's to keep while it answers. */
static uint64_t told_at_ns(void)
{
    if (client.silent_since_ns == 0)
        return NEVER;
    if (client.state == NODEMGR_HELD)
        return client.told_away ? NEVER : client.silent_since_ns + TIMEOUT_MS * MS;
    return underway() ? client.silent_since_ns + patience_ns() : NEVER;
}

static uint64_t given_up_at_ns(void)
{
    if (client.silent_since_ns == 0 || !underway() || !client.request.has_wait)
        return NEVER;
    return later(client.request.deadline_ns, client.silent_since_ns + REFUSED_NS);
}

static void give_up(void)
{
    char line[LINE_BYTES];
    snprintf(line, sizeof line, "waited %llu s for the manager at %.400s, which does not answer",
             (unsigned long long)(client.request.wait_ms / 1000), client.channel.address);
    become_final(NODEMGR_DENIED, line);
}

static void mind_silence(uint64_t now_ns)
{
    if (now_ns >= given_up_at_ns())
        give_up();
    else if (now_ns < told_at_ns())
        return;
    else if (client.state == NODEMGR_HELD)
        away_while_held();
    else
        away_while_asking();
}

/* -- what is due -- */

static void step(void)
{
    uint64_t now_ns = nm_now_ns();
    if (!busy()) {
        drop_channel();
        return;
    }
    if (connect_when_due(now_ns)) {
        for (unsigned row = 0; row < PENDING_COUNT; row++)
            send_when_due((enum pending)row, now_ns);
        if (beats() && now_ns >= client.next_beat_ns)
            beat(now_ns);
    }
    mind_silence(now_ns);
}

static uint64_t earlier(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static uint64_t next_due_ns(void)
{
    uint64_t due = NEVER;
    if (client.channel.fd < 0)
        due = busy() ? client.retry_at_ns : NEVER;
    for (unsigned row = 0; row < PENDING_COUNT && client.channel.fd >= 0; row++)
        if (may_send((enum pending)row))
            due = earlier(due, client.pending[row].due_ns);
    if (client.channel.fd >= 0 && beats())
        due = earlier(due, client.next_beat_ns);
    if (client.state != NODEMGR_NO_MANAGER) /* there it is told already; the line keeps up with each attempt */
        due = earlier(due, told_at_ns());
    return earlier(due, given_up_at_ns());
}

/* -- a grant -- */

struct grant {
    int count;
    const char *uuid[NM_LIST_MAX];
    size_t uuid_length[NM_LIST_MAX];
    uint64_t row[NM_LIST_MAX], limit_bytes[NM_LIST_MAX];
    bool has_slot;
    uint64_t slot, generation;
    char name[65], visible[NM_VISIBLE_BYTES];
};

static bool read_grant(const struct nm_message *message, struct grant *grant)
{
    grant->count = nm_message_names(message, NM_KEY_gpus, grant->uuid, grant->uuid_length);
    if (nm_message_numbers(message, NM_KEY_rows, grant->row) != grant->count ||
        nm_message_numbers(message, NM_KEY_limits, grant->limit_bytes) != grant->count || grant->count == 0)
        return false;
    for (int i = 0; i < grant->count; i++)
        if (grant->row[i] >= NM_LEDGER_ROWS || grant->uuid_length[i] >= NM_UUID_BYTES)
            return false;
    grant->has_slot = nm_message_has(message, NM_KEY_slot) && !client.channel.udp;
    grant->slot = nm_message_number(message, NM_KEY_slot, 0);
    grant->generation = nm_message_number(message, NM_KEY_generation, 0);
    nm_message_text(message, NM_KEY_lease, grant->name, sizeof grant->name);
    if (nm_message_text(message, NM_KEY_visible, grant->visible, sizeof grant->visible) < 0)
        nm_message_text(message, NM_KEY_gpus, grant->visible, sizeof grant->visible);
    return grant->slot < NM_LEDGER_SLOTS && grant->generation <= 0xffff;
}

static void close_if(int fd, const struct nm_file_id *id)
{
    if (fd >= 0 && nm_fd_is(fd, id))
        close(fd);
}

/* Maps the received files, unless they are those that are mapped. An old mapping stays: other threads may be reading it (one per
 * restart of the manager). Takes the descriptors out of the packet. */
static bool take_ledger(struct nm_packet *packet)
{
    struct nm_file_id limits_id, usage_id;
    if (packet->fd_count != 2)
        return client.ledger.limits != NULL && packet->fd_count == 0 && client.state == NODEMGR_HELD;
    int limits_fd = packet->fds[0], usage_fd = packet->fds[1];
    bool known = nm_fd_id(limits_fd, &limits_id) && nm_fd_id(usage_fd, &usage_id) && client.ledger.limits != NULL &&
                 nm_fd_is(client.ledger.limits_fd, &limits_id) && nm_fd_is(client.ledger.usage_fd, &usage_id);
    struct nm_ledger fresh;
    if (known)
        return true; /* the caller closes them */
    if (nm_ledger_map_client(&fresh, limits_fd, usage_fd) != NM_LEDGER_OK)
        return false;
    packet->fd_count = 0;
    close_if(client.ledger.limits_fd, &client.limits_id);
    close_if(client.ledger.usage_fd, &client.usage_id);
    client.ledger = fresh;
    client.limits_id = limits_id;
    client.usage_id = usage_id;
    return true;
}

/* Over UDP there is no shared memory: a ledger of this process alone, with the granted bytes as fixed caps. */
static bool make_private_ledger(struct grant *grant, uint32_t number)
{
    struct nm_ledger *ledger = &client.private_ledger;
    if (ledger->limits == NULL && nm_ledger_map_private(ledger) != NM_LEDGER_OK)
        return false;
    grant->slot = 0;
    grant->generation = number & 0xffff;
    if ((uint32_t)nm_ledger_slot_generation(ledger, 0) != grant->generation || nm_ledger_slots_used(ledger) == 0)
        nm_ledger_clear_slot(ledger, 0, (uint32_t)(grant->generation - 1) & 0xffff);
    for (int i = 0; i < grant->count; i++) {
        char uuid[NM_UUID_BYTES];
        nm_copy(uuid, grant->uuid_length[i] + 1, grant->uuid[i]);
        nm_ledger_set_row(ledger, (uint32_t)grant->row[i], uuid, 0);
        nm_ledger_set_limit(ledger, (uint32_t)grant->row[i], grant->limit_bytes[i]);
    }
    nm_ledger_set_slot(ledger, 0, (uint32_t)grant->generation, NM_SLOT_LIVE);
    return true;
}

/* The process got another place in the books while it holds memory (they were lost, say): its bytes go there with it. */
static void carry_over(const struct nm_lease *from, const struct nm_lease *to)
{
    if (from->ledger.usage == to->ledger.usage && from->slot == to->slot && from->generation == to->generation)
        return;
    for (uint32_t row = 0; row < NM_LEDGER_ROWS; row++) {
        uint64_t bytes = nm_ledger_take(&from->ledger, row, from->slot, from->generation);
        if (bytes > 0)
            nm_ledger_charge(&to->ledger, row, to->slot, to->generation, bytes);
    }
}

/* Publishes the lease. `again`: the one that is held, confirmed or moved. */
static void put_lease(const struct grant *grant, const struct nm_ledger *ledger, bool again)
{
    const struct nm_lease *before = atomic_load(&current);
    struct nm_lease *lease = &leases[client.lease_next++ % LEASES];
    memset(lease, 0, sizeof *lease);
    lease->number = client.lease_number;
    lease->slot = (uint32_t)grant->slot;
    lease->generation = (uint32_t)grant->generation;
    lease->gpu_count = (uint32_t)grant->count;
    lease->ledger = *ledger;
    for (int i = 0; i < grant->count; i++) {
        nm_copy(lease->gpu[i].uuid, grant->uuid_length[i] + 1, grant->uuid[i]);
        lease->gpu[i].row = (uint32_t)grant->row[i];
    }
    atomic_store(&current, lease);
    if (again && before != NULL)
        carry_over(before, lease);
}

static bool same_lease(const struct grant *grant, const struct nm_ledger *ledger)
{
    const struct nm_lease *lease = atomic_load(&current);
    if (lease == NULL || lease->ledger.limits != ledger->limits || lease->slot != grant->slot || lease->generation != grant->generation ||
        lease->gpu_count != (uint32_t)grant->count)
        return false;
    for (int i = 0; i < grant->count; i++)
        if (lease->gpu[i].row != grant->row[i])
            return false;
    return true;
}

static void start_thread(void)
{
    if (client.thread)
        return;
    client.thread = true;
    int error = nm_thread_start(beat_for_ever);
    if (error != 0) {
        char line[LINE_BYTES];
        client.thread = false;
        snprintf(line, sizeof line, "no thread for the beats (%s): the manager may take this task for stalled", strerror(error));
        say_later(line);
    }
}

/* False: not usable; then the request goes on. */
static bool install(struct nm_packet *packet, bool again)
{
    struct grant grant;
    if (!read_grant(&packet->message, &grant)) {
        nm_copy(client.fault, sizeof client.fault, "it sent a grant that cannot be read");
        return false;
    }
    uint32_t number = again ? client.lease_number : client.lease_number + 1;
    bool has_ledger = grant.has_slot ? take_ledger(packet) : client.channel.udp && make_private_ledger(&grant, number);
    if (!has_ledger) {
        nm_copy(client.fault, sizeof client.fault, "the memory ledger did not come with the grant: no free descriptors, or no memory?");
        return false;
    }
    const struct nm_ledger *ledger = grant.has_slot ? &client.ledger : &client.private_ledger;
    client.lease_number = number;
    nm_copy(client.lease_name, sizeof client.lease_name, grant.name);
    client.beat_ns = nm_message_number(&packet->message, NM_KEY_beat_ms, nm_conf_number(&client.conf, "beat_ms", BEAT_MS)) % MAX_WAIT_MS * MS;
    if (client.beat_ns == 0)
        client.beat_ns = BEAT_MS * MS;
    if (!again) {
        nm_wish_visible(&client.request.wish, grant.visible, client.visible);
        publish_visible(client.visible);
        client.fence_reason[0] = '\0';
    }
    if (!again || !same_lease(&grant, ledger))
        put_lease(&grant, ledger, again);
    return true;
}

/* -- what the manager says -- */

static bool is_answer_to(const struct nm_message *message, enum pending row)
{
    return client.pending[row].wanted && nm_message_number(message, NM_KEY_rid, UINT64_MAX) == client.pending[row].rid;
}

static bool names_lease(const struct nm_message *message)
{
    char name[65];
    return client.state == NODEMGR_HELD && nm_message_text(message, NM_KEY_lease, name, sizeof name) > 0 && strcmp(name, client.lease_name) == 0;
}

/* A grant that nobody wants any more goes back. */
static void send_back(uint64_t now_ns)
{
    struct nm_build build;
    nm_build_begin(&build, NM_VERB_RELEASE, nm_channel_reserve(&client.channel));
    nm_build_number(&build, NM_KEY_rid, fresh_rid());
    nm_build_text(&build, NM_KEY_task, client.task);
    if (nm_channel_send(&client.channel, &build, NULL, 0) == NM_CHANNEL_LOST)
        lost(strerror(errno), now_ns);
}

static void on_grant(struct nm_packet *packet, uint64_t now_ns)
{
    const struct nm_message *message = &packet->message;
    bool fresh = is_answer_to(message, ACQUIRE), again = !fresh && (is_answer_to(message, REJOIN) || names_lease(message));
    if (is_answer_to(message, CANCEL)) {
        send_back(now_ns);
        done(CANCEL);
    }
    if (!fresh && !again)
        return;
    if (!install(packet, again)) {
        char fault[sizeof client.fault];
        nm_copy(fault, sizeof fault, client.fault);
        lost(fault, now_ns);
        return;
    }
    stop_asking();
    if (fresh)
        client.next_beat_ns = now_ns + client.beat_ns;
    set_state(NODEMGR_HELD, "");
    wake(); /* who waits for a stalled slot's word looks at the slot */
    start_thread();
}

static void on_wait(struct nm_packet *packet, uint64_t now_ns)
{
    char reason[LINE_BYTES];
    if (!is_answer_to(&packet->message, ACQUIRE))
        return;
    nm_message_text(&packet->message, NM_KEY_reason, reason, sizeof reason);
    if (client.channel.udp || !client.request.answered) { /* over UDP the request itself is the waiter's beat */
        client.next_beat_ns = now_ns + client.beat_ns;
        client.pending[ACQUIRE].interval_ns = RETRY_FIRST_NS;
        client.pending[ACQUIRE].due_ns = client.channel.udp ? now_ns + client.beat_ns : NEVER;
    }
    client.request.answered = true;
    client.trying = false;
    set_state(NODEMGR_WAITING, reason);
}

static void on_deny(struct nm_packet *packet, uint64_t now_ns)
{
    const struct nm_message *message = &packet->message;
    char code[65], reason[LINE_BYTES];
    (void)now_ns;
    nm_message_text(message, NM_KEY_code, code, sizeof code);
    nm_message_text(message, NM_KEY_reason, reason, sizeof reason);
    if (is_answer_to(message, ACQUIRE)) {
        if (strcmp(code, "no_gpu") == 0 && nm_conf_is(&client.conf, "no_gpu", "cpu"))
            become_cpu(reason);
        else
            become_final(NODEMGR_DENIED, reason);
    } else if (is_answer_to(message, REJOIN)) {
        become_lost(reason);
    } else if (is_answer_to(message, ASK)) {
        client.question.failed = true;
        nm_copy(client.question.out, client.question.size, reason);
        done(ASK);
    } else if (is_answer_to(message, CANCEL)) {
        done(CANCEL);
    } else if (is_answer_to(message, RELEASE)) {
        done(RELEASE);
    }
}

static void on_fence(struct nm_packet *packet, uint64_t now_ns)
{
    char reason[LINE_BYTES];
    (void)now_ns;
    if (!names_lease(&packet->message))
        return;
    nm_message_text(&packet->message, NM_KEY_reason, reason, sizeof reason);
    become_lost(reason);
}

static void on_note(struct nm_packet *packet, uint64_t now_ns)
{
    char text[LINE_BYTES];
    (void)now_ns;
    nm_message_text(&packet->message, NM_KEY_text, text, sizeof text);
    say_later(text);
}

static void on_ack(struct nm_packet *packet, uint64_t now_ns)
{
    (void)now_ns;
    if (is_answer_to(&packet->message, RELEASE))
        done(RELEASE);
    else if (is_answer_to(&packet->message, CANCEL))
        done(CANCEL);
}

static void on_part(struct nm_packet *packet, uint64_t now_ns)
{
    const struct nm_message *message = &packet->message;
    struct question *question = &client.question;
    (void)now_ns;
    if (!is_answer_to(message, ASK) || nm_message_number(message, NM_KEY_index, UINT64_MAX) != question->next)
        return;
    char data[LINE_BYTES];
    int length = nm_message_text(message, NM_KEY_data, data, sizeof data);
    if (question->length + (size_t)length >= question->size) {
        question->failed = true;
        nm_copy(question->out, question->size, "the answer is longer than the room for it");
        done(ASK);
        return;
    }
    memcpy(question->out + question->length, data, (size_t)length + 1);
    question->length += (size_t)length;
    if (++question->next >= nm_message_number(message, NM_KEY_count, 0))
        done(ASK);
}

static void on_epoch(struct nm_packet *packet, uint64_t now_ns)
{
    struct nm_channel *channel = &client.channel;
    uint64_t epoch = nm_message_number(&packet->message, NM_KEY_epoch, 0);
    (void)now_ns;
    if (!channel->udp || (channel->has_epoch && channel->epoch == epoch && !client.pending[HELLO].wanted))
        return;
    bool restarted = channel->has_epoch && channel->epoch != epoch;
    channel->epoch = epoch;
    channel->has_epoch = true;
    done(HELLO);
    if (restarted)
        say_all_again();
}

static void (*const handlers[NM_VERB_COUNT])(struct nm_packet *, uint64_t) = {
    [NM_VERB_GRANT] = on_grant, [NM_VERB_WAIT] = on_wait, [NM_VERB_DENY] = on_deny, [NM_VERB_FENCE] = on_fence,
    [NM_VERB_NOTE] = on_note,   [NM_VERB_ACK] = on_ack,   [NM_VERB_PART] = on_part, [NM_VERB_EPOCH] = on_epoch,
};

static void receive_all(void)
{
    static struct nm_packet packet; /* under the lock */
    for (unsigned i = 0; i < RECEIVE_MOST && client.channel.fd >= 0; i++) {
        uint64_t now_ns = nm_now_ns();
        int result = nm_channel_receive(&client.channel, &packet);
        if (result == NM_CHANNEL_LATER)
            return;
        if (result == NM_CHANNEL_LOST)
            lost(strerror(errno), now_ns);
        if (result != NM_CHANNEL_OK)
            continue;
        client.silent_since_ns = 0;
        client.refused = client.told_away = false;
        client.backoff_ns = 0;
        handlers[packet.message.verb](&packet, now_ns);
        while (packet.fd_count > 0)
            close(packet.fds[--packet.fd_count]);
    }
}

/* -- waiting -- */

static int whole_ms(uint64_t duration_ns)
{
    return (int)(duration_ns / MS + (duration_ns % MS != 0));
}

static bool wait_for_the_pumper(uint64_t until_ns)
{
    uint32_t seen = atomic_load(&client.events);
    uint64_t now_ns = nm_now_ns();
    leave();
    bool uninterrupted = until_ns <= now_ns || nm_word_wait(&client.events, seen, until_ns - now_ns);
    enter();
    return uninterrupted;
}

/* Does what is due, then waits for packets or for others' doings, until then at most. Called and left with the lock held, which it
 * leaves meanwhile. False: a signal came. */
static bool pump(uint64_t until_ns)
{
    step();
    uint64_t now_ns = nm_now_ns(), wake_ns = earlier(earlier(until_ns, next_due_ns()), now_ns + PUMP_MOST_NS);
    uint64_t timeout_ns = wake_ns > now_ns ? wake_ns - now_ns : 0;
    if (client.pumping && now_ns < client.pump_until_ns)
        return wait_for_the_pumper(earlier(wake_ns, client.pump_until_ns));
    uint32_t token = ++client.pump_token;
    struct pollfd ready = {.fd = client.channel.fd, .events = POLLIN}; /* -1 is ignored */
    client.pumping = true;
    client.pump_fd = ready.fd;
    client.pump_until_ns = now_ns + timeout_ns + PUMP_GRACE_NS;
    leave();
    bool interrupted = poll(&ready, 1, whole_ms(timeout_ns)) < 0 && errno == EINTR;
    enter();
    if (client.pump_token != token || !client.pumping)
        return !interrupted;
    client.pumping = false;
    if (client.orphan_fd >= 0)
        close(client.orphan_fd);
    client.orphan_fd = client.pump_fd = -1;
    receive_all();
    step();
    wake();
    return !interrupted;
}

static void *beat_for_ever(void *unused)
{
    (void)unused;
    enter();
    while (client.state == NODEMGR_HELD)
        pump(NEVER);
    client.thread = false;
    leave();
    return NULL;
}

/* Pumps until the row is answered, for a limited time. */
static void await_answer(enum pending row, uint64_t timeout_ns)
{
    uint64_t end_ns = nm_now_ns() + timeout_ns;
    while (client.pending[row].wanted && nm_now_ns() < end_ns)
        pump(end_ns);
    client.pending[row].wanted = false;
}

/* -- a request -- */

static bool is_token(const char *text)
{
    return text != NULL && strlen(text) == TOKEN_DIGITS && strspn(text, "0123456789abcdef") == TOKEN_DIGITS;
}

static void take_task_token(void)
{
    const char *token = nm_env_get("NODEMGR_TASK");
    if (is_token(token)) {
        nm_copy(client.task, sizeof client.task, token);
        return;
    }
    snprintf(client.task, sizeof client.task, "%016llx%016llx", (unsigned long long)nm_random(), (unsigned long long)nm_random());
    nm_env_publish("NODEMGR_TASK", client.task);
}

static void take_command(const char *command)
{
    char *out = client.request.command;
    if (command != NULL) {
        nm_copy(out, sizeof client.request.command, command);
        return;
    }
    int64_t length = nm_file_read("/proc/self/cmdline", out, sizeof client.request.command);
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
    return client.original.saved && text != NULL && strcmp(text, client.original.published) == 0;
}

static void save_original(const char *cuda, const char *mark)
{
    struct original *original = &client.original;
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
        .cuda_visible = set_or_null(client.original.has_cuda, client.original.cuda),
        .nodemgr_visible = set_or_null(client.original.has_mark, client.original.mark),
        .nodemgr_gpus = wished,
        .local_world_size = nm_env_get("LOCAL_WORLD_SIZE"),
        .gpus = gpus,
    };
    nm_wish_read(&client.request.wish, &input);
    if (gpus < 0 && wished != NULL && !nm_number(wished, strlen(wished), &ignored))
        say_later("NODEMGR_GPUS is no number of GPUs: not heeded");
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
    say_later(line);
    return false;
}

static void read_request(int64_t gpus, int64_t memory_bytes, int64_t wait_ms, const char *command)
{
    struct request *request = &client.request;
    memset(request, 0, sizeof *request);
    read_wish(gpus);
    request->has_memory = take_number(memory_bytes, "NODEMGR_MEMORY", NM_BYTES_MASK, &request->memory_bytes);
    request->has_wait = take_number(wait_ms, "NODEMGR_WAIT", MAX_WAIT_MS / 1000, &request->wait_ms);
    if (request->has_wait && wait_ms < 0)
        request->wait_ms *= 1000;
    if (request->wait_ms > MAX_WAIT_MS)
        request->wait_ms = MAX_WAIT_MS;
    request->deadline_ns = nm_now_ns() + request->wait_ms * MS;
    take_command(command);
    take_task_token();
}

static void start_request(int64_t gpus, int64_t memory_bytes, int64_t wait_ms, const char *command)
{
    read_request(gpus, memory_bytes, wait_ms, command);
    if (client.request.wish.cpu) {
        become_cpu("");
        return;
    }
    client.beat_ns = nm_conf_number(&client.conf, "beat_ms", BEAT_MS) % MAX_WAIT_MS * MS;
    if (client.beat_ns == 0)
        client.beat_ns = BEAT_MS * MS;
    if (client.channel.fd < 0)
        client.retry_at_ns = client.backoff_ns = 0;
    client.silent_since_ns = nm_now_ns();
    client.refused = client.told_away = client.trying = false;
    want(ACQUIRE, fresh_rid());
    set_state(NODEMGR_WAITING, "");
    step();
}

/* -- the API -- */

int nodemgr_abi(void)
{
    return 1;
}

int nodemgr_managed(void)
{
    enter();
    bool managed = nm_conf_read(&client.conf);
    leave();
    return managed;
}

int nodemgr_setting(const char *key, char *out, size_t size)
{
    enter();
    int length = nm_conf_read(&client.conf) ? nm_conf_get(&client.conf, key, out, size) : -1;
    leave();
    return length;
}

static int told(enum nodemgr_state state, char *line, size_t size)
{
    if (line != NULL)
        nm_copy(line, size, client.line);
    leave();
    return (int)state;
}

int nodemgr_begin(int64_t gpus, int64_t memory_bytes, int64_t wait_ms, const char *command)
{
    enter();
    if (client.state != NODEMGR_HELD && !underway()) {
        if (nm_conf_read(&client.conf))
            start_request(gpus, memory_bytes, wait_ms, command);
        else
            set_state(NODEMGR_UNMANAGED, "");
    } else if (client.state == NODEMGR_HELD) {
        start_thread(); /* where there was no thread to be had at first */
    }
    return told(client.state, NULL, 0);
}

int nodemgr_poll(int timeout_ms, char *line, size_t size)
{
    uint64_t end_ns = nm_now_ns() + (uint64_t)(timeout_ms > 0 ? timeout_ms : 0) * MS;
    enter();
    uint32_t seen = client.changes;
    while (underway() && client.changes == seen && pump(end_ns) && nm_now_ns() < end_ns)
        ;
    return told(client.state, line, size);
}

int nodemgr_cancel(void)
{
    enter();
    if (underway()) {
        uint64_t rid = client.pending[ACQUIRE].rid;
        bool heard = client.channel.fd >= 0;
        become_final(NODEMGR_NONE, "");
        if (heard) {
            want(CANCEL, rid);
            await_answer(CANCEL, ANSWER_NS);
        }
        step();
    }
    return told(client.state, NULL, 0);
}

int nodemgr_release(void)
{
    enter();
    if (client.state == NODEMGR_HELD) {
        atomic_store(&current, NULL);
        want(RELEASE, fresh_rid());
        become_final(NODEMGR_NONE, "");
        await_answer(RELEASE, ANSWER_NS);
        step();
    }
    return told(client.state, NULL, 0);
}

int nodemgr_state(char *line, size_t size)
{
    enter();
    return told(client.state, line, size);
}

static size_t put_figure(char *out, size_t size, size_t used, const char *name, uint64_t (*figure)(const struct nm_ledger *, uint32_t),
                         const struct nm_lease *lease)
{
    for (uint32_t i = 0; i < lease->gpu_count && used < size; i++) {
        uint64_t value = figure != NULL ? figure(&lease->ledger, lease->gpu[i].row) : lease->gpu[i].row;
        used += (size_t)snprintf(out + used, size - used, "%s%s%llu", i == 0 ? name : "", i == 0 ? "=" : ",", (unsigned long long)value);
    }
    return used < size ? used + (size_t)snprintf(out + used, size - used, "\n") : used;
}

int nodemgr_lease(char *out, size_t size)
{
    char env[65] = "";
    enter();
    const struct nm_lease *lease = atomic_load(&current);
    size_t used = 0;
    if (lease != NULL) {
        nm_conf_get(&client.conf, "env", env, sizeof env);
        used = (size_t)snprintf(out, size, "lease=%s\ntask=%s\nenv=%s\nvisible=%s\nenforced=%d\n", client.lease_name, client.task, env,
                                client.visible, lease->ledger.limits_writable == NULL);
        for (uint32_t i = 0; i < lease->gpu_count && used < size; i++)
            used += (size_t)snprintf(out + used, size - used, "%s%s%s", i == 0 ? "gpus=" : ",", lease->gpu[i].uuid,
                                     i + 1 == lease->gpu_count ? "\n" : "");
        if (used < size)
            used = put_figure(out, size, used, "rows", NULL, lease);
        if (used < size)
            used = put_figure(out, size, used, "limits", nm_ledger_limit, lease);
    }
    leave();
    return lease != NULL && used < size ? (int)used : -1;
}

int nodemgr_ask(const char *what, const char *argument, char *out, size_t size, int timeout_ms)
{
    uint64_t timeout_ns = (uint64_t)(timeout_ms > 0 ? timeout_ms : 0) * MS, end_ns = nm_now_ns() + timeout_ns;
    struct question *question = &client.question;
    if (size == 0)
        return -1;
    nm_copy(out, size, "no answer from the manager");
    enter();
    while (question->busy && nm_now_ns() < end_ns)
        pump(end_ns);
    if (question->busy || !nm_conf_read(&client.conf)) {
        leave();
        return -1;
    }
    *question = (struct question){.busy = true, .out = out, .size = size};
    nm_copy(question->what, sizeof question->what, what);
    nm_copy(question->argument, sizeof question->argument, argument != NULL ? argument : "");
    if (client.channel.fd < 0 && !underway() && client.state != NODEMGR_HELD)
        client.retry_at_ns = 0;
    want(ASK, fresh_rid());
    while (client.pending[ASK].wanted && nm_now_ns() < end_ns)
        pump(end_ns);
    bool answered = !client.pending[ASK].wanted && !question->failed;
    int length = answered ? (int)question->length : -1;
    if (client.pending[ASK].wanted)
        nm_copy(out, size, "no answer from the manager");
    client.pending[ASK].wanted = false;
    question->busy = false;
    question->out = NULL;
    step();
    wake();
    leave();
    return length;
}

void nodemgr_set_waiter(int (*waiter)(void))
{
    atomic_store(&python_waiter, waiter);
}

int (*nm_client_waiter(void))(void)
{
    return atomic_load(&python_waiter);
}

void nodemgr_publish_env(const char *name, const char *value)
{
    nm_env_publish(name, value);
}

/* -- for the shim -- */

const struct nm_lease *nm_client_lease(void)
{
    const struct nm_lease *lease = atomic_load_explicit(&current, memory_order_acquire);
    return lease != NULL && !nm_forked() ? lease : NULL;
}

int nm_client_row(const struct nm_lease *lease, const char *uuid)
{
    for (uint32_t i = 0; lease != NULL && i < lease->gpu_count; i++)
        if (strcmp(lease->gpu[i].uuid, uuid) == 0)
            return (int)lease->gpu[i].row;
    return -1;
}

/* The manager took this process for stalled (it was stopped): it beats, and hears whether the lease is still its own. */
static void await_unstalled(const struct nm_lease *lease)
{
    uint64_t end_ns = nm_now_ns() + STALLED_NS;
    enter();
    beat(nm_now_ns());
    while (atomic_load(&current) == lease && nm_ledger_slot_state(&lease->ledger, lease->slot, lease->generation) == NM_STALLED &&
           nm_now_ns() < end_ns)
        pump(end_ns);
    leave();
}

int nm_client_charge(uint32_t row, uint64_t bytes, uint32_t *number)
{
    const struct nm_lease *lease = nm_client_lease();
    int result = lease != NULL ? nm_ledger_reserve(&lease->ledger, row, lease->slot, lease->generation, bytes) : NM_FENCED;
    if (result == NM_STALLED) {
        await_unstalled(lease);
        lease = nm_client_lease();
        result = lease != NULL ? nm_ledger_reserve(&lease->ledger, row, lease->slot, lease->generation, bytes) : NM_FENCED;
    }
    *number = lease != NULL ? lease->number : 0;
    return result;
}

void nm_client_discharge(uint32_t number, uint32_t row, uint64_t bytes)
{
    const struct nm_lease *lease = atomic_load_explicit(&current, memory_order_acquire);
    if (nm_forked())
        return;
    if (lease != NULL && lease->number == number) {
        nm_ledger_release(&lease->ledger, row, lease->slot, lease->generation, bytes);
        return;
    }
    enter(); /* an earlier lease: the latest entry of that number, if it is still remembered */
    for (uint32_t back = 1; back <= LEASES && back <= client.lease_next - client.lease_first; back++) {
        const struct nm_lease *old = &leases[(client.lease_next - back) % LEASES];
        if (old->number == number) {
            nm_ledger_release(&old->ledger, row, old->slot, old->generation, bytes);
            break;
        }
    }
    leave();
}

const char *nm_client_fence_reason(void)
{
    return client.fence_reason;
}

/* -- the waiting line, where there is no Python to write it -- */

static void show_waiting(const char *line, char shown[LINE_BYTES], uint64_t since_ns)
{
    char text[LINE_BYTES + 32];
    if (nm_say_terminal()) {
        snprintf(text, sizeof text, "%s (%llu s)", line, (unsigned long long)((nm_now_ns() - since_ns) / SECOND));
        nm_say_over(text);
    } else if (strcmp(line, shown) != 0) {
        nm_say("%s", line);
    }
    nm_copy(shown, LINE_BYTES, line);
}

int nm_client_acquire_blocking(void)
{
    char line[LINE_BYTES], shown[LINE_BYTES] = "";
    uint64_t since_ns = nm_now_ns();
    int state = nodemgr_begin(-1, -1, -1, NULL);
    for (;;) {
        state = nodemgr_poll(500, line, sizeof line);
        enter();
        bool goes_on = underway();
        leave();
        if (!goes_on)
            break;
        if (line[0] != '\0')
            show_waiting(line, shown, since_ns);
    }
    if (shown[0] != '\0' && nm_say_terminal())
        nm_say_over("");
    if (state == NODEMGR_DENIED || state == NODEMGR_NO_MANAGER || (state == NODEMGR_CPU && !client.request.wish.cpu))
        nm_say("%s", line);
    return state;
}

/* -- the end -- */

static bool holds_memory(const struct nm_lease *lease)
{
    for (uint32_t row = 0; row < NM_LEDGER_ROWS; row++)
        if (nm_ledger_slot_used(&lease->ledger, row, lease->slot) > 0)
            return true;
    return false;
}

/* A normal exit says so, without waiting for anything. On the UNIX socket a process that still has memory says nothing: its memory
 * is gone when the kernel tells the manager of its death, and not before. */
__attribute__((destructor)) static void say_goodbye(void)
{
    const struct nm_lease *lease = atomic_load(&current);
    if (!atomic_load(&prepared) || nm_forked() || !nm_lock_within(&client.lock, EXIT_LOCK_NS))
        return;
    if (client.channel.fd >= 0 && client.state == NODEMGR_HELD && (client.channel.udp || (lease != NULL && !holds_memory(lease)))) {
        want(RELEASE, fresh_rid());
        send_when_due(RELEASE, nm_now_ns());
    } else if (client.channel.fd >= 0 && underway()) {
        want(CANCEL, client.pending[ACQUIRE].rid);
        send_when_due(CANCEL, nm_now_ns());
    }
    nm_unlock(&client.lock);
}
