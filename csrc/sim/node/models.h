/* models.h: the figures of the GPU models in models.def. */
#ifndef NM_SIM_MODELS_H
#define NM_SIM_MODELS_H

#include <stdint.h>

typedef struct {
    const char *model;
    const char *name;
    uint32_t memory_mib; /* 0: any */
    int major, minor;
    int multiprocessors, cores_each;
    int clock_mhz, memory_mhz, bus_bits, l2_kib;
    int threads_each, shared_kib_each;
    int tflops, tensor_tflops;
    uint32_t memory_gb_per_s, host_gb_per_s;
    uint32_t watts;
    uint32_t pci_device;
} nm_sim_model;

/* Blocks that a multiprocessor runs at once (the programming guide's table). */
static inline int nm_sim_most_blocks(const nm_sim_model *model) {
    return model->major == 8 && model->minor == 6 ? 16 : model->threads_each / 64;
}

/* NULL beyond the last. */
const nm_sim_model *nm_sim_model_at(uint32_t index);

#endif
