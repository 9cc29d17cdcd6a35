/* python.h: the questions of a C library to the Python interpreter of its process.
 *
 * Knows: names of Python's C API, looked up in the process. Nothing is linked; without Python each
 * answer is no.
 * Must not know: the client, CUDA.
 */
#ifndef NM_PYTHON_H
#define NM_PYTHON_H

#include <stdbool.h>
#include <stddef.h>

#include "base/prim.h"
#include "launch/launch.h"

/* Whether Python knows the calling thread. Only such a thread may wait for the GIL: a Python
   that joins another thread with the GIL held would deadlock. */
bool nm_python_thread(void);

/* Run Python's signal handlers if a signal came while the calling thread waited in C, as between
 * two of its instructions. True: a handler raised, and the wait must end. Its exception goes to
 * the function of nodemgr_set_raiser; without one it is raised when C returns to Python. False on
 * all threads but Python's main one, where handlers do not run. */
bool nm_python_interrupted(void);

/* The same for a wait in the launch gate, in each thread that Python knows. Beside the main thread it
 * is also true after Ctrl-C where the main thread does not run Python's handlers meanwhile, because
 * it waits in C, and Ctrl-C raises KeyboardInterrupt: this is raised when the main thread is back. */
bool nm_python_ends_wait(struct nm_interrupt *interrupt);

/* `raiser` gets an exception that may not cross the caller's C code. It is called with the GIL. */
NM_API void nodemgr_set_raiser(void (*raiser)(void *exception));

/* `checker` takes the place of Python's C API, which PyPy lacks: called without the GIL, it
 * runs Python's signal handlers on the main thread, and os.environ follows a grant. Not 0: a handler
 * raised, and the checker keeps what it was. */
NM_API void nodemgr_set_checker(int (*checker)(void));

/* Copy the names from the C environment into os.environ, which Python fills at its start,
 * without setenv. On another thread, which may be in a subinterpreter with a GIL of its own, the main
 * thread does it at its next chance. Only if os.environ is Python's own. `names` is kept. */
void nm_python_follow(const char *const *names, size_t count);

/* Releases the GIL if the calling thread holds it: other threads run during a long wait. NULL: it
   does not hold it. */
void *nm_python_leave(void);
void nm_python_enter_again(void *left);

#endif
