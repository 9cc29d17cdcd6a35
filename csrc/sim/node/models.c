/* models.c: see models.h. */
#include "sim/node/models.h"

#include <stddef.h>

#define X(...) {__VA_ARGS__},
static const nm_sim_model models[] = {
#include "sim/node/models.def"
};
#undef X

const nm_sim_model *nm_sim_model_at(uint32_t index) {
    return index < sizeof models / sizeof *models ? &models[index] : NULL;
}
