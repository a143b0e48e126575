/* shapes.h: the models that the promises of methods are checked on. Tiny ones of random weights
 * have every shape: query heads that share a KV head and such that do not, windows in most layers.
 * `make test-long` adds smollm2-135m, whose attention is that of a real model. */
#ifndef SAC_TESTS_PROP_SHAPES_H
#define SAC_TESTS_PROP_SHAPES_H

#include "../unit/model_open.h"
#include "../unit/tiny_model.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

static const struct shape {
    const char *name;
    struct tiny tiny; /* of no layers: the real model */
} shapes[] = {
    {"two query heads to a KV head", {.seed = 11, .n_layer = 4}},
    {"a KV head to each query head", {.seed = 12, .n_layer = 3, .n_head = 2, .n_kv_head = 2}},
    {"windows in six of seven layers, one KV head",
     {.seed = 13, .n_layer = 7, .n_kv_head = 1, .window = 70}},
    {"a mixture of experts", {.seed = 14, .n_layer = 2, .n_expert = 6}},
    {MODEL_NAME, {0}},
};

static const struct shape *model_shape; /* of the model at hand */
static sac_model *model;

static int open_shape(void)
{
    model = model_shape->tiny.n_layer ? tiny_open(&model_shape->tiny) : model_open();
    return model ? 0 : -1;
}

static int close_shape(void **state)
{
    (void)state;
    sac_model_free(model);
    return 0;
}

/* Runs the group of tests on every shape; `open` calls open_shape. */
#define RUN_ON_SHAPES(tests, open)                                                                 \
    int n_failed = 0;                                                                              \
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {                                \
        model_shape = &shapes[i];                                                                  \
        if (model_shape->tiny.n_layer || getenv("SAC_TEST_LONG"))                                  \
            n_failed += cmocka_run_group_tests_name(model_shape->name, tests, open, close_shape);  \
    }                                                                                              \
    return n_failed

#endif
