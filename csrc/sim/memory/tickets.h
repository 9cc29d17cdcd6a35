/* tickets.h: 64 bytes that name an allocation and its owner's life, passed from one process to
 * another: an IPC handle, an exported pointer, or the packet in an exported descriptor.
 *
 * Knows: slots and their lives. Must not know: the use of the memory. An importer is charged
 * nothing.
 */
#ifndef NM_SIM_TICKETS_H
#define NM_SIM_TICKETS_H

#include "sim/driver/driver.h"

typedef enum {
    NM_TICKET_IPC_MEMORY = 1,
    NM_TICKET_POOL,
    NM_TICKET_POOL_POINTER,
    NM_TICKET_PHYSICAL,
    NM_TICKET_EVENT,
    NM_TICKET_DMA_BUF,
} nm_ticket_use;

typedef struct {
    char magic[4];
    uint32_t use;
    uint32_t slot;
    int32_t device;
    uint64_t life;
    uint64_t address;
    uint64_t bytes;
    unsigned char node[16]; /* the first device's UUID: a ticket of another node is void */
    char padding[8];
} nm_ticket;
_Static_assert(sizeof(nm_ticket) == 64, "as long as the handles it travels in");

nm_ticket nm_ticket_new(nm_ticket_use use, int device, uint64_t address, uint64_t bytes);
/* True while the process that made it lives; `foreign`: and is not this one. */
bool nm_ticket_valid(const nm_ticket *ticket, nm_ticket_use use, bool foreign);

/* The ticket in a descriptor that exports.h made. */
bool nm_ticket_import(nm_ticket *ticket, nm_ticket_use use, int descriptor);

/* An address in this process for another's memory, freed with `context` or by a close. `owner`
   is the imported pool, or NULL. 0 if no addresses are left. */
uint64_t nm_import(nm_context *context, int device, uint64_t bytes, void *owner);

#endif
