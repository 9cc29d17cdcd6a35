/* runtime.cu: the CUDA runtime in an environment, as framework.py: one JSON line.
 *
 *   runtime BYTES      BYTES: the environment's memory
 */
#include <cstdio>
#include <cstdlib>

__global__ void store_seven(int *number)
{
    *number = 7;
}

int main(int, char **words)
{
    size_t memory = strtoull(words[1], nullptr, 10), free_bytes = 0, total = 0;
    int *number = nullptr, result = 0;
    void *large = nullptr, *small = nullptr;
    int started = cudaMemGetInfo(&free_bytes, &total);
    int allocated = cudaMalloc(&number, sizeof *number);
    store_seven<<<1, 1>>>(number);
    int copied = cudaMemcpy(&result, number, sizeof result, cudaMemcpyDeviceToHost);
    int refused = cudaMalloc(&large, memory + (size_t(1) << 30));
    int again = cudaMalloc(&small, memory / 8);
    printf("{\"memory\": %zu, \"result\": %d, \"refused\": \"%s\", \"again\": \"%s\","
           " \"codes\": [%d, %d, %d]}\n",
           total, result, cudaGetErrorName(cudaError_t(refused)),
           cudaGetErrorName(cudaError_t(again)), started, allocated, copied);
    return 0;
}
