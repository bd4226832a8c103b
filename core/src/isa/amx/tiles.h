// The tile instructions. Registers are numbers from 0 to 7, given as literals; rows lie `stride` bytes apart in memory.
// As assembly, not by the compiler's intrinsics: a displacement costs no register here, and gcc 12 does not know that an
// intrinsic reads memory.
#ifndef PE_TILES_H
#define PE_TILES_H

#include <stdint.h>

#ifdef __OPTIMIZE__
#define TILE_ADDRESS(p, displacement, stride) "r"(p), "r"((int64_t)(stride)), "i"(displacement)
#else  // nothing but a literal is a constant then
#define TILE_ADDRESS(p, displacement, stride) "r"((char *)(p) + (displacement)), "r"((int64_t)(stride)), "i"(0)
#endif

#define TILES_BEGIN(config) __asm__ volatile("ldtilecfg %0" ::"m"(config))
#define TILES_END() __asm__ volatile("tilerelease" ::)
#define TILE_ZERO(tile) __asm__ volatile("tilezero %%tmm" #tile::)
#define TILE_LOAD(tile, from, displacement, stride) \
    __asm__ volatile("tileloadd %c2(%0,%1,1), %%tmm" #tile : : TILE_ADDRESS(from, displacement, stride) : "memory")
#define TILE_STORE(tile, to, displacement, stride) \
    __asm__ volatile("tilestored %%tmm" #tile ", %c2(%0,%1,1)" : : TILE_ADDRESS(to, displacement, stride) : "memory")
// Adds products of signed bytes: sums[row][lane] += sum over 4 k + c of a[row][4 k + c] * b[k][4 lane + c].
#define TILE_DOT(sums, a, b) __asm__ volatile("tdpbssd %%tmm" #b ", %%tmm" #a ", %%tmm" #sums::)

#endif
