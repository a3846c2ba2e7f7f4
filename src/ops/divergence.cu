// out_i = sum over k of p_ik (log p_ik - log q_ik), the divergence of q = softmax(logits) from p = softmax(target), row by
// row, and its gradient in the place of the logits: logits <- factor (q - p). A workgroup a row, which it reads twice: for
// the largest and the sums of exponentials, then for the rest. Barriers: those of the sums over the workgroup.
// words: logits logits_stride target target_stride rows cols out factor

constexpr float LOWEST = -3.0e38f;

// The largest number so far and the sum of exponentials relative to it.
struct Total {
    float largest = LOWEST, sum = 0.0f;

    __device__ __forceinline__ void add(float z) {
        if (z > largest) {
            sum *= expf(largest - z);
            largest = z;
        }
        sum += expf(z - largest);
    }

    // The logarithm of the sum over the workgroup, in every thread.
    __device__ __forceinline__ float log(float* parts) {
        float top = group_max(largest, parts);
        return top + logf(group_sum(sum * expf(largest - top), parts));
    }
};

extern "C" __global__ void __launch_bounds__(THREADS) divergence(float* arena, const u32* table) {
    __shared__ float parts[32];
    u32 group = group_index();
    const u32* item = find_item(table, group);
    if (!item) return;
    u32 cols = item[5];
    float* logits = arena + item[0] + (size_t)group * item[1];
    const float* target = arena + item[2] + (size_t)group * item[3];
    float factor = float_of(item[7]), sum = 0.0f;
    Total q, p;
#pragma unroll 4
    for (u32 k = threadIdx.x; k < cols; k += THREADS) {
        q.add(logits[k]);
        p.add(target[k]);
    }
    float q_log = q.log(parts), p_log = p.log(parts);
#pragma unroll 4
    for (u32 k = threadIdx.x; k < cols; k += THREADS) {
        float log_q = logits[k] - q_log, log_p = target[k] - p_log, weight = expf(log_p);
        sum += weight * (log_p - log_q);
        logits[k] = factor * (expf(log_q) - weight);
    }
    sum = group_sum(sum, parts);
    if (threadIdx.x == 0) arena[item[6] + group] = sum;
}
