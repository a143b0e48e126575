/* prose.h: text about nothing, from a small grammar over the vocabulary: the haystack where the
 * user names no file, and the paragraphs between documents that matter. */
#ifndef SAC_EVAL_PROSE_H
#define SAC_EVAL_PROSE_H

#include "base/strbuf.h"
#include "eval/rng.h"

/* One sentence with its full stop, without a space around it. */
void prose_sentence(struct strbuf *out, struct rng *r);
/* `n` sentences with a blank between two. */
void prose_paragraph(struct strbuf *out, struct rng *r, uint32_t n);
/* Paragraphs, a blank line between two, of at least `bytes` bytes. */
void prose_text(struct strbuf *out, struct rng *r, size_t bytes);

/* Five sentences that say nothing, as one line: what RULER calls noise is this line, many times. */
const char *prose_noise(void);

#endif
