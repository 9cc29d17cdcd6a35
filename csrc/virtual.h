/* virtual.h: memory of cuMemCreate. See virtual.c. */
#ifndef NM_VIRTUAL_H
#define NM_VIRTUAL_H

/* In a forked child, before it has threads. */
void nm_virtual_forget(void);

#endif
