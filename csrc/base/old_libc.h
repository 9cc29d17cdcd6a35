/* old_libc.h: included before all else in every source, by the build.
 *
 * From glibc 2.38 on, <stdlib.h> gives strtol and its like (and scanf) names of C23, which no older
 * glibc has. What is built here loads into older images, and reads no binary literals. */
#ifndef NM_OLD_LIBC_H
#define NM_OLD_LIBC_H

#include <features.h>

#undef __GLIBC_USE_C2X_STRTOL
#undef __GLIBC_USE_C23_STRTOL
#define __GLIBC_USE_C2X_STRTOL 0
#define __GLIBC_USE_C23_STRTOL 0

#endif
