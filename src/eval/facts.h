/* facts.h: forty short paragraphs about places and people that do not exist, with a question each,
 * and twenty questions that need two of them. A model cannot know the answers from elsewhere. */
#ifndef SAC_EVAL_FACTS_H
#define SAC_EVAL_FACTS_H

#include <stdint.h>

struct fact {
    const char *text;     /* one paragraph */
    const char *question; /* answered by the paragraph alone */
    const char *answer;   /* a string of the paragraph */
};

/* A place, a person whom its paragraph names, and a question about the place that only the person's
 * paragraph answers. */
struct fact_pair {
    struct fact place, person;
    const char *question, *answer;
};

uint32_t facts_n_pair(void);
const struct fact_pair *facts_pair(uint32_t i);

#endif
