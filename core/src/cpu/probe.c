// What the probe of this machine's limits times: loads and multiply-adds with nothing between them.
#include "cpu.h"
#include "dot.h"

enum { PREFETCH = 512 };  // bytes ahead; with one or two streams it reads up to half as much again

PE_INLINE int32_t read_streams(const uint8_t *p, size_t n, const int streams) {
    const size_t each = n / (size_t)streams;
    vi sums[PE_PROBE_STREAMS];
    for (int s = 0; s < streams; s++) sums[s] = vi_zero();
    for (size_t i = 0; i < each; i += PE_PROBE_BYTES) {
#pragma GCC unroll 8
        for (int s = 0; s < streams; s++) {
            const uint8_t *from = p + (size_t)s * each + i;
            v_prefetch(from + PREFETCH);
            v_prefetch(from + PREFETCH + 64);
#pragma GCC unroll 4
            for (int k = 0; k < PE_PROBE_BYTES; k += (int)sizeof(vi)) {
                vi x;
                memcpy(&x, from + k, sizeof x);
                sums[s] = vi_add(sums[s], x);
            }
        }
    }
    for (int s = 1; s < streams; s++) sums[0] = vi_add(sums[0], sums[s]);
    return vi_sum(sums[0]);
}

int32_t PE_FN(probe_read)(const uint8_t *p, size_t n, int32_t streams) {
    switch (streams) {  // each a loop of its own, so that sums stay in registers
    case 1: return read_streams(p, n, 1);
    case 2: return read_streams(p, n, 2);
    case 4: return read_streams(p, n, 4);
    default: return read_streams(p, n, 8);
    }
}

// Two sets of sums, since a multiply-add takes several cycles and the next one into the same sum waits for it.
int32_t PE_FN(probe_int8)(int64_t rounds) {
    vi x[8], first[8], second[8];
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        x[i] = vi_set1(0x01fe0203 + i);
        first[i] = second[i] = vi_zero();
    }
    const vi w = vi_set1(0x03010f07), v = vi_set1(0x05020b0d);
    for (int64_t n = 0; n < rounds; n++) {
        dot_peak(w, x, first);
        dot_peak(v, x, second);
    }
    vi sum = vi_zero();
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) sum = vi_add(sum, vi_add(first[i], second[i]));
    return vi_sum(sum);
}

float PE_FN(probe_f32)(int64_t rounds) {
    vf sums[PE_PROBE_F32];
    for (int i = 0; i < PE_PROBE_F32; i++) sums[i] = vf_set1((float)i);
    const vf a = vf_set1(0.75f), b = vf_set1(1.25f);
    for (int64_t n = 0; n < rounds; n++) {
#pragma GCC unroll 12
        for (int i = 0; i < PE_PROBE_F32; i++) sums[i] = vf_fma(a, b, sums[i]);
    }
    for (int i = 1; i < PE_PROBE_F32; i++) sums[0] = vf_add(sums[0], sums[i]);
    return vf_sum(sums[0]);
}
