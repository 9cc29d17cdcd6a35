/* prim.h: all calls of the operating system that have a trap in them.
 *
 * Knows: Linux system calls, glibc's symbol versions, the process's environment and descriptors.
 * Must not know: the wire, the ledger, leases.
 *
 * All of it may run in a user's process: no function exits, aborts, blocks without a limit, changes
 * a signal handler, or leaves a descriptor on 0, 1 or 2. Only nm_env_publish needs malloc.
 */
#ifndef NM_PRIM_H
#define NM_PRIM_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Old glibc versions of symbols that newer ones re-versioned, so that the object loads in old
   images (2.17). */
#if defined(__x86_64__)
#define NM_GLIBC_BASE "GLIBC_2.2.5"
#elif defined(__aarch64__)
#define NM_GLIBC_BASE "GLIBC_2.17"
#endif
#ifdef NM_OLD_GLIBC /* defined for the preloadable object alone */
#define NM_OLD_SYMBOL(name) __asm__(".symver " #name "," #name "@" NM_GLIBC_BASE)
NM_OLD_SYMBOL(dlsym);
NM_OLD_SYMBOL(dlvsym);
NM_OLD_SYMBOL(dladdr);
NM_OLD_SYMBOL(dlopen);
NM_OLD_SYMBOL(pthread_create);
NM_OLD_SYMBOL(pthread_sigmask);
NM_OLD_SYMBOL(pthread_attr_setstacksize);
NM_OLD_SYMBOL(pthread_once);
NM_OLD_SYMBOL(pthread_key_create);
NM_OLD_SYMBOL(pthread_getspecific);
NM_OLD_SYMBOL(pthread_setspecific);
NM_OLD_SYMBOL(pthread_mutex_trylock);
NM_OLD_SYMBOL(pthread_detach);
NM_OLD_SYMBOL(pthread_join);
NM_OLD_SYMBOL(pthread_testcancel);
#endif

#define NM_API __attribute__((visibility("default")))
#define NM_LOCAL \
    __attribute__((visibility( \
        "hidden"))) /* a variable that is read at every call: without an indirection by the GOT */

/* -- time and chance -- */
/* CLOCK_MONOTONIC: independent of the wall clock */
uint64_t nm_now_ns(void);
uint64_t nm_random(void);                       /* 64 random bits (getrandom; never blocks) */
/* sleeps at most that long; a signal ends it early */
void nm_pause_ns(uint64_t duration_ns);
/* The same, and the kernel may not put the end off to join timers (50 us by default). */
void nm_nap_ns(uint64_t duration_ns);

/* -- waiting for a word to change (futex, private to the process) -- */
/* false: a signal came */
bool nm_word_wait(_Atomic uint32_t *word, uint32_t seen, uint64_t timeout_ns);
void nm_word_wake(_Atomic uint32_t *word);      /* wakes all */
/* The same for a word in memory that processes share. */
bool nm_shared_word_wait(_Atomic uint32_t *word, uint32_t seen, uint64_t timeout_ns);
void nm_shared_word_wake(_Atomic uint32_t *word);

/* -- a lock that a forked child may simply reset (it is one word) -- */
struct nm_lock { _Atomic uint32_t word; };
void nm_lock(struct nm_lock *lock);
/* for callers that cannot know its holder (exit) */
bool nm_lock_within(struct nm_lock *lock, uint64_t timeout_ns);
void nm_unlock(struct nm_lock *lock);

/* -- processes -- */
/* one word, which the kernel empties in a child; NULL: it cannot */
NM_LOCAL extern _Atomic(_Atomic uint32_t *) nm_birth_page;
bool nm_forked_by_pid(void);                    /* the same by getpid */
uint32_t nm_pid(void);                          /* getpid by system call: never a cached value */
bool nm_is_secure(void);                        /* AT_SECURE: a setuid program */
/* True in a child (fork or raw clone) of the process that called nm_fork_mark: one memory read
 * where the kernel has MADV_WIPEONFORK, else getpid. */
static inline bool nm_forked(void)
{
    _Atomic uint32_t *page = atomic_load_explicit(&nm_birth_page, memory_order_acquire);
    return page != NULL ? atomic_load_explicit(page, memory_order_relaxed) == 0
                        : nm_forked_by_pid();
}
void nm_fork_mark(void);                        /* this process is the parent from now on */
/* All signals blocked; 0 or errno. The stack is small unless `least_stack_bytes` asks for more. The
   body's last call is nm_thread_end. */
int nm_thread_start(void *(*body)(void *), size_t least_stack_bytes);
/* A thread's view of the program's own threads: zero at first. */
struct nm_thread {
    bool last;            /* the main thread has ended, and only this thread is left */
    bool outlived;        /* the main thread was not the last of the program */
    uint64_t main_status; /* in wait's form */
};
void nm_thread_look(struct nm_thread *thread); /* one memory read while the main thread lives */
/* if it is the last thread, ends the process as without it */
void nm_thread_end(const struct nm_thread *thread);
/* Ends quietly a thread beside which another one of this library lives: that one will end the
   process. False: there is none, and the thread calls nm_thread_end. */
bool nm_thread_leave(void);

/* -- descriptors -- */
struct nm_file_id { uint64_t device, inode; };
/* moves fd to a number >= 40 if possible, never 0..2; -1: it is closed, errno */
int nm_fd_high(int fd);
bool nm_fd_id(int fd, struct nm_file_id *id);
/* still the same file? (programs close descriptors that they do not know) */
bool nm_fd_is(int fd, const struct nm_file_id *id);
int64_t nm_fd_size(int fd);                     /* bytes, or -1 */
/* sealable memfd, close-on-exec, high number; -1: errno */
int nm_memfd(const char *name);
/* whole small file, NUL-terminated, cut at size-1; length or -1 */
int64_t nm_file_read(const char *path, char *out, size_t size);

/* -- environment -- */
const char *nm_env_get(const char *name);       /* pointer into the environment, or NULL */
/* Sets a variable; value NULL removes it. Returns 0 or errno. Publishes a new array: the old one
   and its strings stay valid for threads that read them, so each call leaks a little. */
int nm_env_publish(const char *name, const char *value);

/* -- numbers and text -- */
/* decimal digits only, no overflow, not empty */
bool nm_number(const char *text, size_t length, uint64_t *out);
/* NUL-terminated, cut; returns the length copied */
size_t nm_copy(char *out, size_t size, const char *text);
/* control bytes (C0, DEL, C1 in UTF-8) become '?': a reason may quote another user */
void nm_printable(char *text);

/* -- messages for the user -- */
/* at the start of the process: notes which file its stderr is, or that there is none. Later calls
   do nothing */
void nm_say_prepare(void);
bool nm_say_is_stderr(void);         /* is number 2 still that file? Nothing is written elsewhere */
void nm_say_adopt(void);             /* the file that number 2 is now becomes the stderr */
/* "nodemgr: ...\n" on stderr, one write, made printable */
void nm_say(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* On a terminal: one line that the next call overwrites; "" ends it. Of a text too long for it
   the end is cut, never the tail (ASCII). */
void nm_say_over(const char *text, const char *tail);
bool nm_say_fits(const char *text, const char *tail); /* does it cut nothing? */
bool nm_say_terminal(void); /* is stderr a terminal, and no shell reads it meanwhile? */

#endif
