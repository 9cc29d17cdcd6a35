/* networks.h: forward passes of the networks that choose GPUs. For the manager alone.
 *
 * Knows: weights as one array of floats. Must not know: files, GPUs, the origin of the weights.
 *
 * A layer's weights stand by input: one float for each output; the biases of the outputs follow.
 */
#ifndef NM_NETWORKS_H
#define NM_NETWORKS_H

#include <stdint.h>

/* cffi: begin */
enum { NM_NETWORK_LAYERS = 8, NM_NETWORK_UNITS = 4096, NM_NETWORK_ROWS = 65536 };
enum nm_network_fault {
    NM_NETWORK_OK = 0,
    NM_NETWORK_SHAPE = 1,  /* the widths, or the number of weights, fit no network */
    NM_NETWORK_NUMBER = 2, /* an output that is not finite */
    NM_NETWORK_MEMORY = 3
};

/* Dense layers, each but the last with max(0, x). `widths`: of the input, then of each layer. */
int nm_network_dense(const float *weights, int64_t count, const int32_t *widths, int32_t layers,
                     const float *inputs, float *outputs);
/* A score for each row of features, equivariant under permutations of the rows: the first layer
   sees a row; the second one sees its result, and the mean and the maximum of all results; the
   last one sees that and the row. */
int nm_network_score(const float *weights, int64_t count, int32_t features, int32_t hidden,
                     const float *inputs, int32_t rows, float *scores);
/* cffi: end */

#endif
