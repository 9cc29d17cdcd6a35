/* states.c: the session's states for test_states.py: any state, then one event. */
#include "client/session.h"

int states_after(int state, int event);
int states_after(int state, int event)
{
    nm_session.state = (enum nodemgr_state)state;
    nm_change_state((enum nm_event)event, "a line");
    return (int)nm_session.state;
}

int states_said(void);
int states_said(void)
{
    return (int)nm_session.sayings;
}
