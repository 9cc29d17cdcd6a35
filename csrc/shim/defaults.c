/* defaults.c: the defaults that the library gives to a sanitizer's runtime.
 *
 * Knows: AddressSanitizer's hook. No header is included: the library for 32-bit programs is made of
 * this file alone, and a compiler may have no 32-bit libc.
 */

/* AddressSanitizer's shared runtime ends a program in which it is not the first library, as
 * beside any preloaded object. It asks this function for its defaults. The program's own
 * function of that name comes first, and the variable ASAN_OPTIONS overrides both. */
__attribute__((visibility("default"))) const char *__asan_default_options(void);
const char *__asan_default_options(void)
{
    return "verify_asan_link_order=0";
}
