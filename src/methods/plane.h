/* plane.h: the first plane of a page's keys: the highest two of the eight bits per channel, with
 * the channel's minimum and step: a tenth of the page. In a q8 page it is a part of the keys, so
 * nothing is stored in addition; for 16-bit pages the same bytes are side data. A key that is not
 * finite makes the scores of its page NaN, so that the error is detected. */
#ifndef SAC_METHODS_PLANE_H
#define SAC_METHODS_PLANE_H

#include "methods/method.h"

/* Where min, step and plane of a page lie: in the page, or beside it. */
struct op_share_planes plane_of(const struct method_lane *l);

size_t plane_side_bytes(const struct method_shape *s, const void *param);
void plane_seal(uint8_t *side, const struct method_shape *s, const void *param, const float *k);
/* The same, as a note that any backend can make (ops/lanes.h). */
enum op_note_kind plane_note(const struct method_shape *s, const void *param);

#endif
