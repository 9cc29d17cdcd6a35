/* old_libc.h: names of libc that older glibcs have, too. The build includes it before each source.
 *
 * From glibc 2.38 on, <stdlib.h> gives strtol and its like (and scanf) names of C23, which no older
 * one has. The objects load into older images, and read no binary literals.
 *
 * Knows: macros of glibc's headers. Must not know: our own sources.
 */
#ifndef NM_OLD_LIBC_H
#define NM_OLD_LIBC_H

#include <features.h>

#undef __GLIBC_USE_C2X_STRTOL
#undef __GLIBC_USE_C23_STRTOL
#define __GLIBC_USE_C2X_STRTOL 0
#define __GLIBC_USE_C23_STRTOL 0

#endif
