// For each atom the places of a table of indices that name it, in the order of the rows.
// words: support s_stride rows k starts entries counts atoms activity

// How often a span of SPAN rows names each atom; a warp a span. The atoms of a row differ, so lanes never meet.
extern "C" __global__ void __launch_bounds__(THREADS) count_atoms(float* arena, const u32* table) {
    u32 span = group_index();
    const u32* item = find_item(table, span);
    if (!item) return;
    u32 *counts = (u32*)arena + item[6] + (size_t)span * item[7], lane = threadIdx.x;
    for (u32 k = lane; k < item[7]; k += 32) counts[k] = 0;
    __syncwarp();
    for (u32 i = span * SPAN; i < min(item[2], (span + 1) * SPAN); ++i) {
        const u32* row = (const u32*)arena + item[0] + (size_t)i * item[1];
        for (u32 j = lane; j < item[3]; j += 32) ++counts[row[j]];
        __syncwarp();
    }
}

// Counts become offsets from the start of an atom's list, and totals become starts; one workgroup an item.
extern "C" __global__ void __launch_bounds__(THREADS) list_starts(float* arena, const u32* table) {
    __shared__ u32 parts[THREADS + 1];
    u32 group = group_index();
    const u32* item = find_item(table, group);
    if (!item) return;
    u32 atoms = item[7], spans = (item[2] + SPAN - 1) / SPAN, tid = threadIdx.x;
    u32 *counts = (u32*)arena + item[6], *starts = (u32*)arena + item[4];
    for (u32 k = tid; k < atoms; k += THREADS) {
        u32 total = 0;
#pragma unroll 8
        for (u32 s = 0; s < spans; ++s) {
            u32 here = counts[(size_t)s * atoms + k];
            counts[(size_t)s * atoms + k] = total;
            total += here;
        }
        starts[k] = total;
        arena[item[8] + k] += (float)total;
    }
    __syncthreads();
    u32 share = (atoms + THREADS - 1) / THREADS, from = min(atoms, tid * share), to = min(atoms, from + share), sum = 0;
    for (u32 k = from; k < to; ++k) sum += starts[k];
    parts[tid + 1] = sum;
    if (tid == 0) parts[0] = 0;
    __syncthreads();
    if (tid == 0) {
        for (u32 t = 1; t <= THREADS; ++t) parts[t] += parts[t - 1];
        starts[atoms] = parts[THREADS];
    }
    __syncthreads();
    u32 next = parts[tid];
    for (u32 k = from; k < to; ++k) {
        u32 here = starts[k];
        starts[k] = next;
        next += here;
    }
}

// Every place goes to the end of its atom's list; a warp a span.
extern "C" __global__ void __launch_bounds__(THREADS) fill_lists(float* arena, const u32* table) {
    u32 span = group_index();
    const u32* item = find_item(table, span);
    if (!item) return;
    u32 *offsets = (u32*)arena + item[6] + (size_t)span * item[7], *entries = (u32*)arena + item[5];
    const u32* starts = (const u32*)arena + item[4];
    for (u32 i = span * SPAN; i < min(item[2], (span + 1) * SPAN); ++i) {
        const u32* row = (const u32*)arena + item[0] + (size_t)i * item[1];
        for (u32 j = threadIdx.x; j < item[3]; j += 32) {
            u32 k = row[j];
            entries[starts[k] + offsets[k]++] = i * item[3] + j;
        }
        __syncwarp();
    }
}
