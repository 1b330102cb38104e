/* Random resized crops and color jitter of images on CPUs: the operations of crop.py and color.py, a view at a time, and
   their random numbers.

A view of 32 x 32 stays in the first cache through all operations, which torch does one by one on whole batches.
Results equal those of torch up to rounding; tests/transforms/test_image_ops.py compares them. */

#include <math.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__) && defined(__linux__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__) && __GNUC__ >= 12
#define FOR_EACH_CPU __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define FOR_EACH_CPU
#endif

/* Functions must be inlined to be compiled for the CPU of their caller. */
#if defined(__GNUC__)
#define INLINE static inline __attribute__((always_inline))
#else
#define INLINE static inline
#endif

/* To be increased when the arguments of a function change; image_ops.py has the same number. */
enum { IMAGE_OPS_VERSION = 1 };
enum { BLOCK = 1024, LANES = 32, VIEWS_AT_ONCE = 8, MAX_THREADS = 64 };
enum { BRIGHTNESS, CONTRAST, SATURATION, HUE, GRAYSCALE, NUM_OPERATIONS }; /* the first four in the order of color.ORDERS */

INLINE float clamp(float x) { return x < 0.f ? 0.f : x > 1.f ? 1.f : x; }

INLINE float luma(float r, float g, float b) { return 0.299f * r + 0.587f * g + 0.114f * b; }

/* ---- colors ---- */

INLINE void scale(float *restrict x, int64_t n, float factor, float offset) {
    for (int64_t i = 0; i < n; i++) x[i] = clamp(x[i] * factor + offset);
}

INLINE void saturate(float *restrict r, float *restrict g, float *restrict b, int64_t n, float factor) {
    for (int64_t i = 0; i < n; i++) {
        float gray = luma(r[i], g[i], b[i]) * (1.f - factor);
        r[i] = clamp(r[i] * factor + gray);
        g[i] = clamp(g[i] * factor + gray);
        b[i] = clamp(b[i] * factor + gray);
    }
}

/* A channel falls from value to value - chroma while its hue is 1/3 to 1/6 circles away from 1/3; `low` is
   value - 2 chroma, and chroma is multiplied by 6. */
INLINE float compute_channel(float low, float chroma, float hue) {
    float distance = fabsf(hue - floorf(hue) - 1.f / 3.f);
    distance = distance < 1.f / 6.f ? 1.f / 6.f : distance > 1.f / 3.f ? 1.f / 3.f : distance;
    return clamp(low + chroma * distance);
}

INLINE void shift_hue(float *restrict r, float *restrict g, float *restrict b, int64_t n, float shift) {
    for (int64_t i = 0; i < n; i++) {
        float red = r[i], green = g[i], blue = b[i];
        float larger = green > blue ? green : blue, smaller = green > blue ? blue : green;
        float value = red > larger ? red : larger;
        float chroma = 6.f * (value - (red < smaller ? red : smaller));
        float hue = value == red     ? green - blue
                    : value == green ? blue - red + chroma * (1.f / 3.f)
                                     : red - green + chroma * (2.f / 3.f);
        /* In circles, and at least 0 after a shift of up to half a circle back; a gray pixel has the hue 0. */
        hue = hue / (chroma > 1e-30f ? chroma : 1e-30f) + (shift + 1.f);
        float low = value - chroma * (1.f / 3.f);
        r[i] = compute_channel(low, chroma, hue + 5.f / 6.f);
        g[i] = compute_channel(low, chroma, hue + 3.f / 6.f);
        b[i] = compute_channel(low, chroma, hue + 1.f / 6.f);
    }
}

INLINE void convert_to_gray(float *restrict r, float *restrict g, float *restrict b, int64_t n) {
    for (int64_t i = 0; i < n; i++) r[i] = g[i] = b[i] = luma(r[i], g[i], b[i]);
}

/* The mean gray value, rounded to an integer of 0 to 255 as in PIL. */
INLINE float compute_mean_gray(const float *view, int64_t pixels) {
    double total = 0.;
    for (int64_t start = 0; start < pixels; start += BLOCK) {
        const float *r = view + start, *g = r + pixels, *b = g + pixels;
        int64_t n = pixels - start < BLOCK ? pixels - start : BLOCK;
        float sum = 0.f;
        for (int64_t i = 0; i < n; i++) sum += luma(r[i], g[i], b[i]);
        total += sum;
    }
    return rintf((float)(total / pixels * 255.)) / 255.f;
}

/* Other numbers than those of operations are skipped. Operations between two contrasts need no mean, so they are
   applied block by block. */
FOR_EACH_CPU static void augment_view(float *view, int64_t pixels, const float *factors, const int64_t *operations) {
    for (int first = 0, last; first < NUM_OPERATIONS; first = last) {
        float mean = operations[first] == CONTRAST ? compute_mean_gray(view, pixels) : 0.f;
        for (last = first + 1; last < NUM_OPERATIONS && operations[last] != CONTRAST;) last++;
        for (int64_t start = 0; start < pixels; start += BLOCK) {
            float *r = view + start, *g = r + pixels, *b = g + pixels;
            int64_t n = pixels - start < BLOCK ? pixels - start : BLOCK;
            for (int i = first; i < last; i++) {
                int64_t operation = operations[i];
                float factor = operation >= 0 && operation < GRAYSCALE ? factors[operation] : 0.f;
                if (operation == BRIGHTNESS || operation == CONTRAST) {
                    float offset = operation == CONTRAST ? mean * (1.f - factor) : 0.f;
                    scale(r, n, factor, offset), scale(g, n, factor, offset), scale(b, n, factor, offset);
                } else if (operation == SATURATION) {
                    saturate(r, g, b, n, factor);
                } else if (operation == HUE) {
                    shift_hue(r, g, b, n, factor);
                } else if (operation == GRAYSCALE) {
                    convert_to_gray(r, g, b, n);
                }
            }
        }
    }
}

/* ---- random numbers and boxes ---- */

/* One more part of a key; see utils/rng.py. */
INLINE uint64_t hash_part(uint64_t state, int64_t part) {
    uint64_t x = (state ^ (uint64_t)part) + 0x9E3779B97F4A7C15u;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}

/* Uniform numbers (count, num_views, num_draws) of the keys (what `state` has hashed, index, view, draw). */
void draw_uniform(int64_t state, const int64_t *index, int64_t count, int64_t first_view, int64_t num_views,
                  int64_t first_draw, int64_t num_draws, float *numbers) {
    for (int64_t i = 0; i < count; i++) {
        uint64_t instance = hash_part((uint64_t)state, index[i]);
        for (int64_t v = 0; v < num_views; v++) {
            uint64_t view = hash_part(instance, first_view + v);
            for (int64_t d = 0; d < num_draws; d++)
                *numbers++ = (float)(hash_part(view, first_draw + d) >> 40) * 0x1p-24f;
        }
    }
}

/* Boxes (count, num_views, 4) from uniform numbers (count, num_views, 2 attempts + 2) and sizes (count, 2); see
   sample_crop_boxes in crop.py. `limits` are the minimum and maximum of the scale and of the aspect ratio. */
void sample_crop_boxes(const float *uniforms, const int64_t *sizes, int64_t count, int64_t num_views, int64_t attempts,
                       const double *limits, int64_t *boxes) {
    double low = log(limits[2]), high = log(limits[3]);
    for (int64_t i = 0; i < count * num_views; i++, uniforms += 2 * attempts + 2, boxes += 4) {
        double height = sizes[i / num_views * 2], width = sizes[i / num_views * 2 + 1], h = 0., w = 0.;
        int fits = 0;
        for (int64_t a = 0; a < attempts && !fits; a++) {
            double area = height * width * (limits[0] + (limits[1] - limits[0]) * uniforms[a]);
            double aspect = exp(low + (high - low) * uniforms[attempts + a]);
            w = rint(sqrt(area * aspect)), h = rint(sqrt(area / aspect));
            fits = w > 0. && w <= width && h > 0. && h <= height;
        }
        if (!fits) {
            w = width / height > limits[3] ? rint(height * limits[3]) : width;
            h = width / height < limits[2] ? rint(width / limits[2]) : height;
            w = w < 1. ? 1. : w, h = h < 1. ? 1. : h;
        }
        boxes[0] = (int64_t)floor(fits ? uniforms[2 * attempts] * (height - h + 1.) : (height - h) / 2.);
        boxes[1] = (int64_t)floor(fits ? uniforms[2 * attempts + 1] * (width - w + 1.) : (width - w) / 2.);
        boxes[2] = (int64_t)h, boxes[3] = (int64_t)w;
    }
}

/* ---- crops ---- */

/* Weights of the pixels of a row of `length` that each output position sees, as crop.make_resize_matrix. Weight k of
   position i is weights[k * size + i], and that of the pixel starts[i] + k. Returns the number of weights of a position,
   which is at most 4 max(1, length / size) + 2. */
INLINE int64_t make_weights(int64_t length, int64_t size, int flip, float *restrict weights,
                            int32_t *restrict starts, float *restrict sums) {
    float step = (float)length / size, stretch = step > 1.f ? step : 1.f;
    int64_t count = (int64_t)(4.f * stretch) + 2;
    count = count < length ? count : length;
    float max_start = length - count;
    for (int32_t i = 0; i < size; i++) {
        float start = floorf(((flip ? size - 1 - i : i) + 0.5f) * step - 2.f * stretch);
        starts[i] = (int32_t)(start < 0.f ? 0.f : start > max_start ? max_start : start);
        sums[i] = 0.f;
    }
    for (int64_t k = 0; k < count; k++) {
        float *restrict row = weights + k * size;
        for (int32_t i = 0; i < size; i++) {
            float center = ((flip ? size - 1 - i : i) + 0.5f) * step;
            float x = fabsf((starts[i] + k + 0.5f - center) / stretch);
            float u = 1.f - x, v = x < 2.f ? 2.f - x : 0.f, inner = u > 0.f ? u : 0.f;
            row[i] = 0.5f * u * v * v + (1.f - 2.f * u) * inner * inner;
            sums[i] += row[i];
        }
    }
    for (int64_t k = 0; k < count; k++)
        for (int64_t i = 0; i < size; i++) weights[k * size + i] /= sums[i];
    return count;
}

typedef struct {
    const uint8_t *images; /* (B, C, H, W) */
    const int64_t *boxes;  /* (B, N, 4): top, left, height, width */
    const uint8_t *hflip;  /* (B, N) */
    float *views;          /* (B, N, C, size, size) */
    int64_t num_views, channels, height, width, size;
} Crops;

typedef struct {
    float *across, *down, *sums;    /* weights, and their sums */
    float *pixels, *rows, *line;    /* a box, transposed; resized across, transposed back; and a row of a result */
    int32_t *lefts, *tops;
} Buffers;

/* The distance between rows of `length` numbers that are read LANES at a time. */
INLINE int64_t pad(int64_t length) { return (length + LANES - 1) / LANES * LANES; }

/* out (stride) = the sum of `count` rows (count, stride), weighted by every `size`-th of the weights. */
INLINE void sum_rows(const float *restrict rows, int64_t stride, const float *restrict weights, int64_t size,
                     int64_t count, float *restrict out) {
    for (int64_t x = 0; x < stride; x += LANES) {
        float sums[LANES] = {0.f};
        for (int64_t k = 0; k < count; k++)
            for (int i = 0; i < LANES; i++) sums[i] += weights[k * size] * rows[k * stride + x + i];
        for (int i = 0; i < LANES; i++) out[x + i] = sums[i];
    }
}

/* Resize across, on the transposed box, then down, so that all sums are of adjacent numbers. */
FOR_EACH_CPU static void crop_view(const Crops *c, int64_t v, const Buffers *t) {
    const int64_t *box = c->boxes + 4 * v, size = c->size, channels = c->channels, height = box[2], width = box[3];
    const int64_t column_stride = pad(channels * height), row_stride = pad(channels * size);
    const uint8_t *image = c->images + v / c->num_views * channels * c->height * c->width;
    for (int64_t channel = 0; channel < channels; channel++)
        for (int64_t y = 0; y < height; y++) {
            const uint8_t *restrict row = image + (channel * c->height + box[0] + y) * c->width + box[1];
            float *restrict column = t->pixels + channel * height + y;
            for (int64_t x = 0; x < width; x++) column[x * column_stride] = row[x] * (1.f / 255.f);
        }
    int64_t count = make_weights(width, size, c->hflip[v], t->across, t->lefts, t->sums);
    for (int64_t x = 0; x < size; x++) {
        float *restrict column = t->line;
        sum_rows(t->pixels + t->lefts[x] * column_stride, column_stride, t->across + x, size, count, column);
        for (int64_t channel = 0; channel < channels; channel++)
            for (int64_t y = 0; y < height; y++)
                t->rows[y * row_stride + channel * size + x] = column[channel * height + y];
    }
    count = make_weights(height, size, 0, t->down, t->tops, t->sums);
    for (int64_t y = 0; y < size; y++) {
        float *restrict row = t->line;
        sum_rows(t->rows + t->tops[y] * row_stride, row_stride, t->down + y, size, count, row);
        for (int64_t channel = 0; channel < channels; channel++) {
            float *restrict out = c->views + ((v * channels + channel) * size + y) * size;
            for (int64_t x = 0; x < size; x++) out[x] = clamp(row[channel * size + x]);
        }
    }
}

/* ---- threads ---- */

typedef struct {
    const Crops *crops;
    float *views;
    int64_t pixels;
    const float *factors;
    const int64_t *operations;
    int64_t count, next; /* views, and the first one that no thread has taken */
    int failed;
} Work;

/* Take the next views; 0 if there are none left. */
static int take_views(Work *work, int64_t *start, int64_t *stop) {
    *start = __atomic_fetch_add(&work->next, VIEWS_AT_ONCE, __ATOMIC_RELAXED);
    *stop = *start + VIEWS_AT_ONCE < work->count ? *start + VIEWS_AT_ONCE : work->count;
    return *start < work->count;
}

static void augment_views(void *argument) {
    Work *work = argument;
    for (int64_t v, stop; take_views(work, &v, &stop);)
        for (; v < stop; v++)
            augment_view(work->views + v * 3 * work->pixels, work->pixels, work->factors + v * GRAYSCALE,
                         work->operations + v * NUM_OPERATIONS);
}

static void crop_views(void *argument) {
    Work *work = argument;
    const Crops *c = work->crops;
    int64_t size = c->size, longest = c->height > c->width ? c->height : c->width;
    int64_t column_stride = pad(c->channels * c->height), row_stride = pad(c->channels * size);
    size_t num_weights = 4 * longest + 6 * size, num_pixels = c->width * column_stride;
    size_t line_length = column_stride > row_stride ? column_stride : row_stride, num_rows = c->height * row_stride;
    Buffers t;
    /* Zeros, because the ends of padded rows are read. */
    float *memory = calloc(2 * num_weights + size + num_pixels + line_length + num_rows, sizeof(float));
    int32_t *starts = malloc(2 * size * sizeof(int32_t));
    if (!memory || !starts) {
        work->failed = 1;
    } else {
        t.across = memory, t.down = t.across + num_weights, t.sums = t.down + num_weights;
        t.pixels = t.sums + size, t.rows = t.pixels + num_pixels, t.line = t.rows + num_rows;
        t.lefts = starts, t.tops = starts + size;
        for (int64_t v, stop; take_views(work, &v, &stop);)
            for (; v < stop; v++) crop_view(c, v, &t);
    }
    free(memory), free(starts);
}

/* The OpenMP of GCC, which torch has loaded, or NULL. Its threads wait actively for some milliseconds after each
   operation of torch, so that other threads would have to share the cores with them. */
#ifdef __linux__
extern void GOMP_parallel(void (*run)(void *), void *argument, unsigned threads, unsigned flags)
    __attribute__((weak));
#else
static void (*const GOMP_parallel)(void (*run)(void *), void *argument, unsigned threads, unsigned flags) = NULL;
#endif

typedef struct {
    void (*run)(void *);
    void *argument;
} Call;

static void *call(void *argument) {
    Call *call = argument;
    call->run(call->argument);
    return NULL;
}

static int run_threads(void (*run)(void *), Work *work, int64_t threads) {
    int64_t useful = (work->count + VIEWS_AT_ONCE - 1) / VIEWS_AT_ONCE;
    threads = threads > MAX_THREADS ? MAX_THREADS : threads;
    threads = threads > useful ? useful : threads;
    if (threads <= 1) {
        run(work);
    } else if (GOMP_parallel) {
        GOMP_parallel(run, work, (unsigned)threads, 0);
    } else {
        pthread_t others[MAX_THREADS];
        int64_t started = 0;
        Call each = {run, work};
        while (started < threads - 1 && !pthread_create(&others[started], NULL, call, &each)) started++;
        run(work);
        while (started > 0) pthread_join(others[--started], NULL);
    }
    return work->failed;
}

int image_ops_version(void) { return IMAGE_OPS_VERSION; }

/* Augment the colors of views (count, 3, pixels) in place, with factors (count, 4) and operations (count, 5). */
int augment_color(float *views, int64_t count, int64_t pixels, const float *factors, const int64_t *operations,
                  int64_t threads) {
    Work work = {.views = views, .pixels = pixels, .factors = factors, .operations = operations, .count = count};
    return run_threads(augment_views, &work, threads);
}

/* Crop, resize and flip images (count, channels, height, width) to views (count, num_views, channels, size, size). */
int crop_resize(const uint8_t *images, int64_t count, int64_t num_views, int64_t channels, int64_t height,
                int64_t width, const int64_t *boxes, const uint8_t *hflip, int64_t size, float *views,
                int64_t threads) {
    Crops crops = {images, boxes, hflip, views, num_views, channels, height, width, size};
    Work work = {.crops = &crops, .count = count * num_views};
    return run_threads(crop_views, &work, threads);
}
