/* lease.c: the lease of this process: a grant becomes a lease with a mapped ledger; see session.h.
 *
 * Knows: GRANT's fields, the ledger's files, the earlier leases of this process. Must not know:
 * when packets are sent.
 */
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "client/messages.h"
#include "client/session.h"

/* No lease is forgotten: other threads may still read it, and frees of its allocations need it.
   A new grant or a restart of the manager takes one more entry. */
enum { SHELF = 64, SHELVES = 4096 };

static struct nm_lease *shelves[SHELVES];

static struct nm_lease *lease_at(uint32_t index)
{
    return &shelves[index / SHELF][index % SHELF];
}

/* False: no memory for another lease. */
static bool make_room(void)
{
    uint32_t shelf = nm_session.lease_next / SHELF;
    if (shelf >= SHELVES)
        return false;
    if (shelves[shelf] == NULL) {
        void *fresh = mmap(NULL, SHELF * sizeof(struct nm_lease), PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        shelves[shelf] = fresh != MAP_FAILED ? fresh : NULL;
    }
    return shelves[shelf] != NULL;
}

struct grant {
    int count;
    const char *uuid[NM_LIST_MAX];
    size_t uuid_length[NM_LIST_MAX];
    uint64_t row[NM_LIST_MAX], limit_bytes[NM_LIST_MAX], launch_slot[NM_LIST_MAX];
    bool has_slot, has_gates;
    uint64_t slot, generation;
    char name[65], visible[NM_VISIBLE_BYTES];
};

static bool read_grant(const struct nm_message *message, struct grant *grant)
{
    grant->count = nm_message_names(message, NM_KEY_gpus, grant->uuid, grant->uuid_length);
    if (nm_message_numbers(message, NM_KEY_rows, grant->row) != grant->count ||
        nm_message_numbers(message, NM_KEY_limits, grant->limit_bytes) != grant->count ||
        grant->count == 0)
        return false;
    for (int i = 0; i < grant->count; i++)
        if (grant->row[i] >= NM_LEDGER_ROWS || grant->uuid_length[i] >= NM_UUID_BYTES)
            return false;
    grant->has_gates = nm_message_has(message, NM_KEY_gates);
    if (grant->has_gates &&
        nm_message_numbers(message, NM_KEY_gates, grant->launch_slot) != grant->count)
        return false;
    for (int i = 0; grant->has_gates && i < grant->count; i++)
        if (grant->launch_slot[i] >= NM_LAUNCH_SLOTS)
            return false;
    grant->has_slot = nm_message_has(message, NM_KEY_slot) && !nm_session.channel.udp;
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

/* A restarted manager has new limits and the old usage file. The old mapping of the latter is
   kept, so that the lease's words stay where they are. */
static void keep_usage(struct nm_ledger *fresh, const struct nm_file_id *usage_id)
{
    const struct nm_ledger *mapped = &nm_session.ledger;
    if (mapped->usage == NULL || usage_id->device != nm_session.usage_id.device ||
        usage_id->inode != nm_session.usage_id.inode)
        return;
    munmap(fresh->usage, sizeof *fresh->usage);
    fresh->usage = mapped->usage;
}

enum { LEDGER_FDS = 2, GATE_FDS = 2 };

/* Maps the launch gates of a grant: two descriptors for each GPU, behind those of the ledger.
   Without descriptors the mapped files stay. */
static bool take_gates(const struct nm_packet *packet, const struct grant *grant)
{
    const int *fds = packet->fds + LEDGER_FDS;
    if (!grant->has_gates)
        return true;
    if (packet->fd_count == 0) {
        for (int i = 0; i < grant->count; i++)
            if (nm_session.launch_files[grant->row[i]].gate.shares == NULL)
                return false;
        return true;
    }
    if (packet->fd_count != LEDGER_FDS + GATE_FDS * grant->count)
        return false;
    for (int i = 0; i < grant->count; i++)
        if (!nm_map_launch_gate((uint32_t)grant->row[i], fds[GATE_FDS * i], fds[GATE_FDS * i + 1]))
            return false;
    return true;
}

/* Maps the received files, unless they are mapped already. An old mapping stays, since other
 * threads may be reading it: one for each restart of the manager. Takes its two descriptors from the
 * packet. */
static bool take_ledger(struct nm_packet *packet)
{
    struct nm_file_id limits_id, usage_id;
    if (packet->fds_lost)
        return false;
    if (packet->fd_count < LEDGER_FDS)
        return nm_session.ledger.limits != NULL && packet->fd_count == 0 &&
               nm_session.state == NODEMGR_HELD;
    int limits_fd = packet->fds[0], usage_fd = packet->fds[1];
    bool known = nm_fd_id(limits_fd, &limits_id) && nm_fd_id(usage_fd, &usage_id) &&
                 nm_session.ledger.limits != NULL &&
                 nm_fd_is(nm_session.ledger.limits_fd, &limits_id) &&
                 nm_fd_is(nm_session.ledger.usage_fd, &usage_id);
    struct nm_ledger fresh;
    if (known)
        return true; /* the caller closes them */
    if (nm_ledger_map_client(&fresh, limits_fd, usage_fd) != NM_LEDGER_OK)
        return false;
    packet->fds[0] = packet->fds[--packet->fd_count];
    packet->fds[1] = packet->fds[--packet->fd_count];
    keep_usage(&fresh, &usage_id);
    close_if(nm_session.ledger.limits_fd, &nm_session.limits_id);
    close_if(nm_session.ledger.usage_fd, &nm_session.usage_id);
    nm_session.ledger = fresh;
    nm_session.limits_id = limits_id;
    nm_session.usage_id = usage_id;
    return true;
}

/* Over UDP there is no shared memory: the ledger is of this process alone, with the granted
   bytes as fixed limits. */
static bool make_private_ledger(struct grant *grant)
{
    struct nm_ledger *ledger = &nm_session.private_ledger;
    if (ledger->limits == NULL && nm_ledger_map_private(ledger) != NM_LEDGER_OK)
        return false;
    /* as before: allocations of an earlier lease may still be charged in it */
    grant->slot = grant->generation = 0;
    for (int i = 0; i < grant->count; i++) {
        char uuid[NM_UUID_BYTES];
        nm_copy(uuid, grant->uuid_length[i] + 1, grant->uuid[i]);
        nm_ledger_set_row(ledger, (uint32_t)grant->row[i], uuid, 0);
        nm_ledger_set_limit(ledger, (uint32_t)grant->row[i], grant->limit_bytes[i]);
    }
    nm_ledger_set_slot(ledger, 0, (uint32_t)grant->generation, NM_SLOT_LIVE);
    return true;
}

/* -- a new slot for a process that holds memory (its ledger was lost): its bytes move to it -- */

static bool is_same_place(const struct nm_lease *from, const struct nm_lease *to)
{
    return from->ledger.usage == to->ledger.usage && from->slot == to->slot &&
           from->generation == to->generation;
}

/* The bytes stand in both slots for a while, and never in neither. */
static void copy_bytes(const struct nm_lease *from, const struct nm_lease *to,
                       uint64_t copied_bytes[NM_LEDGER_ROWS])
{
    for (uint32_t row = 0; row < NM_LEDGER_ROWS; row++) {
        uint64_t bytes = nm_ledger_slot_used(&from->ledger, row, from->slot);
        bool stands = bytes > 0 &&
                      nm_ledger_charge(&to->ledger, row, to->slot, to->generation, bytes) == NM_OK;
        copied_bytes[row] = stands ? bytes : 0;
    }
}

/* Corrects the new slot by what other threads allocated or freed in the old one meanwhile. */
static void take_away(const struct nm_lease *from, const struct nm_lease *to,
                      const uint64_t copied_bytes[NM_LEDGER_ROWS])
{
    for (uint32_t row = 0; row < NM_LEDGER_ROWS; row++) {
        uint64_t bytes = nm_ledger_take(&from->ledger, row, from->slot, from->generation);
        if (bytes > copied_bytes[row])
            nm_ledger_charge(&to->ledger, row, to->slot, to->generation, bytes - copied_bytes[row]);
        else
            nm_ledger_release(&to->ledger, row, to->slot, to->generation,
                              copied_bytes[row] - bytes);
    }
}

/* Publishes the lease. `again`: it is held already, and confirmed or moved. */
static void put_lease(const struct grant *grant, const struct nm_ledger *ledger, bool again)
{
    const struct nm_lease *before = atomic_load(&nm_held_lease);
    struct nm_lease *lease = lease_at(nm_session.lease_next++);
    lease->number = nm_session.lease_number;
    lease->slot = (uint32_t)grant->slot;
    lease->generation = (uint32_t)grant->generation;
    lease->gpu_count = (uint32_t)grant->count;
    lease->ledger = *ledger;
    for (int i = 0; i < grant->count; i++) {
        nm_copy(lease->gpu[i].uuid, grant->uuid_length[i] + 1, grant->uuid[i]);
        lease->gpu[i].row = (uint32_t)grant->row[i];
        if (grant->has_gates) {
            lease->gpu[i].launch_slot = (uint32_t)grant->launch_slot[i];
            lease->gpu[i].gate = nm_session.launch_files[grant->row[i]].gate;
        }
    }
    uint64_t copied_bytes[NM_LEDGER_ROWS];
    bool moves = again && before != NULL && !is_same_place(before, lease);
    if (moves)
        copy_bytes(before, lease, copied_bytes);
    nm_hold_lease(lease);
    if (moves)
        take_away(before, lease, copied_bytes);
}

static bool same_gate(const struct grant *grant, int index, const struct nm_lease_gpu *gpu)
{
    const struct nm_launch_gate *gate = &nm_session.launch_files[grant->row[index]].gate;
    return grant->has_gates ? gpu->gate.shares == gate->shares && gpu->gate.turns == gate->turns &&
                                  gpu->launch_slot == grant->launch_slot[index]
                            : gpu->gate.shares == NULL;
}

static bool same_lease(const struct grant *grant, const struct nm_ledger *ledger)
{
    const struct nm_lease *lease = atomic_load(&nm_held_lease);
    if (lease == NULL || lease->ledger.limits != ledger->limits || lease->slot != grant->slot ||
        lease->generation != grant->generation || lease->gpu_count != (uint32_t)grant->count)
        return false;
    for (int i = 0; i < grant->count; i++)
        if (lease->gpu[i].row != grant->row[i] || !same_gate(grant, i, &lease->gpu[i]))
            return false;
    return true;
}

/* Before its first lease a program has no memory. A charge in its words is of the program that
   this process ran before an exec. */
static void empty_words(const struct grant *grant, const struct nm_ledger *ledger)
{
    for (uint32_t row = 0; row < NM_LEDGER_ROWS; row++)
        nm_ledger_take(ledger, row, (uint32_t)grant->slot, (uint32_t)grant->generation);
}

bool nm_install_grant(struct nm_packet *packet, bool again)
{
    struct grant grant;
    if (!read_grant(&packet->message, &grant)) {
        nm_copy(nm_session.fault, sizeof nm_session.fault, NM_UNREADABLE_GRANT);
        return false;
    }
    bool first = nm_session.lease_number == 0;
    uint32_t number = again ? nm_session.lease_number : nm_session.lease_number + 1;
    if (!make_room()) {
        nm_copy(nm_session.fault, sizeof nm_session.fault, NM_NO_ROOM_FOR_GRANT);
        return false;
    }
    bool has_ledger = grant.has_slot ? take_gates(packet, &grant) && take_ledger(packet)
                                     : nm_session.channel.udp && make_private_ledger(&grant);
    if (!has_ledger) {
        nm_copy(nm_session.fault, sizeof nm_session.fault,
                packet->fds_lost ? NM_NO_DESCRIPTORS : NM_LEDGER_NOT_MAPPED);
        return false;
    }
    const struct nm_ledger *ledger =
        grant.has_slot ? &nm_session.ledger : &nm_session.private_ledger;
    nm_session.lease_number = number;
    nm_copy(nm_session.lease_name, sizeof nm_session.lease_name, grant.name);
    if (nm_message_has(&packet->message, NM_KEY_beat_ms))
        nm_set_beat(nm_message_number(&packet->message, NM_KEY_beat_ms, 0));
    if (!again) {
        nm_request_visible(&nm_session.request, grant.visible, nm_session.visible);
        nm_publish_visible(nm_session.visible);
        nm_publish_threads(nm_message_number(&packet->message, NM_KEY_threads, 0));
        nm_session.fence_reason[0] = '\0';
    }
    if (first)
        empty_words(&grant, ledger);
    if (!again || !same_lease(&grant, ledger))
        put_lease(&grant, ledger, again);
    return true;
}

void nm_become_lost(const char *reason)
{
    const struct nm_lease *lease = atomic_load(&nm_held_lease);
    if (lease != NULL && !nm_is_in_ledger(lease))
        nm_ledger_set_slot(&nm_session.private_ledger, lease->slot, lease->generation,
                           NM_SLOT_FENCED);
    nm_hold_lease(NULL);
    nm_copy(nm_session.fence_reason, sizeof nm_session.fence_reason, reason);
    nm_become_final(NM_EVENT_FENCED, reason);
    nm_tell_lost();
}

void nm_tell_lost(void)
{
    char line[NM_LINE_BYTES];
    const char *reason = nm_session.fence_reason;
    if (nm_session.told_lost == nm_session.lease_number)
        return;
    nm_session.told_lost = nm_session.lease_number;
    if (nm_session.given_back == nm_session.lease_number)
        return; /* the program asked for it, and knows */
    snprintf(line, sizeof line, NM_LEASE_LOST, reason[0] != '\0' ? reason : NM_TASK_LEASE_OVER);
    nm_say_later(line);
}

const struct nm_lease *nm_lease_numbered(uint32_t number)
{
    for (uint32_t next = nm_session.lease_next; next > nm_session.lease_first; next--)
        if (lease_at(next - 1)->number == number)
            return lease_at(next - 1);
    return NULL;
}

const struct nm_lease *nm_client_latest_lease(void)
{
    nm_enter();
    const struct nm_lease *lease =
        nm_session.lease_next > nm_session.lease_first ? lease_at(nm_session.lease_next - 1) : NULL;
    nm_leave();
    return lease;
}

int nm_client_row(const struct nm_lease *lease, const char *uuid)
{
    for (uint32_t i = 0; lease != NULL && i < lease->gpu_count; i++)
        if (strcmp(lease->gpu[i].uuid, uuid) == 0)
            return (int)lease->gpu[i].row;
    return -1;
}

bool nm_is_in_ledger(const struct nm_lease *lease)
{
    return lease != NULL && lease->ledger.limits_writable == NULL;
}
