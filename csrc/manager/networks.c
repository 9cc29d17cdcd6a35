/* networks.c: see networks.h. */
#include "manager/networks.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* outputs += the product of `inputs` and its rows of weights; returns the weights behind them */
static const float *add_product(const float *weights, const float *inputs, int32_t from,
                                float *restrict outputs, int32_t to)
{
    for (int32_t in = 0; in < from; in++, weights += to) {
        const float value = inputs[in];
        if (value == 0)
            continue;
        for (int32_t out = 0; out < to; out++)
            outputs[out] += value * weights[out];
    }
    return weights;
}

static void rectify(float *values, int32_t count)
{
    for (int32_t at = 0; at < count; at++)
        values[at] = values[at] < 0 ? 0 : values[at]; /* a NaN stays one */
}

static int finite_all(const float *values, int32_t count)
{
    for (int32_t at = 0; at < count; at++)
        if (!isfinite(values[at]))
            return NM_NETWORK_NUMBER;
    return NM_NETWORK_OK;
}

static int fits(const int32_t *widths, int32_t layers, int64_t count)
{
    int64_t needed = 0;
    if (layers < 1 || layers > NM_NETWORK_LAYERS)
        return 0;
    for (int32_t layer = 0; layer <= layers; layer++) {
        if (widths[layer] < 1 || widths[layer] > NM_NETWORK_UNITS)
            return 0;
        if (layer > 0)
            needed += ((int64_t)widths[layer - 1] + 1) * widths[layer];
    }
    return needed == count;
}

int nm_network_dense(const float *weights, int64_t count, const int32_t *widths, int32_t layers,
                     const float *inputs, float *outputs)
{
    float held[2][NM_NETWORK_UNITS];
    const float *from = inputs;
    if (!fits(widths, layers, count))
        return NM_NETWORK_SHAPE;
    for (int32_t layer = 0; layer < layers; layer++) {
        const int32_t in = widths[layer], out = widths[layer + 1];
        const float *biases = weights + (int64_t)in * out;
        float *to = layer == layers - 1 ? outputs : held[layer % 2];
        memcpy(to, biases, sizeof(float) * (size_t)out);
        add_product(weights, from, in, to, out);
        if (layer < layers - 1)
            rectify(to, out);
        weights = biases + out;
        from = to;
    }
    return finite_all(outputs, widths[layers]);
}

/* the means and the maxima of the columns: 2 * hidden floats */
static void pool(const float *values, int32_t rows, int32_t hidden, float *pooled)
{
    float *maxima = pooled + hidden;
    memset(pooled, 0, sizeof(float) * 2 * (size_t)hidden);
    memcpy(maxima, values, sizeof(float) * (size_t)hidden);
    for (int32_t row = 0; row < rows; row++, values += hidden)
        for (int32_t unit = 0; unit < hidden; unit++) {
            pooled[unit] += values[unit] / (float)rows;
            maxima[unit] = values[unit] > maxima[unit] ? values[unit] : maxima[unit];
        }
}

int nm_network_score(const float *weights, int64_t count, int32_t features, int32_t hidden,
                     const float *inputs, int32_t rows, float *scores)
{
    const int32_t ends = NM_NETWORK_UNITS / 4;
    if (features < 1 || features > ends || hidden < 1 || hidden > ends || rows < 1 ||
        rows > NM_NETWORK_ROWS ||
        count != (int64_t)(features + 1) * hidden + (int64_t)(3 * hidden + 1) * hidden + hidden +
                     features + 1)
        return NM_NETWORK_SHAPE;
    float *first = malloc(sizeof(float) * (size_t)rows * (size_t)hidden);
    float pooled[NM_NETWORK_UNITS], common[NM_NETWORK_UNITS], second[NM_NETWORK_UNITS];
    if (first == NULL)
        return NM_NETWORK_MEMORY;
    const float *biases = weights + (int64_t)features * hidden, *own = biases + hidden;
    for (int32_t row = 0; row < rows; row++) {
        float *to = first + (int64_t)row * hidden;
        memcpy(to, biases, sizeof(float) * (size_t)hidden);
        add_product(weights, inputs + (int64_t)row * features, features, to, hidden);
        rectify(to, hidden);
    }
    pool(first, rows, hidden, pooled);
    const float *of_pool = own + (int64_t)hidden * hidden;
    const float *after = of_pool + 2 * (int64_t)hidden * hidden, *last = after + hidden;
    memcpy(common, after, sizeof(float) * (size_t)hidden);
    add_product(of_pool, pooled, 2 * hidden, common, hidden);
    for (int32_t row = 0; row < rows; row++) {
        memcpy(second, common, sizeof(float) * (size_t)hidden);
        add_product(own, first + (int64_t)row * hidden, hidden, second, hidden);
        rectify(second, hidden);
        scores[row] = last[hidden + features];
        add_product(last, second, hidden, scores + row, 1);
        add_product(last + hidden, inputs + (int64_t)row * features, features, scores + row, 1);
    }
    free(first);
    return finite_all(scores, rows);
}
