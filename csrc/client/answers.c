/* answers.c: packets from the manager: one handler for each verb; see session.h.
 *
 * Knows: the verbs that come down. Must not know: sockets.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "client/messages.h"
#include "client/session.h"

#define RECEIVE_MOST 32 /* packets before other threads get the lock */
#define TRY_AGAIN_NS (500 * NM_MS)

static bool is_answer_to(const struct nm_message *message, enum nm_pending row)
{
    return nm_session.pending[row].wanted &&
           nm_message_number(message, NM_KEY_rid, UINT64_MAX) == nm_session.pending[row].rid;
}

static bool names_lease(const struct nm_message *message)
{
    char name[65];
    return nm_session.state == NODEMGR_HELD &&
           nm_message_text(message, NM_KEY_lease, name, sizeof name) > 0 &&
           strcmp(name, nm_session.lease_name) == 0;
}

/* Returns a grant that is no longer wanted. */
static void send_back(uint64_t now_ns)
{
    struct nm_build build;
    nm_build_begin(&build, NM_VERB_RELEASE, nm_channel_reserve(&nm_session.channel));
    nm_build_number(&build, NM_KEY_rid, nm_fresh_rid());
    nm_build_text(&build, NM_KEY_task, nm_session.task);
    if (nm_channel_send(&nm_session.channel, &build, NULL, 0) == NM_CHANNEL_LOST)
        nm_lost(strerror(errno), now_ns);
}

/* The client asks for the grant again, when there may be room for it, and reports the reason
   meanwhile. It stays on this connection, over which it gives the grant back in the end: the process
   may be unable to open another one. A lease that is held comes again on the next connection. */
static void not_installed(bool fresh, uint64_t now_ns)
{
    char fault[sizeof nm_session.fault], line[NM_LINE_BYTES];
    nm_copy(fault, sizeof fault, nm_session.fault);
    if (!fresh) {
        nm_lost(fault, now_ns);
        return;
    }
    bool too_late = nm_session.request.has_wait && now_ns >= nm_session.request.deadline_ns,
         in_vain = ++nm_session.tries >= NM_MOST_TRIES;
    snprintf(line, sizeof line, too_late || in_vain ? NM_CANNOT_TAKE : NM_CANNOT_TAKE_YET, fault);
    if (too_late || in_vain) {
        send_back(now_ns);
        nm_become_refused(line, too_late);
        return;
    }
    nm_session.pending[NM_ACQUIRE].due_ns = now_ns + TRY_AGAIN_NS;
    nm_session.trying = true;
    nm_change_state(NM_EVENT_NOT_INSTALLED, line);
}

static void on_grant(struct nm_packet *packet, uint64_t now_ns)
{
    const struct nm_message *message = &packet->message;
    bool fresh = is_answer_to(message, NM_ACQUIRE),
         again = !fresh && (is_answer_to(message, NM_REJOIN) || names_lease(message));
    if (is_answer_to(message, NM_CANCEL)) {
        send_back(now_ns);
        nm_done(NM_CANCEL);
    }
    if (!fresh && !again)
        return;
    if (!nm_install_grant(packet, again)) {
        not_installed(fresh, now_ns);
        return;
    }
    nm_stop_asking();
    nm_session.waited_in_vain = false;
    if (fresh)
        nm_session.next_beat_ns = now_ns + nm_session.beat_ns;
    nm_change_state(NM_EVENT_GRANTED, "");
    nm_wake(); /* a thread that waits for a stalled slot reads the slot again */
}

static void on_wait(struct nm_packet *packet, uint64_t now_ns)
{
    char reason[NM_LINE_BYTES];
    if (!is_answer_to(&packet->message, NM_ACQUIRE))
        return;
    nm_message_text(&packet->message, NM_KEY_reason, reason, sizeof reason);
    nm_keep_place(now_ns);
    nm_session.request.answered = true;
    nm_session.trying = false;
    nm_change_state(NM_EVENT_QUEUED, reason);
}

static void on_deny(struct nm_packet *packet, uint64_t now_ns)
{
    const struct nm_message *message = &packet->message;
    char code[65], reason[NM_LINE_BYTES];
    (void)now_ns;
    nm_message_text(message, NM_KEY_code, code, sizeof code);
    nm_message_text(message, NM_KEY_reason, reason, sizeof reason);
    if (is_answer_to(message, NM_ACQUIRE)) {
        nm_become_refused(reason, strcmp(code, "wait_timeout") == 0);
    } else if (is_answer_to(message, NM_REJOIN)) {
        nm_become_lost(reason);
    } else if (is_answer_to(message, NM_ASK)) {
        nm_session.question.failed = true;
        nm_copy(nm_session.question.out, nm_session.question.size, reason);
        nm_done(NM_ASK);
    } else if (is_answer_to(message, NM_CANCEL)) {
        nm_done(NM_CANCEL);
    } else if (is_answer_to(message, NM_RELEASE)) {
        nm_done(NM_RELEASE);
    }
}

/* "none": the manager knows of no lease of this process. A REJOIN names the lease, and its
   answer decides. */
static void on_fence(struct nm_packet *packet, uint64_t now_ns)
{
    char name[65], reason[NM_LINE_BYTES];
    (void)now_ns;
    if (!names_lease(&packet->message)) {
        nm_message_text(&packet->message, NM_KEY_lease, name, sizeof name);
        if (nm_session.state == NODEMGR_HELD && strcmp(name, "none") == 0 &&
            !nm_session.pending[NM_REJOIN].wanted)
            nm_want(NM_REJOIN, nm_fresh_rid());
        return;
    }
    nm_message_text(&packet->message, NM_KEY_reason, reason, sizeof reason);
    nm_become_lost(reason);
}

static void on_note(struct nm_packet *packet, uint64_t now_ns)
{
    char text[NM_LINE_BYTES];
    (void)now_ns;
    nm_message_text(&packet->message, NM_KEY_text, text, sizeof text);
    nm_say_later(text);
}

static void on_ack(struct nm_packet *packet, uint64_t now_ns)
{
    (void)now_ns;
    if (is_answer_to(&packet->message, NM_RELEASE))
        nm_done(NM_RELEASE);
    else if (is_answer_to(&packet->message, NM_CANCEL))
        nm_done(NM_CANCEL);
}

static void on_part(struct nm_packet *packet, uint64_t now_ns)
{
    const struct nm_message *message = &packet->message;
    struct nm_question *question = &nm_session.question;
    (void)now_ns;
    if (!is_answer_to(message, NM_ASK) ||
        nm_message_number(message, NM_KEY_index, UINT64_MAX) != question->next)
        return;
    char data[NM_LINE_BYTES];
    int length = nm_message_text(message, NM_KEY_data, data, sizeof data);
    if (question->length + (size_t)length >= question->size) {
        question->failed = true;
        nm_copy(question->out, question->size, NM_ANSWER_TOO_LONG);
        nm_done(NM_ASK);
        return;
    }
    if (question->fd != NULL && *question->fd < 0 && packet->fd_count > 0)
        *question->fd = packet->fds[--packet->fd_count];
    memcpy(question->out + question->length, data, (size_t)length + 1);
    question->length += (size_t)length;
    if (++question->next >= nm_message_number(message, NM_KEY_count, 0))
        nm_done(NM_ASK);
}

static void on_epoch(struct nm_packet *packet, uint64_t now_ns)
{
    struct nm_channel *channel = &nm_session.channel;
    uint64_t epoch = nm_message_number(&packet->message, NM_KEY_epoch, 0);
    (void)now_ns;
    if (!channel->udp ||
        (channel->has_epoch && channel->epoch == epoch && !nm_session.pending[NM_HELLO].wanted))
        return;
    bool restarted = channel->has_epoch && channel->epoch != epoch;
    channel->epoch = epoch;
    channel->has_epoch = true;
    nm_done(NM_HELLO);
    if (restarted)
        nm_say_all_again();
}

static void (*const handlers[NM_VERB_COUNT])(struct nm_packet *, uint64_t) = {
    [NM_VERB_GRANT] = on_grant, [NM_VERB_WAIT] = on_wait,   [NM_VERB_DENY] = on_deny,
    [NM_VERB_FENCE] = on_fence, [NM_VERB_NOTE] = on_note,   [NM_VERB_ACK] = on_ack,
    [NM_VERB_PART] = on_part,   [NM_VERB_EPOCH] = on_epoch,
};

void nm_receive_all(void)
{
    static struct nm_packet packet; /* used under the lock */
    for (unsigned i = 0; i < RECEIVE_MOST && nm_session.channel.fd >= 0; i++) {
        uint64_t now_ns = nm_now_ns();
        int result = nm_channel_receive(&nm_session.channel, &packet);
        if (result == NM_CHANNEL_LATER)
            return;
        if (result == NM_CHANNEL_LOST)
            nm_lost(strerror(errno), now_ns);
        if (result != NM_CHANNEL_OK)
            continue;
        nm_session.silent_since_ns = 0;
        nm_session.refused = nm_session.told_away = false;
        nm_session.backoff_ns = 0;
        if (handlers[packet.message.verb] != NULL) /* some verbs go to runners alone */
            handlers[packet.message.verb](&packet, now_ns);
        while (packet.fd_count > 0)
            close(packet.fds[--packet.fd_count]);
    }
}
