/* test_device_refused.c: what an engine on a GPU refuses, and with which words, by the library of
 * tests/device that has none. */
#include "device_bench.h"

static int open_models(void **state)
{
    (void)state;
    return open_pair(FAKE_CUDA, 0);
}

/* ---- Refusals ---- */

static void refuse(const sac_engine_params *p, sac_status status, const char *words)
{
    sac_engine *e = NULL;
    sac_error err;
    assert_int_equal(sac_engine_create(&e, model, p, &err), status);
    assert_null(e);
    if (!strstr(err.msg, words)) fail_msg("'%s' does not say '%s'", err.msg, words);
}

static void what_a_device_cannot_do_is_named(void **state)
{
    (void)state;
    const char *expected = "expected", *sparge = "sparge";
    sac_engine_params p = device_params("cuda", SAC_KV_Q8);
    p.decode = &expected;
    p.n_decode = 1;
    refuse(&p, SAC_ERR_UNSUPPORTED, "the decode method 'expected' does not run on a GPU");
    p = device_params("cuda", SAC_KV_Q8);
    p.prefill = &sparge;
    p.n_prefill = 1;
    refuse(&p, SAC_ERR_UNSUPPORTED, "the prefill method 'sparge' does not run on a GPU");
    const char *kept = "loopserve:keep=on";
    p.prefill = &kept;
    refuse(&p, SAC_ERR_UNSUPPORTED,
           "the prefill method 'loopserve' with keep=on does not run on a GPU");
    const char *steady = "auto:draw=steady";
    p = device_params("cuda", SAC_KV_Q8);
    p.decode = &steady;
    p.n_decode = 1;
    refuse(&p, SAC_ERR_UNSUPPORTED,
           "the decode method 'auto' with draw=steady does not run on a GPU");
    p = device_params("cuda", SAC_KV_Q8);
    p.record = true;
    refuse(&p, SAC_ERR_UNSUPPORTED, "a recorder");
    p = device_params("cuda", SAC_KV_Q8);
    const struct sac_tier_params tier = {.fast_bytes = 1 << 20};
    p.compose = true;
    p.tier = &tier;
    refuse(&p, SAC_ERR_UNSUPPORTED, "joining of documents with pages in the machine's memory");
    p = device_params("gpu", SAC_KV_Q8);
    refuse(&p, SAC_ERR_ARG, "unknown device 'gpu': use cpu, cuda or cuda:N");
    p = device_params("cuda:1", SAC_KV_Q8);
    refuse(&p, SAC_ERR_NOT_FOUND, "there is no GPU 1");
    p = device_params("cuda:-1", SAC_KV_Q8);
    refuse(&p, SAC_ERR_ARG, "unknown device");
    p = device_params("cuda", SAC_KV_Q8);
    p.device_share = 1.5f;
    refuse(&p, SAC_ERR_ARG, "must be 0 to 1");
}

/* Of any of its layers, since all of them have experts. */
static void a_mixture_of_experts_is_named(void **state)
{
    (void)state;
    sac_engine *e = NULL;
    sac_error err;
    sac_model *mixture = tiny_open(&(struct tiny){.seed = 3, .n_expert = 4});
    assert_non_null(mixture);
    for (uint32_t n_layer = 0; n_layer < 2; n_layer++)
        for (int on_host = 0; on_host < 2; on_host++) {
            sac_engine_params p = device_params("cuda", SAC_KV_Q8);
            p.n_device_layer = n_layer;
            p.kv_on_host = on_host;
            assert_int_equal(sac_engine_create(&e, mixture, &p, &err), SAC_ERR_UNSUPPORTED);
            assert_non_null(strstr(err.msg, "layers of 4 experts (qwen2moe) do not run on a GPU: "
                                            "use --device cpu"));
        }
    setenv("SACCADE_FAKE_DEVICES", "2", 1);
    sac_engine_params p = device_params("cuda:0,cuda:1", SAC_KV_Q8);
    for (int rows = 0; rows < 2; rows++) {
        p.device_rows = rows;
        assert_int_equal(sac_engine_create(&e, mixture, &p, &err), SAC_ERR_UNSUPPORTED);
        assert_non_null(strstr(err.msg, "layers of 4 experts (qwen2moe) do not run on a GPU"));
    }
    unsetenv("SACCADE_FAKE_DEVICES");
    p = device_params(NULL, SAC_KV_Q8);
    must(sac_engine_create(&e, mixture, &p, &err), &err);
    sac_engine_free(e);
    sac_model_free(mixture);
}

static void what_layers_in_part_cannot_do_is_named(void **state)
{
    (void)state;
    const char *blocks = "critiprefill", *snapkv = "snapkv";
    const struct sac_tier_params tier = {.fast_bytes = 1 << 20};
    sac_engine_params p = device_params("cuda", SAC_KV_Q8);
    p.n_device_layer = 1;
    p.compose = true;
    refuse(&p, SAC_ERR_UNSUPPORTED, "joining of documents does not run with 1 of 2 layers");
    p.compose = false;
    p.tier = &tier;
    refuse(&p, SAC_ERR_UNSUPPORTED, "(--kv-fast) does not run with 1 of 2 layers");
    p.tier = NULL;
    p.prefill = &blocks;
    p.n_prefill = 1;
    refuse(&p, SAC_ERR_UNSUPPORTED, "the prefill method 'critiprefill' does not run with 1 of 2");
    p.n_prefill = 0;
    p.decode = &snapkv;
    p.n_decode = 1;
    refuse(&p, SAC_ERR_UNSUPPORTED, "the decode method 'snapkv' does not run with 1 of 2 layers");
    p = device_params("cpu", SAC_KV_Q8);
    p.n_device_layer = 1;
    refuse(&p, SAC_ERR_ARG, "1 layers of a GPU and no GPU");
}

static void what_several_devices_cannot_do_is_named(void **state)
{
    (void)state;
    const char *blocks = "critiprefill", *lines = "loopserve", *tables = "lfps";
    const struct sac_tier_params tier = {.fast_bytes = 1 << 20};
    const float split[3] = {1, 0, NAN};
    setenv("SACCADE_FAKE_DEVICES", "3", 1);
    sac_engine_params p = device_params("cuda:0,cuda:3", SAC_KV_Q8);
    refuse(&p, SAC_ERR_NOT_FOUND, "there is no GPU 3");
    p = device_params("cuda,cuda:1,cuda:0", SAC_KV_Q8);
    refuse(&p, SAC_ERR_ARG, "'cuda,cuda:1,cuda:0' names GPU 0 twice");
    p = device_params("cuda:0,", SAC_KV_Q8);
    refuse(&p, SAC_ERR_ARG, "unknown device ''");
    p = device_params("cuda:0,cpu", SAC_KV_Q8);
    refuse(&p, SAC_ERR_ARG, "the CPU is no GPU among others");
    p = device_params("cpu,cuda:0", SAC_KV_Q8);
    refuse(&p, SAC_ERR_ARG, "the CPU is no GPU among others");
    p = device_params("cuda:0,,cuda:1", SAC_KV_Q8);
    refuse(&p, SAC_ERR_ARG, "unknown device ''");
    p = device_params("cuda:0,cuda:1,cuda:2", SAC_KV_Q8);
    refuse(&p, SAC_ERR_ARG, "3 GPUs for 2 layers");
    p = device_params("cuda:0,cuda:1", SAC_KV_Q8);
    p.device_split = split;
    p.n_device_split = 2;
    refuse(&p, SAC_ERR_ARG, "a share of 0 for GPU 1");
    p.device_split = split + 1;
    refuse(&p, SAC_ERR_ARG, "a share of 0 for GPU 0");
    p.device_split = split + 2;
    p.n_device_split = 1;
    refuse(&p, SAC_ERR_ARG, "1 shares of the layers for 2 GPUs");
    p.device = "cuda:0";
    refuse(&p, SAC_ERR_ARG, "a share of nan for GPU 0");
    p = device_params("cuda:0,cuda:1", SAC_KV_Q8);
    p.compose = true;
    refuse(&p, SAC_ERR_UNSUPPORTED, "joining of documents does not run with layers on 2 GPUs");
    p.compose = false;
    p.tier = &tier;
    refuse(&p, SAC_ERR_UNSUPPORTED, "(--kv-fast) does not run with layers on 2 GPUs");
    p.tier = NULL;
    p.prefill = &blocks;
    p.n_prefill = 1;
    refuse(&p, SAC_ERR_UNSUPPORTED, "'critiprefill' does not run with layers on 2 GPUs");
    p.n_prefill = 0;
    p.decode = &lines;
    p.n_decode = 1;
    refuse(&p, SAC_ERR_UNSUPPORTED, "'loopserve' does not run with layers on 2 GPUs");
    p.decode = &tables;
    refuse(&p, SAC_ERR_UNSUPPORTED, "'lfps' does not run with layers on 2 GPUs");
    p = device_params("cuda:0,cuda:1", SAC_KV_Q8);
    setenv("SACCADE_FAKE_MIB", "4096,1", 1);
    p.device_split = (const float[]){1, 1};
    p.n_device_split = 2;
    refuse(&p, SAC_ERR_MEMORY, "cuda:1 Fake has 1 MiB free");
    unsetenv("SACCADE_FAKE_MIB");
    unsetenv("SACCADE_FAKE_DEVICES");
}

static void a_small_or_foreign_device_is_told_of(void **state)
{
    (void)state;
    const sac_engine_params p = device_params("cuda", SAC_KV_Q8);
    setenv("SACCADE_FAKE_MIB", "1", 1);
    refuse(&p, SAC_ERR_MEMORY, "use a smaller -c or -b");
    unsetenv("SACCADE_FAKE_MIB");
    setenv("SACCADE_FAKE_ABI", "7", 1);
    refuse(&p, SAC_ERR_UNSUPPORTED, "another build");
    unsetenv("SACCADE_FAKE_ABI");
    setenv("SACCADE_CUDA", "/nonexistent/libsaccade_cuda.so", 1);
    refuse(&p, SAC_ERR_NOT_FOUND, "'make cuda' builds it");
    setenv("SACCADE_CUDA", FAKE_CUDA, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_a_device_cannot_do_is_named),
        cmocka_unit_test(a_mixture_of_experts_is_named),
        cmocka_unit_test(what_layers_in_part_cannot_do_is_named),
        cmocka_unit_test(what_several_devices_cannot_do_is_named),
        cmocka_unit_test(a_small_or_foreign_device_is_told_of),
    };
    return cmocka_run_group_tests(tests, open_models, free_pair);
}
