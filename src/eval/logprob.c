/* logprob.c: see the header. Loops over fixed lanes, which the compiler turns into vectors: a
 * vocabulary has 150,000 entries and every scored token needs them all. */
#include "eval/logprob.h"

#include "base/exp.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#define LANES 16u

static float largest(const float *row, uint32_t n)
{
    float lane[LANES], most = -INFINITY;
    for (uint32_t k = 0; k < LANES; k++) lane[k] = -INFINITY;
    uint32_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (uint32_t k = 0; k < LANES; k++) lane[k] = row[i + k] > lane[k] ? row[i + k] : lane[k];
    for (; i < n; i++) most = row[i] > most ? row[i] : most;
    for (uint32_t k = 0; k < LANES; k++) most = lane[k] > most ? lane[k] : most;
    return most;
}

uint32_t logprob_from_logits(float *row, uint32_t n)
{
    assert(n > 0);
    const float most = largest(row, n);
    double lane[LANES] = {0}, sum = 0;
    uint32_t i = 0, top = 0;
    for (; i + LANES <= n; i += LANES) {
        float e[LANES];
        for (uint32_t k = 0; k < LANES; k++) e[k] = exp_fast(row[i + k] - most);
        for (uint32_t k = 0; k < LANES; k++) lane[k] += (double)e[k];
    }
    for (; i < n; i++) sum += (double)exp_fast(row[i] - most);
    for (uint32_t k = 0; k < LANES; k++) sum += lane[k];
    const float log_sum = (float)log(sum);
    while (top + 1 < n && row[top] != most) top++;
    for (i = 0; i < n; i++) row[i] = (row[i] - most) - log_sum;
    return top;
}

double logprob_kl(const float *log_p, const float *log_q, uint32_t n)
{
    double lane[LANES] = {0}, sum = 0;
    uint32_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        float e[LANES];
        for (uint32_t k = 0; k < LANES; k++) {
            /* A token that is impossible in both distributions adds 0, not the NaN of -inf -
             * -inf. */
            const float p = exp_fast(log_p[i + k]);
            e[k] = p > 0 ? p * (log_p[i + k] - log_q[i + k]) : 0.0f;
        }
        for (uint32_t k = 0; k < LANES; k++) lane[k] += (double)e[k];
    }
    for (; i < n; i++) {
        const float p = exp_fast(log_p[i]);
        sum += p > 0 ? (double)(p * (log_p[i] - log_q[i])) : 0.0;
    }
    for (uint32_t k = 0; k < LANES; k++) sum += lane[k];
    return sum;
}
