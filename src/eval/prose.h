/* prose.h: text about nothing, from a small grammar over the vocabulary: the haystack where the
 * user names no file, and the paragraphs between documents that matter. */
#ifndef SAC_EVAL_PROSE_H
#define SAC_EVAL_PROSE_H

#include "base/strbuf.h"
#include "eval/rng.h"

/* One sentence with its full stop, without spaces around it. */
void prose_sentence(struct strbuf *out, struct rng *r);
/* `n` sentences, separated by blanks. */
void prose_paragraph(struct strbuf *out, struct rng *r, uint32_t n);
/* Paragraphs, separated by blank lines, of at least `bytes` bytes. */
void prose_text(struct strbuf *out, struct rng *r, size_t bytes);

/* One line of five trivial sentences: RULER's noise is this line, repeated. */
const char *prose_noise(void);

#endif
