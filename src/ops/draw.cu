// For each row z of logits at temperature t and a number u in [0, 1): w_i = e^((z_i - max z) / t), and token <- the first
// i with w_0 + ... + w_i > u (w_0 + ... + w_n); where t is 0, the first i with z_i = max z. A workgroup a row, a thread a
// segment of neighbours; a tree over segments, in shared memory, is gone down from its root to the one that counts.
// words: logits stride rows cols temperatures uniforms tokens

constexpr float LOWEST = -3.4028234e38f;

// Fills a tree over the threads' values: node k has the children 2k and 2k + 1, the leaves are the last THREADS nodes.
template <bool LARGEST>
__device__ __forceinline__ void grow(float* tree, float leaf) {
    __syncthreads();
    tree[THREADS + threadIdx.x] = leaf;
    for (u32 width = THREADS / 2; width > 0; width /= 2) {
        __syncthreads();
        u32 node = width + threadIdx.x;
        if (threadIdx.x < width)
            tree[node] = LARGEST ? fmaxf(tree[2 * node], tree[2 * node + 1]) : tree[2 * node] + tree[2 * node + 1];
    }
    __syncthreads();
}

extern "C" __global__ void __launch_bounds__(THREADS) draw(float* arena, const u32* table) {
    __shared__ float tree[2 * THREADS];
    u32 row = group_index();
    const u32* item = find_item(table, row);
    if (!item) return;
    u32 cols = item[3], length = (cols + THREADS - 1) / THREADS;
    u32 from = min(threadIdx.x * length, cols), end = min(from + length, cols);
    const float* z = arena + item[0] + (size_t)row * item[1];
    float temperature = arena[item[4] + row], u = arena[item[5] + row];
    float top = LOWEST;
#pragma unroll 8
    for (u32 i = from; i < end; ++i) top = fmaxf(top, z[i]);
    grow<true>(tree, top);
    float largest = tree[1];
    u32 node = 1;
    if (temperature == 0.0f) {
        while (node < THREADS) node = 2 * node + (tree[2 * node] != largest);
        if (node != THREADS + threadIdx.x) return;
        while (from < end - 1 && z[from] != largest) ++from;
        arena[item[6] + row] = (float)from;
        return;
    }
    float sum = 0.0f;
#pragma unroll 8
    for (u32 i = from; i < end; ++i) sum += expf((z[i] - largest) / temperature);
    grow<false>(tree, sum);
    // What is left to be passed below a node is less than its sum, so no step goes to one without weight.
    float rest = u * tree[1];
    while (node < THREADS) {
        float left = tree[2 * node];
        bool right = rest >= left && tree[2 * node + 1] > 0.0f;
        if (right) rest -= left;
        node = 2 * node + right;
    }
    if (node != THREADS + threadIdx.x) return;
    u32 token = from;
    sum = 0.0f;
    for (u32 i = from; i < end && sum <= rest; ++i) {
        float weight = expf((z[i] - largest) / temperature);
        if (weight > 0.0f) token = i;
        sum += weight;
    }
    arena[item[6] + row] = (float)token;
}
