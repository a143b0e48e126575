/* sample_mirostat.c: see the header. With t_i = ln((i + 1) / i) and b_i = ln(p_i / p_(i+1)), the
 * exponent is s = sum(t_i b_i) / sum(t_i^2) (the paper's equation 30), and with e = s - 1 the bound
 * is k = (e 2^mu / (1 - N^-e))^(1 / s). At s = 1 the fraction becomes 1 / ln N. */
#include "engine/sample_mirostat.h"

#include <math.h>

#define NEAR_ONE 1e-6 /* distance of s from 1 within which the limit of the fraction is used */

double sample_mirostat_k(const double *p, size_t n, double n_vocab, double mu)
{
    double up = 0, down = 0;
    for (size_t i = 1; i < n && p[i] > 0; i++) {
        const double t = log((double)(i + 1) / (double)i);
        up += t * log(p[i - 1] / p[i]);
        down += t * t;
    }
    const double s = down > 0 ? up / down : 0, e = s - 1;
    if (!(s > 0)) return n_vocab; /* all probabilities are equal: nothing is cut */
    const double fraction = fabs(e) < NEAR_ONE ? 1 / log(n_vocab) : e / (1 - pow(n_vocab, -e));
    const double k = pow(fraction * exp2(mu), 1 / s);
    return k < 1 ? 1 : k > n_vocab ? n_vocab : floor(k);
}
