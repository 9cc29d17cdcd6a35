/* waiting.c: the line of a wait, where no Python writes it.
 *
 * Knows: the client's states and its line. Must not know: how they come about.
 */
#include <stdio.h>
#include <string.h>

#include "client/messages.h"
#include "client/session.h"

enum { POLL_MS = 500 }; /* the time in the line goes on */
#ifndef NM_LOG_PERIOD_S /* where stderr is a log: between two lines at least */
#define NM_LOG_PERIOD_S 60
#endif

struct elapsed { char text[32]; };

/* In the form of client_plugin/waiting.py: 0:00:05, 1:02:05. */
static struct elapsed elapsed_since(uint64_t since_ns)
{
    struct elapsed elapsed;
    unsigned long long seconds = (nm_now_ns() - since_ns) / NM_SECOND, minutes = seconds / 60;
    snprintf(elapsed.text, sizeof elapsed.text, "%llu:%02llu:%02llu", minutes / 60, minutes % 60,
             seconds % 60);
    return elapsed;
}

/* As client_plugin/waiting.py does: where a terminal is too narrow, the line stands above the clock. */
static void show_waiting(const char *line, char shown[NM_LINE_BYTES], uint64_t *shown_ns,
                         uint64_t since_ns)
{
    char clock[40];
    snprintf(clock, sizeof clock, " (%s)", elapsed_since(since_ns).text);
    bool over = nm_say_terminal(), whole = over && nm_say_fits(line, clock);
    bool due = whole || (strcmp(line, shown) != 0 &&
                         (*shown_ns == 0 || nm_now_ns() - *shown_ns >= NM_LOG_PERIOD_S * NM_SECOND));
    if (due && !whole) {
        if (over)
            nm_say_over("", "");
        nm_say("%s", line);
        *shown_ns = nm_now_ns();
    }
    if (due)
        nm_copy(shown, NM_LINE_BYTES, line);
    if (over)
        nm_say_over(whole || strcmp(line, shown) != 0 ? line : "waiting", clock);
}

int nm_client_acquire_blocking(bool (*interrupted)(void))
{
    char line[NM_LINE_BYTES], shown[NM_LINE_BYTES] = "";
    uint64_t since_ns = nm_now_ns(), shown_ns = 0; /* 0: no line yet */
    int state = nodemgr_begin(-1, -1, -1, NULL);
    for (;;) {
        state = nodemgr_poll(POLL_MS, line, sizeof line);
        nm_enter();
        bool goes_on = nm_underway();
        nm_leave();
        if (!goes_on)
            break;
        if (interrupted()) /* at each turn: a signal may come between two waits */
            nodemgr_cancel();
        else if (line[0] != '\0')
            show_waiting(line, shown, &shown_ns, since_ns);
    }
    if (shown[0] != '\0' && nm_say_terminal())
        nm_say_over("", "");
    const struct nm_lease *lease = nm_client_lease();
    if (shown[0] != '\0' && state == NODEMGR_HELD && lease != NULL)
        nm_say(NM_GRANTED_AFTER, (int)lease->gpu_count, lease->gpu_count == 1 ? "" : "s",
               elapsed_since(since_ns).text);
    if (state == NODEMGR_DENIED || state == NODEMGR_NO_MANAGER ||
        (state == NODEMGR_CPU && !nm_session.request.cpu))
        nm_say("%s", line);
    return state;
}
