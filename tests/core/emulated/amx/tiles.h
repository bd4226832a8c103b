// In place of a set's own tiles.h where its instructions are emulated: AMX's tiles in plain C, each thread's its own.
#ifndef PE_EMULATED_TILES_H
#define PE_EMULATED_TILES_H

#include <stdint.h>
#include <string.h>

static _Thread_local struct {
    struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } config;
    int8_t tile[8][16][64];
} tiles_;

static inline void tile_load_(int tile, const char *from, int64_t stride) {
    for (int r = 0; r < 16; r++) {
        const size_t n = r < tiles_.config.rows[tile] ? tiles_.config.row_bytes[tile] : 0;
        if (n) memcpy(tiles_.tile[tile][r], from + r * stride, n);
        memset(tiles_.tile[tile][r] + n, 0, 64 - n);
    }
}

static inline void tile_store_(int tile, char *to, int64_t stride) {
    for (int r = 0; r < tiles_.config.rows[tile]; r++)
        memcpy(to + r * stride, tiles_.tile[tile][r], tiles_.config.row_bytes[tile]);
}

static inline void tile_dot_(int sums, int a, int b) {
    for (int r = 0; r < tiles_.config.rows[sums]; r++) {
        int32_t sum[16];
        memcpy(sum, tiles_.tile[sums][r], sizeof sum);
        for (int k = 0; k < tiles_.config.row_bytes[a]; k++) {
            const int8_t x = tiles_.tile[a][r][k], *const w = tiles_.tile[b][k / 4] + k % 4;
            for (int lane = 0; lane < 16; lane++) sum[lane] += x * w[4 * lane];
        }
        memcpy(tiles_.tile[sums][r], sum, sizeof sum);
    }
}

#define TILES_BEGIN(config_) memcpy(&tiles_.config, &(config_), sizeof tiles_.config)
#define TILES_END() memset(&tiles_, 0, sizeof tiles_)
#define TILE_ZERO(n) memset(tiles_.tile[n], 0, sizeof tiles_.tile[n])
#define TILE_LOAD(n, from, displacement, stride) tile_load_(n, (const char *)(from) + (displacement), stride)
#define TILE_STORE(n, to, displacement, stride) tile_store_(n, (char *)(to) + (displacement), stride)
#define TILE_DOT(sums, a, b) tile_dot_(sums, a, b)

#endif
