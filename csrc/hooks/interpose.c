/* interpose.c: the three ways to a hook.
 *
 * 1. Symbols bound at load time: each row of hooks.def is exported by its name.
 * 2. dlsym and dlvsym are exported (linker.c). A row's name is answered with its hook, if the
 *    driver has the symbol.
 * 3. cuGetProcAddress is a row itself. The driver answers first, and its answer is replaced by the
 *    hook of that ABI. Other symbols, and another library's wrapper of that name, stay as they are.
 */
#include "hooks/interpose.h"

#include <dlfcn.h>
#include <string.h>

#include "client/client.h"
#include "hooks/linker.h"

/* -- the table -- */

struct row {
    const char *name, *base;
    uint32_t name_length, base_length;
    void *hook, *plain, *exported; /* plain: in a process whose launches pass no gate; NULL: hook */
    int since;
    enum nm_stream stream;
    enum nm_library library;
};

/* nm_way_NAME: the hook, nm_plain_NAME: the driver's function, each behind its way (`away`). The
   rare part has a function of its own, so that the usual one is a look and a jump. */
#define NM_RARE static __attribute__((noinline, cold)) int
#define NM_WAY_BACK(way, call, name, types)                                              \
    NM_RARE way##name##_rare(NM_PARAMETERS(types))                                       \
    {                                                                                    \
        int result = nm_away_back();                                                     \
        return result != NM_CUDA_SUCCESS ? result : call##name(NM_ARGUMENTS(types));     \
    }                                                                                    \
    NM_WAY(way, call, name, types)
#define NM_WAY(way, call, name, types)                                                    \
    static int way##name(NM_PARAMETERS(types))                                           \
    {                                                                                    \
        return __builtin_expect(nm_is_away(), 0) ? way##name##_rare(NM_ARGUMENTS(types)) \
                                                 : call##name(NM_ARGUMENTS(types));      \
    }
#define NM_WAY_DONE(way, call, name, types)                                              \
    NM_RARE way##name##_rare(NM_PARAMETERS(types))                                       \
    {                                                                                    \
        int result;                                                                      \
        return nm_away_done(&result) ? result : call##name(NM_ARGUMENTS(types));         \
    }                                                                                    \
    NM_WAY(way, call, name, types)
#define NM_WAY_LATER(way, call, name, types)                                             \
    static int way##name##_later(const uint64_t *words)                                  \
    {                                                                                    \
        return call##name(NM_FROM_WORDS(types));                                         \
    }                                                                                    \
    NM_RARE way##name##_rare(NM_PARAMETERS(types))                                       \
    {                                                                                    \
        const uint64_t words[NM_LATER_WORDS] = {NM_TO_WORDS(types)};                     \
        return nm_away_later(way##name##_later, words) ? NM_CUDA_SUCCESS                 \
                                                       : call##name(NM_ARGUMENTS(types)); \
    }                                                                                    \
    NM_WAY(way, call, name, types)
#define NM_WAY_THROUGH(way, call, name, types)   \
    static int way##name(NM_PARAMETERS(types))   \
    {                                            \
        return call##name(NM_ARGUMENTS(types));  \
    }
#define NM_WAY_LEDGER NM_WAY_THROUGH

/* Integers and pointers, as words and back. */
#define NM_TO_WORDS(tuple) NM_TO_WORDS_I tuple
#define NM_TO_WORDS_I(count, ...) NM_TO_WORDS_##count
#define NM_TO_WORDS_1 (uint64_t)(uintptr_t)a
#define NM_TO_WORDS_2 NM_TO_WORDS_1, (uint64_t)(uintptr_t)b
#define NM_TO_WORDS_4 NM_TO_WORDS_2, (uint64_t)(uintptr_t)c, (uint64_t)(uintptr_t)d
#define NM_FROM_WORDS(tuple) NM_FROM_WORDS_I tuple
#define NM_FROM_WORDS_I(count, ...) NM_FROM_WORDS_##count(__VA_ARGS__)
#define NM_FROM_WORDS_1(A) (A)(uintptr_t)words[0]
#define NM_FROM_WORDS_2(A, B) NM_FROM_WORDS_1(A), (B)(uintptr_t)words[1]
#define NM_FROM_WORDS_4(A, B, C, D) \
    NM_FROM_WORDS_2(A, B), (C)(uintptr_t)words[2], (D)(uintptr_t)words[3]

#define NM_HOOK(library, name, base, since, stream, away, types) \
    NM_WAY_##away(nm_way_, nm_hook_, name, types)                \
    NM_API int name(NM_PARAMETERS(types));                       \
    int name(NM_PARAMETERS(types))                               \
    {                                                            \
        return nm_way_##name(NM_ARGUMENTS(types));               \
    }
#include "hooks/hooks.def"

#define NM_HOOK(library, name, base, since, stream, away, types)
#define NM_LAUNCH(library, name, base, since, stream, away, types)                           \
    static inline int nm_known_##name(NM_PARAMETERS(types)) /* it was given out */           \
    {                                                                                        \
        void *known = atomic_load_explicit(&nm_originals[NM_SYMBOL_##name],                  \
                                           memory_order_relaxed);                            \
        return ((nm_type_##name *)known)(NM_ARGUMENTS(types));                               \
    }                                                                                        \
    NM_WAY_##away(nm_plain_, nm_known_, name, types)
#include "hooks/hooks.def"

static const struct row rows[NM_HOOK_COUNT] = {
#define NM_HOOK(library, name, base, since, stream, away, types)                            \
    {#name, #base, sizeof #name - 1, sizeof #base - 1, (void *)nm_way_##name, NULL,         \
     (void *)name, since, NM_STREAM_##stream, NM_LIBRARY_##library},
#define NM_LAUNCH(library, name, base, since, stream, away, types)                          \
    {#name, #base, sizeof #name - 1, sizeof #base - 1, (void *)nm_way_##name,               \
     (void *)nm_plain_##name, (void *)name, since, NM_STREAM_##stream, NM_LIBRARY_##library},
#include "hooks/hooks.def"
};

static const struct {
    const char *name;
    enum nm_library library;
} symbols[NM_SYMBOL_COUNT] = {
#define NM_HOOK(library, name, base, since, stream, away, types) {#name, NM_LIBRARY_##library},
#include "hooks/hooks.def"
#define NM_CALL(library, name, types) {#name, NM_LIBRARY_##library},
#include "hooks/hooks.def"
};

void *_Atomic nm_originals[NM_SYMBOL_COUNT];

/* Without strlen and memcmp, as linker.c: a sanitizer may call dlsym before its own functions
   work. */
static uint32_t length_of(const char *text)
{
    uint32_t length = 0;
    while (text[length] != '\0') {
        length++;
        __asm__("" : "+r"(length)); /* keeps the compiler from making it a strlen */
    }
    return length;
}

/* From the end, where the names differ. */
static bool is_text(const char *text, uint32_t length, const char *candidate,
                    uint32_t candidate_length)
{
    if (length != candidate_length)
        return false;
    while (length > 0 && text[length - 1] == candidate[length - 1])
        length--;
    return length == 0;
}

static bool may_be_hooked(const char *name)
{
    return (name[0] == 'c' && name[1] == 'u') ||
           (name[0] == 'n' && name[1] == 'v' && name[2] == 'm' && name[3] == 'l');
}

/* Exact names only: a prefix would match curl_easy_init. */
static const struct row *find_name(const char *name)
{
    if (name == NULL || !may_be_hooked(name))
        return NULL;
    uint32_t length = length_of(name);
    for (const struct row *row = rows; row < rows + NM_HOOK_COUNT; row++)
        if (is_text(name, length, row->name, row->name_length))
            return row;
    return NULL;
}

bool nm_is_managed(void)
{
    static _Atomic bool managed;
    if (!atomic_load_explicit(&managed, memory_order_relaxed))
        atomic_store_explicit(&managed, nodemgr_managed() == 1, memory_order_relaxed);
    return atomic_load_explicit(&managed, memory_order_relaxed);
}

/* The row's function in this process; NULL: it keeps the driver's own. */
static void *hook_of(const struct row *row)
{
    if (!nm_is_managed())
        return NULL;
    return row->plain != NULL && !nm_client_gated() ? row->plain : row->hook;
}

int nodemgr_preloaded(void)
{
    /* in the program's scope: with -Bsymbolic the library's own scope begins with itself */
    void *program = nm_linker()->dlopen(NULL, RTLD_LAZY);
    return program != NULL && nm_linker()->dlsym(program, "dlsym") == (void *)nm_our_dlsym;
}

/* -- the driver -- */

static const char *const library_names[NM_LIBRARY_COUNT] = {"libcuda.so.1", "libnvidia-ml.so.1"};
static void *_Atomic library_handles[NM_LIBRARY_COUNT];

/* A handle of the library if this process has loaded it, else NULL. Never loads it. */
static void *library_handle(enum nm_library library, const char *file)
{
    void *known = atomic_load(&library_handles[library]);
    if (known != NULL)
        return known;
    void *handle =
        nm_linker()->dlopen(file != NULL ? file : library_names[library], RTLD_LAZY | RTLD_NOLOAD);
    if (handle != NULL &&
        !atomic_compare_exchange_strong(&library_handles[library], &known, handle))
        return known; /* the same library: one reference too many, which stays */
    return handle;
}

/* libcuda.so.1, libcuda.so, libcuda.so.550.54: the file of `address`; NULL if it is another. */
static const char *driver_file(void *address, enum nm_library library)
{
    Dl_info info = {0};
    if (nm_linker()->dladdr(address, &info) == 0 || info.dli_fname == NULL)
        return NULL;
    const char *slash = strrchr(info.dli_fname, '/');
    size_t stem = strlen(library_names[library]) - 2; /* without ".1" */
    return strncmp(slash != NULL ? slash + 1 : info.dli_fname, library_names[library], stem) == 0
               ? info.dli_fname
               : NULL;
}

void *nm_original_look_up(enum nm_symbol symbol)
{
    void *handle = library_handle(symbols[symbol].library, NULL);
    if (handle == NULL)
        return NULL;
    void *found = nm_linker()->dlsym(handle, symbols[symbol].name), *known = NULL;
    if (found == NULL) {
        nm_linker()->dlerror(); /* this library's error, not the program's */
        return NULL;
    }
    atomic_compare_exchange_strong(&nm_originals[symbol], &known, found);
    return known != NULL ? known : found;
}

/* dlsym has found `found` for a row. True: return the hook in its place. False: it is in another
 * copy of the driver than the one that the hooks call, and stays as it is. The comparison is
 * with dlsym's answer for the known copy, since cuGetProcAddress may give another address of the
 * same function. */
static bool is_original(const struct row *row, void *found)
{
    void *handle = library_handle(row->library, NULL), *known = NULL;
    void *there = handle != NULL ? nm_linker()->dlsym(handle, row->name) : NULL;
    if (there == NULL)
        nm_linker()->dlerror(); /* this library's error, not the program's */
    if (there != found)
        return false;
    atomic_compare_exchange_strong(&nm_originals[row - rows], &known, found);
    return true;
}

/* -- dlsym and dlvsym -- */

/* The answer without this library: another definition, or NULL with its dlerror. Not a tail
   call: RTLD_NEXT must mean after this library. */
static void *next_after_us(const char *name)
{
    void *volatile found = nm_linker()->dlsym(RTLD_NEXT, name);
    return found;
}

/* The search has found this library's export. The driver decides whether the symbol exists. */
static void *answer_for_export(const struct row *row)
{
    void *original = nm_original((enum nm_symbol)(row - rows));
    if (original == NULL)
        return next_after_us(row->name);
    void *hook = hook_of(row);
    return hook != NULL ? hook : original;
}

static void *answer(const struct row *row, void *found)
{
    if (found == NULL)
        return NULL; /* the handle lacks it, and dlerror is set */
    if (found == row->exported)
        return answer_for_export(row);
    void *hook = hook_of(row);
    if (hook == NULL || atomic_load(&nm_originals[row - rows]) == found)
        return hook != NULL ? hook : found;
    const char *file = driver_file(found, row->library);
    if (file == NULL)
        return found;
    library_handle(row->library, file);
    return is_original(row, found) ? hook : found;
}

static void *hooked_dlsym(void *handle, const char *name)
{
    const struct row *row = find_name(name);
    return answer(row, nm_linker()->dlsym(handle, name));
}

static void *hooked_dlvsym(void *handle, const char *name, const char *version)
{
    const struct row *row = find_name(name);
    return answer(row, nm_linker()->dlvsym(handle, name, version));
}

/* RTLD_NEXT depends on the caller: the real function must see the caller's return address. Only
 * without a driver, when this library's export is all that could be found, is the search made
 * here. */
static bool is_ours(const struct row *row, const void *handle)
{
    return row != NULL && (handle != RTLD_NEXT || library_handle(row->library, NULL) == NULL);
}

nm_dlsym_function *nm_route_dlsym(void *handle, const char *name)
{
    return is_ours(find_name(name), handle) ? hooked_dlsym : nm_linker()->dlsym;
}

nm_dlvsym_function *nm_route_dlvsym(void *handle, const char *name, const char *version)
{
    (void)version;
    return is_ours(find_name(name), handle) ? hooked_dlvsym : nm_linker()->dlvsym;
}

/* -- cuGetProcAddress -- */

enum { PER_THREAD_FLAG = NM_CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM };
enum { KNOWN_CUDA_VERSION = 13050 }; /* of the headers behind hooks.def */

static int driver_version(void)
{
    static _Atomic int known;
    int version = atomic_load(&known);
    if (version == 0 && nm_real_cuDriverGetVersion(&version) == NM_CUDA_SUCCESS)
        atomic_store(&known, version);
    return version;
}

/* Of the rows of `base`: the newest ABI up to `version`, for the stream kind of the flags if
   there is one. */
static const struct row *row_for(const char *base, int version, uint64_t flags)
{
    const struct row *best = NULL;
    enum nm_stream wanted = (flags & PER_THREAD_FLAG) != 0 ? NM_STREAM_PER_THREAD : NM_STREAM_ANY;
    uint32_t length = length_of(base);
    for (const struct row *row = rows; row < rows + NM_HOOK_COUNT; row++) {
        if (!is_text(base, length, row->base, row->base_length) || row->library != NM_LIBRARY_CUDA)
            continue;
        if (row->since > version || (row->stream != NM_STREAM_ANY && row->stream != wanted))
            continue;
        if (best == NULL ||
            (row->stream == best->stream ? row->since > best->since : row->stream == wanted))
            best = row;
    }
    return best;
}

/* The row by its export's name (cuMemAlloc_v2), if the driver answers that name. */
static const struct row *row_for_export(const char *name)
{
    const struct row *row = find_name(name);
    return row != NULL && row->library == NM_LIBRARY_CUDA ? row : NULL;
}

/* A newer version than the table's may have a newer ABI: then the driver's answer differs from
   its answer for the newest version of the table. */
static bool is_known_abi(const char *symbol, void *found, int version, uint64_t flags)
{
    if (version <= KNOWN_CUDA_VERSION)
        return true;
    void *known = NULL;
    int status = 0;
    if (nm_real_cuGetProcAddress_v2(symbol, &known, KNOWN_CUDA_VERSION, flags, &status) !=
        NM_CUDA_SUCCESS)
        return false;
    return known == found;
}

/* The answer in place of the driver's own. */
static void *swapped(const char *symbol, void *found, int version, uint64_t flags)
{
    int newest = driver_version();
    if (newest != 0 && (version < 0 || newest < version))
        version = newest; /* the driver answers with its newest */
    const struct row *row = row_for(symbol, version, flags);
    if (row == NULL)
        row = row_for_export(symbol);
    void *hook = row != NULL ? hook_of(row) : NULL;
    if (hook == NULL || !is_known_abi(symbol, found, version, flags))
        return found;
    /* not compared: a driver may answer here with another address than dlsym for the same
       function */
    void *known = NULL;
    atomic_compare_exchange_strong(&nm_originals[row - rows], &known, found);
    return hook;
}

static int answer_get(int result, const char *symbol, void **found, int version, uint64_t flags)
{
    if (result == NM_CUDA_SUCCESS && symbol != NULL && found != NULL && *found != NULL)
        *found = swapped(symbol, *found, version, flags);
    return result;
}

int nm_hook_cuGetProcAddress(const char *symbol, void **found, int version, uint64_t flags)
{
    return answer_get(nm_real_cuGetProcAddress(symbol, found, version, flags), symbol, found,
                      version, flags);
}

int nm_hook_cuGetProcAddress_v2(const char *symbol, void **found, int version, uint64_t flags,
                                int *status)
{
    return answer_get(nm_real_cuGetProcAddress_v2(symbol, found, version, flags, status), symbol,
                      found, version, flags);
}
