/* launch_files.c: the launch gates of a grant, and the choice whether this process has any; see
 * session.h.
 *
 * Knows: the two files of each GPU, client.conf's `gate`. Must not know: launches.
 */
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "client/session.h"

enum choice { UNDECIDED, NOT_GATED, GATED };

static _Atomic int chosen;

bool nm_is_gated(void)
{
    if (atomic_load(&chosen) == UNDECIDED)
        atomic_store(&chosen, nm_conf_read(&nm_session.conf) &&
                                      nm_conf_is(&nm_session.conf, "gate", "1")
                                  ? GATED
                                  : NOT_GATED);
    return atomic_load(&chosen) == GATED;
}

bool nm_client_gated(void)
{
    int choice = atomic_load_explicit(&chosen, memory_order_relaxed);
    if (choice != UNDECIDED)
        return choice == GATED;
    nm_enter();
    bool gated = nm_is_gated();
    nm_leave();
    return gated;
}

static bool is_same_file(const struct nm_file_id *a, const struct nm_file_id *b)
{
    return a->device == b->device && a->inode == b->inode;
}

/* An old mapping stays, because other threads may be reading it: one for each restart of the
   manager, or for a gate that was replaced. */
bool nm_map_launch_gate(uint32_t row, int shares_fd, int turns_fd)
{
    struct nm_launch_files *files = &nm_session.launch_files[row];
    struct nm_file_id shares_id, turns_id;
    struct nm_launch_gate fresh;
    if (!nm_fd_id(shares_fd, &shares_id) || !nm_fd_id(turns_fd, &turns_id))
        return false;
    if (files->gate.shares != NULL && is_same_file(&files->shares_id, &shares_id) &&
        is_same_file(&files->turns_id, &turns_id))
        return true;
    if (nm_launch_gate_map_client(&fresh, shares_fd, turns_fd) != NM_LAUNCH_GATE_OK)
        return false;
    fresh.shares_fd = fresh.turns_fd = -1; /* the packet's */
    *files = (struct nm_launch_files){fresh, shares_id, turns_id};
    return true;
}

void nm_client_set_unsuspendable(bool unsuspendable)
{
    nm_enter();
    nm_session.unsuspendable = unsuspendable;
    if (nm_session.state == NODEMGR_HELD && !nm_session.channel.udp)
        nm_beat(nm_now_ns());
    nm_leave();
}

/* A question whose answer is not awaited: the page says when the process goes on. */
void nm_client_ask_resume(void)
{
    char answer[64];
    nodemgr_ask("resume", nm_session.lease_name, answer, sizeof answer, 1);
}
