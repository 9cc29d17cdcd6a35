/* defaults.c: what the library says to a sanitizer's runtime.
 *
 * Knows: AddressSanitizer's hook. Must not know: anything else; the library for 32-bit programs is
 * made of this file alone, without any header, since a compiler may have no 32-bit libc.
 */

/* A shared runtime ends a program in which it is not the first library, as it is not beside any
 * preloaded object. It asks this function for its defaults; the program's own function of that
 * name comes first, and the variable ASAN_OPTIONS overrides both. */
__attribute__((visibility("default"))) const char *__asan_default_options(void);
const char *__asan_default_options(void)
{
    return "verify_asan_link_order=0";
}
