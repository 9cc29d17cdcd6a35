/* interpose.h: the hooked symbols as C: their numbers, their originals, and how to call one.
 *
 * Knows: hooks.def, the three ways to a hook (load time, dlsym, cuGetProcAddress). Must not know:
 * the hooks' work.
 */
#ifndef NM_INTERPOSE_H
#define NM_INTERPOSE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/abi.h"
#include "client/client.h"

enum nm_library { NM_LIBRARY_CUDA, NM_LIBRARY_NVML, NM_LIBRARY_COUNT };
enum nm_stream { NM_STREAM_ANY, NM_STREAM_PER_THREAD };

/* The result of a symbol without a driver behind it (a weak reference that the library's export
   made non-zero). */
enum { NM_ABSENT_CUDA = NM_CUDA_ERROR_NO_DEVICE, NM_ABSENT_NVML = NM_NVML_ERROR_LIBRARY_NOT_FOUND };

/* (2, T, U) as `T a, U b`, as `T, U`, and as `a, b`. */
#define NM_PARAMETERS(tuple) NM_PARAMETERS_I tuple
#define NM_PARAMETERS_I(count, ...) NM_PARAMETERS_##count(__VA_ARGS__)
#define NM_PARAMETERS_0(...) void
#define NM_PARAMETERS_1(A) A a
#define NM_PARAMETERS_2(A, B) A a, B b
#define NM_PARAMETERS_3(A, B, C) A a, B b, C c
#define NM_PARAMETERS_4(A, B, C, D) A a, B b, C c, D d
#define NM_PARAMETERS_5(A, B, C, D, E) A a, B b, C c, D d, E e
#define NM_PARAMETERS_6(A, B, C, D, E, F) A a, B b, C c, D d, E e, F f
#define NM_PARAMETERS_7(A, B, C, D, E, F, G) A a, B b, C c, D d, E e, F f, G g
#define NM_PARAMETERS_8(A, B, C, D, E, F, G, H) A a, B b, C c, D d, E e, F f, G g, H h
#define NM_PARAMETERS_9(A, B, C, D, E, F, G, H, I) A a, B b, C c, D d, E e, F f, G g, H h, I i
#define NM_PARAMETERS_10(A, B, C, D, E, F, G, H, I, J) \
    A a, B b, C c, D d, E e, F f, G g, H h, I i, J j
#define NM_PARAMETERS_11(A, B, C, D, E, F, G, H, I, J, K) \
    A a, B b, C c, D d, E e, F f, G g, H h, I i, J j, K k
#define NM_ARGUMENTS(tuple) NM_ARGUMENTS_I tuple
#define NM_ARGUMENTS_I(count, ...) NM_ARGUMENTS_##count
#define NM_ARGUMENTS_0
#define NM_ARGUMENTS_1 a
#define NM_ARGUMENTS_2 a, b
#define NM_ARGUMENTS_3 a, b, c
#define NM_ARGUMENTS_4 a, b, c, d
#define NM_ARGUMENTS_5 a, b, c, d, e
#define NM_ARGUMENTS_6 a, b, c, d, e, f
#define NM_ARGUMENTS_7 a, b, c, d, e, f, g
#define NM_ARGUMENTS_8 a, b, c, d, e, f, g, h
#define NM_ARGUMENTS_9 a, b, c, d, e, f, g, h, i
#define NM_ARGUMENTS_10 a, b, c, d, e, f, g, h, i, j
#define NM_ARGUMENTS_11 a, b, c, d, e, f, g, h, i, j, k

/* The number of each symbol: the hooked ones first. */
enum nm_symbol {
#define NM_HOOK(library, name, base, since, stream, away, types) NM_SYMBOL_##name,
#include "hooks/hooks.def"
    NM_HOOK_COUNT,
    NM_SYMBOL_LAST_HOOK = NM_HOOK_COUNT - 1,
#define NM_CALL(library, name, types) NM_SYMBOL_##name,
#include "hooks/hooks.def"
    NM_SYMBOL_COUNT
};

/* The driver's own functions; NULL until one is looked up. */
extern void *_Atomic nm_originals[NM_SYMBOL_COUNT];

/* Searches the loaded driver; NULL if none is loaded or it lacks the symbol. */
void *nm_original_look_up(enum nm_symbol symbol);

static inline void *nm_original(enum nm_symbol symbol)
{
    void *known = atomic_load_explicit(&nm_originals[symbol], memory_order_acquire);
    return known != NULL ? known : nm_original_look_up(symbol);
}

/* nm_type_NAME: the function's type. nm_real_NAME(...): the original's result, or NM_ABSENT_... */
#define NM_REAL(library, name, types)                                                    \
    typedef int nm_type_##name(NM_PARAMETERS(types));                                    \
    static inline int nm_real_##name(NM_PARAMETERS(types))                               \
    {                                                                                    \
        nm_type_##name *original = (nm_type_##name *)nm_original(NM_SYMBOL_##name);      \
        return original != NULL ? original(NM_ARGUMENTS(types)) : NM_ABSENT_##library;   \
    }
#define NM_HOOK(library, name, base, since, stream, away, types) \
    NM_REAL(library, name, types)                                \
    nm_type_##name nm_hook_##name;
#define NM_CALL(library, name, types) NM_REAL(library, name, types)
#include "hooks/hooks.def"
#undef NM_REAL

/* -- while the memory of the process is away (hooks.def; launch/suspended_calls.c has these) -- */

NM_LOCAL extern _Atomic size_t nm_away_count; /* of calls that were put off */
/* Whether a call must be told apart: it waits, is put off, or comes after calls that were. */
static inline __attribute__((always_inline)) bool nm_is_away(void)
{
    return nm_hold() != NM_NOT_HELD ||
           atomic_load_explicit(&nm_away_count, memory_order_relaxed) != 0;
}

enum { NM_LATER_WORDS = 4 };
typedef int nm_later_call(const uint64_t words[NM_LATER_WORDS]);

/* BACK: asks for the memory and waits for it, and does what was put off. CUDA_SUCCESS, or the error
   with which the caller ends, after Ctrl-C. */
int nm_away_back(void);
/* DONE: true if the caller ends with *result, because nothing is left to wait for. */
bool nm_away_done(int *result);
/* LATER: true if the call is put off. */
bool nm_away_later(nm_later_call *call, const uint64_t words[NM_LATER_WORDS]);

/* Whether the manager serves this process. False: each hook calls the original, and nothing new
   is hooked. Once true it stays true. */
bool nm_is_managed(void);

#endif
