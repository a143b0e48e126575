/* tile_config.h: the operand of LDTILECFG, which sets the shapes of AMX tiles (Intel's manual,
 * volume 2, LDTILECFG). */
#ifndef SAC_OPS_CPU_TILE_CONFIG_H
#define SAC_OPS_CPU_TILE_CONFIG_H

#include <stdint.h>

struct tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};
_Static_assert(sizeof(struct tile_config) == 64, "as LDTILECFG reads it");

#endif
