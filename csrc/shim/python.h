/* python.h: the few questions that a C library in a Python process has to ask the interpreter.
 *
 * Knows: names of Python's C API, looked up in the process: nothing is linked, and where there is
 * no Python each answer is no.
 * Must not know: the client, CUDA.
 */
#ifndef NM_PYTHON_H
#define NM_PYTHON_H

#include <stdbool.h>
#include <stddef.h>

/* Does Python know the calling thread? Only such a one may wait for the GIL: on another, a
 * Python that joins this thread with the GIL held would deadlock. */
bool nm_python_thread(void);

/* A signal has come while the calling thread waited in C: Python's own handlers run now, as they
 * would between two of its instructions. True: one of them raised. Then that is put back as an
 * interrupt, to be raised when C returns to Python, and the wait is to end. False on every
 * thread but Python's main one, where handlers do not run. */
bool nm_python_interrupted(void);

/* os.environ, which Python fills at its start, takes over each of the names as it stands in the
 * C environment, without setenv. Done on Python's main thread alone (elsewhere there may be a
 * subinterpreter, whose GIL is not to be had so), and where os.environ is Python's own; else it
 * stays as it is. */
void nm_python_follow(const char *const *names, size_t count);

#endif
