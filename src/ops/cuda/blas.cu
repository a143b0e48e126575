/* blas.cu: matrix products of prompt rows in f16 by cuBLASLt, which is loaded when a GPU is opened.
 *
 * A row's sum must not depend on the number of rows in the call (design D7). So the algorithm is
 * chosen once for each shape of weights, as if the call had ROWS rows, among algorithms that do not
 * split the reduction, and is used for any number of rows. */
#include "ops/cuda/linear.cuh"
#include "ops/cuda/queue.cuh"

#include <cublasLt.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROWS       2048u
#define SHAPES_MAX 64u
#define SPACE      ((size_t)4 << 20)
#define ALIGN      64u /* alignment of all matrices in bytes */

#define TEXT_OF(x) #x
#define TEXT(x)    TEXT_OF(x)
#define LIBRARY    "libcublasLt.so." TEXT(CUBLAS_VER_MAJOR)

struct blas_shape {
    uint32_t n_in, n_out;
    size_t stride; /* of the results */
    bool halves;   /* results are f16 */
    cublasLtMatmulAlgo_t algo;
};

struct cuda_blas {
    void *library;
    cublasLtHandle_t handle;
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t w, x, y[2]; /* y in f32 and in f16 */
    cublasLtMatmulPreference_t preference;
    void *space; /* workspace [SPACE] */
    struct blas_shape shape[SHAPES_MAX];
    uint32_t n_shape;
    decltype(&cublasLtCreate) create;
    decltype(&cublasLtDestroy) destroy;
    decltype(&cublasLtMatmulDescCreate) desc_create;
    decltype(&cublasLtMatmulDescSetAttribute) desc_set;
    decltype(&cublasLtMatrixLayoutCreate) layout_create;
    decltype(&cublasLtMatrixLayoutSetAttribute) layout_set;
    decltype(&cublasLtMatmulPreferenceCreate) preference_create;
    decltype(&cublasLtMatmulPreferenceSetAttribute) preference_set;
    decltype(&cublasLtMatmulAlgoGetHeuristic) heuristic;
    decltype(&cublasLtMatmul) matmul;
};

/* ---- Opening ---- */

static bool find_functions(struct cuda_blas *b)
{
    const struct {
        const char *name;
        void **to;
    } wanted[] = {
        {"cublasLtCreate", (void **)&b->create},
        {"cublasLtDestroy", (void **)&b->destroy},
        {"cublasLtMatmulDescCreate", (void **)&b->desc_create},
        {"cublasLtMatmulDescSetAttribute", (void **)&b->desc_set},
        {"cublasLtMatrixLayoutCreate", (void **)&b->layout_create},
        {"cublasLtMatrixLayoutSetAttribute", (void **)&b->layout_set},
        {"cublasLtMatmulPreferenceCreate", (void **)&b->preference_create},
        {"cublasLtMatmulPreferenceSetAttribute", (void **)&b->preference_set},
        {"cublasLtMatmulAlgoGetHeuristic", (void **)&b->heuristic},
        {"cublasLtMatmul", (void **)&b->matmul},
    };
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++)
        if (!(*wanted[i].to = dlsym(b->library, wanted[i].name))) return false;
    return true;
}

/* Without this the library assumes an alignment of 256 bytes. */
static bool set_alignment(struct cuda_blas *b)
{
    const cublasLtMatmulPreferenceAttributes_t of[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
    const uint32_t bytes = ALIGN;
    for (size_t i = 0; i < sizeof of / sizeof of[0]; i++)
        if (b->preference_set(b->preference, of[i], &bytes, sizeof bytes) != CUBLAS_STATUS_SUCCESS)
            return false;
    return true;
}

static bool make_parts(struct cuda_blas *b)
{
    const cublasOperation_t transposed = CUBLAS_OP_T;
    const uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_NONE;
    const size_t space = SPACE;
    return b->create(&b->handle) == CUBLAS_STATUS_SUCCESS &&
           b->desc_create(&b->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F) == CUBLAS_STATUS_SUCCESS &&
           b->desc_set(b->desc, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed) ==
               CUBLAS_STATUS_SUCCESS &&
           b->layout_create(&b->w, CUDA_R_16F, 32, 32, 32) == CUBLAS_STATUS_SUCCESS &&
           b->layout_create(&b->x, CUDA_R_16F, 32, 32, 32) == CUBLAS_STATUS_SUCCESS &&
           b->layout_create(&b->y[0], CUDA_R_32F, 32, 32, 32) == CUBLAS_STATUS_SUCCESS &&
           b->layout_create(&b->y[1], CUDA_R_16F, 32, 32, 32) == CUBLAS_STATUS_SUCCESS &&
           b->preference_create(&b->preference) == CUBLAS_STATUS_SUCCESS &&
           b->preference_set(b->preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &space,
                             sizeof space) == CUBLAS_STATUS_SUCCESS &&
           b->preference_set(b->preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &schemes,
                             sizeof schemes) == CUBLAS_STATUS_SUCCESS &&
           set_alignment(b) && cudaMalloc(&b->space, SPACE) == cudaSuccess;
}

void blas_close(struct cuda_blas *b)
{
    if (!b) return;
    /* Descriptors are plain memory of the library, which stays loaded, as CUDA libraries must. */
    if (b->space) cudaFree(b->space);
    if (b->handle) b->destroy(b->handle);
    free(b);
}

sac_status blas_open(struct cuda_blas **out, sac_error *err)
{
    char text[sizeof err->msg] = "";
    struct cuda_blas *b = (struct cuda_blas *)calloc(1, sizeof *b);
    sac_status status = SAC_ERR_MEMORY;
    if (b) b->library = dlopen(LIBRARY, RTLD_NOW);
    if (!b) {
        snprintf(text, sizeof text, "out of memory for cuBLAS");
    } else if (!b->library) {
        snprintf(text, sizeof text,
                 LIBRARY
                 " of CUDA " TEXT(CUBLAS_VER_MAJOR) " is not found: install cuBLAS, or "
                                                    "name its folder in LD_LIBRARY_PATH (%s)",
                 dlerror());
        status = SAC_ERR_NOT_FOUND;
    } else if (!find_functions(b) || !make_parts(b)) {
        snprintf(text, sizeof text, LIBRARY " does not start on this GPU");
        status = SAC_ERR_UNSUPPORTED;
    } else {
        *out = b;
        return SAC_OK;
    }
    if (err) memcpy(err->msg, text, sizeof text);
    blas_close(b);
    return status;
}

/* ---- Products ---- */

static bool set_layout(const struct cuda_blas *b, cublasLtMatrixLayout_t l, uint64_t rows,
                       uint64_t columns, int64_t stride)
{
    return b->layout_set(l, CUBLASLT_MATRIX_LAYOUT_ROWS, &rows, sizeof rows) ==
               CUBLAS_STATUS_SUCCESS &&
           b->layout_set(l, CUBLASLT_MATRIX_LAYOUT_COLS, &columns, sizeof columns) ==
               CUBLAS_STATUS_SUCCESS &&
           b->layout_set(l, CUBLASLT_MATRIX_LAYOUT_LD, &stride, sizeof stride) ==
               CUBLAS_STATUS_SUCCESS;
}

/* In cuBLAS' column-major terms: y [n_out, n_row] = (w [n_in, n_out])^T x [n_in, n_row]. */
static bool set_layouts(const struct cuda_blas *b, const struct blas_shape *s, uint32_t n_row)
{
    return set_layout(b, b->w, s->n_in, s->n_out, s->n_in) &&
           set_layout(b, b->x, s->n_in, n_row, s->n_in) &&
           set_layout(b, b->y[s->halves], s->n_out, n_row, (int64_t)s->stride);
}

/* The cached shape with its algorithm; NULL: cuBLASLt has none. */
static const struct blas_shape *find_shape(struct cuda_blas *b, const struct blas_shape *like)
{
    for (uint32_t i = 0; i < b->n_shape; i++) {
        const struct blas_shape *s = &b->shape[i];
        if (s->n_in == like->n_in && s->n_out == like->n_out && s->stride == like->stride &&
            s->halves == like->halves)
            return s;
    }
    const cublasLtMatrixLayout_t y = b->y[like->halves];
    cublasLtMatmulHeuristicResult_t result;
    int n = 0;
    if (b->n_shape == SHAPES_MAX || !set_layouts(b, like, ROWS) ||
        b->heuristic(b->handle, b->desc, b->w, b->x, y, y, b->preference, 1, &result, &n) !=
            CUBLAS_STATUS_SUCCESS ||
        n == 0)
        return NULL;
    struct blas_shape *s = &b->shape[b->n_shape++];
    *s = *like;
    s->algo = result.algo;
    return s;
}

sac_status blas_multiply(struct cuda_device *d, const struct linear_sums *to, uint32_t first,
                         const __half *w, uint32_t n_out)
{
    struct cuda_blas *b = d->blas;
    const struct linear_rows *rows = to->rows;
    const struct blas_shape like = {
        .n_in = rows->width, .n_out = n_out, .stride = to->stride, .halves = to->halves};
    const float by = to->halves ? linear_half_by(rows->width) : 1, zero = 0;
    void *const out = (uint8_t *)to->at + first * (to->halves ? sizeof(__half) : sizeof(float));
    device_use(d);
    const struct blas_shape *s = find_shape(b, &like);
    if (!s || !set_layouts(b, s, rows->n_row))
        return device_fail(d, SAC_ERR_UNSUPPORTED, "cuBLASLt has no product of this shape");
    TRY(queue_flush(d)); /* cuBLASLt launches directly */
    const cublasLtMatrixLayout_t y = b->y[s->halves];
    const cublasStatus_t status = b->matmul(b->handle, b->desc, &by, w, b->w, rows->x, b->x, &zero,
                                            out, y, out, y, &s->algo, b->space, SPACE, d->stream);
    if (status == CUBLAS_STATUS_SUCCESS) return SAC_OK;
    return device_fail(d, SAC_ERR_IO, "cuBLASLt refuses a product");
}
