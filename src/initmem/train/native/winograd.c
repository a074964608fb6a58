/* 3x3 convolutions with 'same' padding, by the Winograd algorithm F(4x4, 3x3).

   The image is divided into tiles of 6x6 pixels that overlap by two. In the Winograd domain (polynomials evaluated at
   0, 1, -1, 2, -2 and infinity), convolving a tile with a kernel is an elementwise product: 36 multiplications for 4x4
   outputs instead of 144. Over all channels, these are 36 matrix products. Tiles are processed a few at a time, so that
   everything stays in the cache. Height and width must be multiples of 4.
*/
#include "vectors.h"

enum { POINTS = 36 }; /* per tile in the Winograd domain */

/* How many tiles are processed at a time: few, so that they stay in the cache, unless the kernel itself does not and has
   to be read again for every group of tiles. */
static num tiles_at_once(num inputs, num outputs) { return inputs * outputs > 16384 ? 64 : 16; }

/* The transforms of images, kernels and outputs along one axis. */
static inline void image_axis(const vec d[6], vec t[6])
{
    const vec p = d[4] - 4 * d[2], q = d[3] - 4 * d[1], r = d[4] - d[2], s = 2 * (d[3] - d[1]);
    t[0] = 4 * d[0] - 5 * d[2] + d[4], t[1] = p + q, t[2] = p - q;
    t[3] = r + s, t[4] = r - s, t[5] = 4 * d[1] - 5 * d[3] + d[5];
}

static inline void kernel_axis(const vec g[3], vec t[6])
{
    const vec p = (g[0] + g[2]) / -6, q = g[1] / 6, r = g[0] / 24 + g[2] / 6, s = g[1] / 12;
    t[0] = g[0] / 4, t[1] = p - q, t[2] = p + q, t[3] = r + s, t[4] = r - s, t[5] = g[2];
}

static inline void output_axis(const vec m[6], vec t[4])
{
    const vec p = m[1] + m[2], q = m[1] - m[2], r = m[3] + m[4], s = m[3] - m[4];
    t[0] = m[0] + p + r, t[1] = q + 2 * s, t[2] = p + 4 * r, t[3] = q + 8 * s + m[5];
}

/* The transposes of the last two, for the gradients. */
static inline void kernel_axis_transposed(const vec m[6], vec t[3])
{
    const vec p = (m[1] + m[2]) / 6, q = (m[2] - m[1]) / 6, r = m[3] + m[4], s = m[3] - m[4];
    t[0] = m[0] / 4 - p + r / 24, t[1] = q + s / 12, t[2] = r / 6 - p + m[5];
}

static inline void output_axis_transposed(const vec s[4], vec t[6])
{
    const vec p = s[0] + s[2], q = s[1] + s[3], r = s[0] + 4 * s[2], u = 2 * s[1] + 8 * s[3];
    t[0] = s[0], t[1] = p + q, t[2] = p - q, t[3] = r + u, t[4] = r - u, t[5] = s[3];
}

/* Apply a transform along both axes for one vector of channels: `from` x `from` values to `into` x `into`. */
#define BOTH_AXES(axis, from, into, get, put)                                                                         \
    do {                                                                                                              \
        vec half[into][from], line[6], changed[6];                                                                    \
        for (int j = 0; j < from; j++) {                                                                              \
            for (int i = 0; i < from; i++)                                                                            \
                line[i] = get(i, j);                                                                                  \
            axis(line, changed);                                                                                      \
            for (int i = 0; i < into; i++)                                                                            \
                half[i][j] = changed[i];                                                                              \
        }                                                                                                             \
        for (int i = 0; i < into; i++) {                                                                              \
            axis(half[i], changed);                                                                                   \
            for (int j = 0; j < into; j++)                                                                            \
                put(i, j, changed[j]);                                                                                \
        }                                                                                                             \
    } while (0)

static inline vec gather(const float *p, num step)
{
    vec v;
    for (int lane = 0; lane < LANES; lane++)
        v[lane] = p[lane * step];
    return v;
}

/* Transform a kernel (outputs, 3, 3, inputs) to (36, inputs, outputs). For the gradient of the input, rotate it by 180
   degrees and swap its channels: (36, outputs, inputs). */
static void transform_kernel(const float *kernel, num inputs, num outputs, int transposed, float *to)
{
    const num plane = inputs * outputs, step = 9 * inputs;
#define PUT(i, j, v) store(dst + (6 * i + j) * plane, v)
    for (num o = 0; transposed && o < outputs; o++)
        for (num k = 0; k < inputs; k += LANES) {
            const float *at = kernel + o * step + k;
            float *dst = to + o * inputs + k;
#define GET(i, j) load(at + (8 - 3 * i - j) * inputs)
            BOTH_AXES(kernel_axis, 3, 6, GET, PUT);
#undef GET
        }
    for (num o = 0; !transposed && o < outputs; o += LANES)
        for (num k = 0; k < inputs; k++) { /* innermost, so that each cache line of the kernel is read once */
            const float *at = kernel + o * step + k;
            float *dst = to + k * outputs + o;
#define GET(i, j) gather(at + (3 * i + j) * inputs, step)
            BOTH_AXES(kernel_axis, 3, 6, GET, PUT);
#undef GET
        }
#undef PUT
}

/* Transform the gradient of a kernel back to (outputs, 3, 3, inputs). */
static void kernel_grad(const float *sums, num inputs, num outputs, float *to)
{
    const num plane = inputs * outputs, step = 9 * inputs;
    for (num o = 0; o < outputs; o += LANES)
        for (num k = 0; k < inputs; k++) {
            const float *at = sums + k * outputs + o;
            float *dst = to + o * step + k;
#define GET(i, j) load(at + (6 * i + j) * plane)
#define PUT(i, j, v)                                                                                                  \
    for (int lane = 0; lane < LANES; lane++)                                                                          \
    dst[lane * step + (3 * i + j) * inputs] = (v)[lane]
            BOTH_AXES(kernel_axis_transposed, 6, 3, GET, PUT);
#undef GET
#undef PUT
        }
}

static void pad(const float *x, num images, num height, num width, num channels, float *to)
{
    const num edge = (width + 2) * channels;
    for (num i = 0; i < images; i++) {
        memset(to, 0, edge * sizeof *to), to += edge;
        for (num row = 0; row < height; row++, x += width * channels, to += edge) {
            memset(to, 0, channels * sizeof *to);
            memcpy(to + channels, x, width * channels * sizeof *to);
            memset(to + edge - channels, 0, channels * sizeof *to);
        }
        memset(to, 0, edge * sizeof *to), to += edge;
    }
}

/* Tiles of images (images, height, width, channels) that are padded by `margin` pixels on every side. */
struct tiles {
    num rows, columns, edge, image, channels;
};

static struct tiles tiling(num height, num width, num channels, num margin)
{
    const num edge = (width + 2 * margin) * channels;
    return (struct tiles){height / 4, width / 4, edge, (height + 2 * margin) * edge, channels};
}

/* The offset of the first pixel of a tile. */
static inline num corner(const struct tiles *t, num tile)
{
    const num each = t->rows * t->columns, within = tile % each;
    return tile / each * t->image + within / t->columns * 4 * t->edge + within % t->columns * 4 * t->channels;
}

/* Transform tiles to (36, count, channels): 6x6 pixels of padded images, or grad_output at 4x4 pixels. */
static void transform_tiles(const float *x, const struct tiles *t, int grads, num first, num count, float *to)
{
    const num edge = t->edge, channels = t->channels;
    for (num n = 0; n < count; n++)
        for (num c = 0; c < channels; c += LANES) {
            const float *at = x + corner(t, first + n) + c;
            float *dst = to + n * channels + c;
#define GET(i, j) load(at + i * edge + j * channels)
#define PUT(i, j, v) store(dst + (6 * i + j) * count * channels, v)
            if (grads)
                BOTH_AXES(output_axis_transposed, 4, 6, GET, PUT);
            else
                BOTH_AXES(image_axis, 6, 6, GET, PUT);
#undef GET
#undef PUT
        }
}

/* Transform outputs (36, count, channels) back to images. */
static void inverse_transform_outputs(const float *from, const struct tiles *t, num first, num count, const float *bias,
                                      float *y)
{
    const num edge = t->edge, channels = t->channels;
    for (num n = 0; n < count; n++)
        for (num c = 0; c < channels; c += LANES) {
            const float *at = from + n * channels + c;
            float *dst = y + corner(t, first + n) + c;
            const vec shift = bias ? load(bias + c) : (vec){0};
#define GET(i, j) load(at + (6 * i + j) * count * channels)
#define PUT(i, j, v) store(dst + i * edge + j * channels, v + shift)
            BOTH_AXES(output_axis, 6, 4, GET, PUT);
#undef GET
#undef PUT
        }
}

enum { ROWS = 4 }; /* of a block of sums: with two vectors across, the sums and operands fit 16 registers */

/* to (count, outputs) = rows (count, inputs) times matrix (inputs, outputs), for a multiple of 4 rows. */
static inline __attribute__((always_inline)) void product(const float *rows, const float *matrix, num count,
                                                          num inputs, num outputs, const int across, float *to)
{
    for (num n = 0; n < count; n += ROWS, rows += ROWS * inputs, to += ROWS * outputs) {
        vec sum[ROWS][2] = {{{0}}};
        const float *from = matrix;
        for (num k = 0; k < inputs; k++, from += outputs) {
            vec right[2];
            for (int j = 0; j < across; j++)
                right[j] = load(from + LANES * j);
            for (int i = 0; i < ROWS; i++) {
                const vec left = rows[i * inputs + k] - (vec){0};
                for (int j = 0; j < across; j++)
                    MULTIPLY_ADD(sum[i][j], left, right[j]);
            }
        }
        for (int i = 0; i < ROWS; i++)
            for (int j = 0; j < across; j++)
                store(to + i * outputs + LANES * j, sum[i][j]);
    }
}

/* to (inputs, outputs) += the transpose of left (count, inputs) times right (count, outputs). */
static inline __attribute__((always_inline)) void product_transposed(const float *left, const float *right, num count,
                                                                     num inputs, num outputs, const int across,
                                                                     float *to)
{
    for (num k = 0; k < inputs; k += ROWS, to += ROWS * outputs) {
        vec sum[ROWS][2] = {{{0}}};
        const float *a = left + k, *b = right;
        for (num n = 0; n < count; n++, a += inputs, b += outputs) {
            vec grad[2];
            for (int j = 0; j < across; j++)
                grad[j] = load(b + LANES * j);
            for (int i = 0; i < ROWS; i++) {
                const vec input = a[i] - (vec){0};
                for (int j = 0; j < across; j++)
                    MULTIPLY_ADD(sum[i][j], input, grad[j]);
            }
        }
        for (int i = 0; i < ROWS; i++)
            for (int j = 0; j < across; j++)
                store(to + i * outputs + LANES * j, load(to + i * outputs + LANES * j) + sum[i][j]);
    }
}

/* Process the outputs two vectors at a time; an odd last vector is processed alone. */
#define IN_PAIRS(outputs, o, call)                                                                                    \
    for (num o = 0; o < outputs; o += 2 * LANES) {                                                                    \
        if (o + LANES < outputs)                                                                                      \
            call(2);                                                                                                  \
        else                                                                                                          \
            call(1);                                                                                                  \
    }

/* Buffers for transformed kernels, inputs and outputs, and for padded images. */
struct buffers {
    float *kernel, *inputs, *outputs, *padded;
};

static int get_buffers(num height, num width, num inputs, num outputs, num group, struct buffers *buffers)
{
    const num kernel = POINTS * inputs * outputs, points = POINTS * (tiles_at_once(inputs, outputs) + ROWS);
    float *start = scratch(kernel + points * (inputs + outputs) + group * (height + 2) * (width + 2) * inputs);
    if (start) {
        buffers->kernel = start, buffers->inputs = start + kernel;
        buffers->outputs = buffers->inputs + points * inputs;
        buffers->padded = buffers->outputs + points * outputs;
    }
    return start != NULL;
}

/* y (images, height, width, outputs) from x (..., inputs) and the layer's kernel. With `transposed`, x is grad_output
   and y the gradient of the layer's input; `inputs` and `outputs` are then those of this transposed convolution.
   Returns 0 if out of memory. */
int NAME(convolve)(const float *x, const float *kernel, const float *bias, num images, num height, num width, num inputs,
             num outputs, int transposed, float *y)
{
    const struct tiles from = tiling(height, width, inputs, 1), into = tiling(height, width, outputs, 0);
    const num each = from.rows * from.columns, most = tiles_at_once(inputs, outputs), group = (most + each - 1) / each;
    struct buffers buffers;
    if (!get_buffers(height, width, inputs, outputs, group, &buffers))
        return 0;
    if (transposed)
        transform_kernel(kernel, outputs, inputs, 1, buffers.kernel);
    else
        transform_kernel(kernel, inputs, outputs, 0, buffers.kernel);
    for (num i = 0; i < images; i += group) {
        const num here = minimum(group, images - i), tiles = here * each;
        pad(x + i * height * width * inputs, here, height, width, inputs, buffers.padded);
        for (num first = 0; first < tiles; first += most) {
            /* Rows beyond the last tile hold arbitrary values and are never read. */
            const num count = minimum(most, tiles - first), whole = (count + ROWS - 1) / ROWS * ROWS;
            transform_tiles(buffers.padded, &from, 0, first, count, buffers.inputs);
            for (num p = 0; p < POINTS; p++) {
#define CALL(across)                                                                                                  \
    product(buffers.inputs + p * count * inputs, buffers.kernel + p * inputs * outputs + o, whole, inputs, outputs,   \
            across, buffers.outputs + p * count * outputs + o)
                IN_PAIRS(outputs, o, CALL)
#undef CALL
            }
            inverse_transform_outputs(buffers.outputs, &into, first, count, bias, y + i * height * width * outputs);
        }
    }
    return 1;
}

/* The gradients of the kernel, (outputs, 3, 3, inputs), and of the bias. Returns 0 if out of memory. */
int NAME(convolve_backward)(const float *x, const float *grad_output, num images, num height, num width, num inputs,
                      num outputs, float *grad_kernel, float *grad_bias)
{
    const struct tiles from = tiling(height, width, inputs, 1), at = tiling(height, width, outputs, 0);
    const num each = from.rows * from.columns, most = tiles_at_once(inputs, outputs), group = (most + each - 1) / each;
    const num pixels = height * width;
    struct buffers buffers;
    if (!get_buffers(height, width, inputs, outputs, group, &buffers))
        return 0;
    double totals[outputs];
    for (num o = 0; o < outputs; o++)
        totals[o] = 0;
    memset(buffers.kernel, 0, POINTS * inputs * outputs * sizeof *buffers.kernel);
    for (num i = 0; i < images; i += group) {
        const num here = minimum(group, images - i), tiles = here * each;
        const float *grads = grad_output + i * pixels * outputs;
        pad(x + i * pixels * inputs, here, height, width, inputs, buffers.padded);
        for (num o = 0; o < outputs; o += LANES) {
            vec sum = {0};
            for (num n = 0; n < here * pixels; n++)
                sum += load(grads + n * outputs + o);
            add(totals + o, sum);
        }
        for (num first = 0; first < tiles; first += most) {
            const num count = minimum(most, tiles - first);
            transform_tiles(buffers.padded, &from, 0, first, count, buffers.inputs);
            transform_tiles(grads, &at, 1, first, count, buffers.outputs);
            for (num p = 0; p < POINTS; p++) {
#define CALL(across)                                                                                                  \
    product_transposed(buffers.inputs + p * count * inputs, buffers.outputs + p * count * outputs + o, count, inputs, \
                       outputs, across, buffers.kernel + p * inputs * outputs + o)
                IN_PAIRS(outputs, o, CALL)
#undef CALL
            }
        }
    }
    kernel_grad(buffers.kernel, inputs, outputs, grad_kernel);
    for (num o = 0; o < outputs; o++)
        grad_bias[o] = totals[o];
    return 1;
}
