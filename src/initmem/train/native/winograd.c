/* 3x3 convolutions with 'same' padding, by the Winograd algorithm F(4x4, 3x3).

   The image is divided into tiles of 6x6 pixels that overlap by two. In the Winograd domain (polynomials evaluated at
   0, 1, -1, 2, -2 and infinity), convolving a tile with a kernel is an elementwise product: 36 multiplications for 4x4
   outputs instead of 144. Over all channels, these are 36 matrix products. Tiles are processed a few at a time, so that
   everything stays in the cache. Height and width must be multiples of 4.
*/
#include "vectors.h"

enum { POINTS = 36 }; /* per tile in the Winograd domain */

/* Floats from one point to the next: more than are used, or the 36 planes would evict each other from the cache. */
static inline num plane_of(num rows, num columns) { return rows * columns + 16; }

/* How many tiles are processed at a time: few, so that they stay in the cache, unless the kernel itself does not and has
   to be read again for every group of tiles. */
static num tiles_at_once(num inputs, num outputs) { return inputs * outputs > 16384 ? 64 : 16; }

/* The transforms of images, kernels and outputs along one axis. */
#define SIXTH (1 / 6.f) /* dividing would take longer than all else */

static inline void image_axis(const vec d[6], vec t[6])
{
    const vec p = d[4] - 4 * d[2], q = d[3] - 4 * d[1], r = d[4] - d[2], s = 2 * (d[3] - d[1]);
    t[0] = 4 * d[0] - 5 * d[2] + d[4], t[1] = p + q, t[2] = p - q;
    t[3] = r + s, t[4] = r - s, t[5] = 4 * d[1] - 5 * d[3] + d[5];
}

static inline void kernel_axis(const vec g[3], vec t[6])
{
    const vec p = (g[0] + g[2]) * -SIXTH, q = g[1] * SIXTH, r = g[0] * (SIXTH / 4) + g[2] * SIXTH, s = g[1] * (SIXTH / 2);
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
    const vec p = (m[1] + m[2]) * SIXTH, q = (m[2] - m[1]) * SIXTH, r = (m[3] + m[4]) * SIXTH, s = (m[3] - m[4]) * SIXTH;
    t[0] = m[0] / 4 - p + r / 4, t[1] = q + s / 2, t[2] = r - p + m[5];
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
    const num plane = plane_of(inputs, outputs), step = 9 * inputs;
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
    const num plane = plane_of(inputs, outputs), step = 9 * inputs;
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

/* The tiles of images (images, height, width, channels): how many there are in one image, floats in a row of pixels, and
   whether images are written past the cache. */
struct tiles {
    num rows, columns, edge, channels;
    int past;
};

static struct tiles tiling(num height, num width, num channels)
{
    return (struct tiles){height / 4, width / 4, width * channels, channels, 0};
}

/* The offset of the first of 4x4 pixels of a tile. */
static inline num corner(const struct tiles *t, num tile)
{
    return tile / t->columns * 4 * t->edge + tile % t->columns * 4 * t->channels;
}

/* Fetch the 4x4 pixels of a later tile from memory: they lie in four rows, which hardware does not prefetch in time. */
static inline __attribute__((always_inline)) void prefetch(const float *x, const struct tiles *t, num tile)
{
    enum { AHEAD = 16 }; /* tiles */
    const float *at = x + corner(t, tile + AHEAD);
    for (num i = 0; i < 4; i++)
        for (num c = 0; c < 4 * t->channels; c += 16)
            __builtin_prefetch(at + i * t->edge + c);
}

/* Transform tiles of 6x6 pixels, with zeros around the images, to (36, count, channels). With `panel` fewer than all
   channels, these are one after another: (channels / panel, 36, count, panel). */
static void transform_tiles(const float *x, const struct tiles *t, num first, num count, num panel, float *to)
{
    const num plane = plane_of(count, panel), edge = t->edge, channels = t->channels;
    for (num tile = first; tile < first + count; tile++, to += panel) {
        const num row = tile / t->columns % t->rows, column = tile % t->columns;
        const int top = row == 0, bottom = row == t->rows - 1, left = column == 0, right = column == t->columns - 1;
        prefetch(x, t, tile);
        for (num c = 0; c < channels; c += LANES) {
            const float *at = x + corner(t, tile) + c;
            float *dst = to + c / panel * POINTS * plane + c % panel;
#define OUTSIDE(i, j) ((i == 0 && top) || (i == 5 && bottom) || (j == 0 && left) || (j == 5 && right))
#define GET(i, j) (OUTSIDE(i, j) ? (vec){0} : load(at + (i - 1) * edge + (j - 1) * channels))
#define PUT(i, j, v) store(dst + (6 * i + j) * plane, v)
            BOTH_AXES(image_axis, 6, 6, GET, PUT);
#undef GET
#undef OUTSIDE
        }
    }
}

/* The same for grad_output at tiles of 4x4 pixels. */
static void transform_grads(const float *grads, const struct tiles *t, num first, num count, num panel, float *to)
{
    const num plane = plane_of(count, panel), edge = t->edge, channels = t->channels;
    for (num tile = first; tile < first + count; tile++, to += panel) {
        prefetch(grads, t, tile);
        for (num c = 0; c < channels; c += LANES) {
            const float *at = grads + corner(t, tile) + c;
            float *dst = to + c / panel * POINTS * plane + c % panel;
#define GET(i, j) load(at + i * edge + j * channels)
            BOTH_AXES(output_axis_transposed, 4, 6, GET, PUT);
#undef GET
#undef PUT
        }
    }
}

/* Transform outputs (36, count, channels) back to images. */
static void inverse_transform_outputs(const float *from, const struct tiles *t, num first, num count, const float *bias,
                                      float *y)
{
    const num plane = plane_of(count, t->channels), edge = t->edge, channels = t->channels;
    for (num n = 0; n < count; n++)
        for (num c = 0; c < channels; c += LANES) {
            const float *at = from + n * channels + c;
            float *dst = y + corner(t, first + n) + c;
            const vec shift = bias ? load(bias + c) : (vec){0};
#define GET(i, j) load(at + (6 * i + j) * plane)
#define PUT(i, j, v) (t->past ? stream : store)(dst + i * edge + j * channels, v + shift)
            BOTH_AXES(output_axis, 6, 4, GET, PUT);
#undef GET
#undef PUT
        }
}

/* to (count, outputs) = rows (count, inputs) times matrix (inputs, outputs), for a multiple of ROWS. */
static inline __attribute__((always_inline)) void product(const float *rows, const float *matrix, num count,
                                                          num inputs, num outputs, const int across, float *to)
{
    for (num n = 0; n < count; n += ROWS, rows += ROWS * inputs, to += ROWS * outputs) {
        vec sum[ROWS][2] = {{{0}}};
        multiply(rows, inputs, 1, matrix, outputs, inputs, ROWS, across, sum);
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
        multiply(left + k, 1, inputs, right, outputs, count, ROWS, across, sum);
        for (int i = 0; i < ROWS; i++)
            for (int j = 0; j < across; j++)
                store(to + i * outputs + LANES * j, load(to + i * outputs + LANES * j) + sum[i][j]);
    }
}

/* `count` rows of each product, of which a multiple of 4 is computed. */
ALONE products(const float *rows, const float *kernel, num count, num inputs, num outputs, float *to)
{
    const num whole = (count + ROWS - 1) / ROWS * ROWS;
    const num in = plane_of(count, inputs), each = plane_of(inputs, outputs), out = plane_of(count, outputs);
    for (num p = 0; p < POINTS; p++, rows += in, kernel += each, to += out) {
#define CALL(across) product(rows, kernel + o, whole, inputs, outputs, across, to + o)
        IN_PAIRS(outputs, o, CALL)
#undef CALL
    }
}

ALONE products_transposed(const float *left, const float *right, num count, num inputs, num outputs, float *to)
{
    const num in = plane_of(count, inputs), each = plane_of(inputs, outputs), out = plane_of(count, outputs);
    for (num p = 0; p < POINTS; p++, left += in, right += out, to += each) {
#define CALL(across) product_transposed(left, right + o, count, inputs, outputs, across, to + o)
        IN_PAIRS(outputs, o, CALL)
#undef CALL
    }
}

/* Buffers for transformed kernels, inputs and outputs. */
struct buffers {
    float *kernel, *inputs, *outputs;
};

static int get_buffers(num inputs, num outputs, struct buffers *buffers)
{
    const num kernel = POINTS * plane_of(inputs, outputs), most = tiles_at_once(inputs, outputs) + ROWS;
    const num in = POINTS * plane_of(most, inputs), out = POINTS * plane_of(most, outputs);
    float *start = scratch(kernel + in + out);
    if (start) {
        buffers->kernel = start, buffers->inputs = start + kernel;
        buffers->outputs = buffers->inputs + in;
    }
    return start != NULL;
}

/* Large kernels on few tiles. Once transformed, such a kernel is four times as large and fits no cache, so that writing and
   reading it takes longer than the products. It is therefore transformed block by block, and each block is used while it
   is in the cache. The vectors hold tiles, so that a kernel is read and written along its inputs, as it lies in memory. */
enum { LARGE = 128 * 128, LARGE_GRAD = 64 * 64 }; /* inputs x outputs, for a convolution and for its gradient */
enum { FEW = 128, AT_ONCE = 64 };                 /* tiles; tiles at a time */
enum { BLOCK = 32, DEPTH = 64 };                  /* of a block: outputs and inputs of the convolution */
enum { PLANE = BLOCK * DEPTH + 16 }; /* not a power of two, or the 36 planes of a block would evict each other */

static int is_large(num images, num height, num width, num inputs, num outputs, num least)
{
    const num tiles = images * height * width / 16, size = inputs * outputs;
    return size >= least && tiles <= FEW && 256 * tiles <= size && inputs % BLOCK == 0 && outputs % BLOCK == 0;
}

/* From (36, count, channels) to (36, channels, wide), with zeros beyond the count. */
static void tiles_last(const float *from, num count, num channels, num wide, float *to)
{
    for (num p = 0; p < POINTS; p++, from += plane_of(count, channels), to += channels * wide)
        for (num c = 0; c < channels; c += LANES)
            for (num n = 0; n < wide; n++) {
                const vec v = n < count ? load(from + n * channels + c) : (vec){0};
                for (int lane = 0; lane < LANES; lane++)
                    to[(c + lane) * wide + n] = v[lane];
            }
}

/* From (36, channels, wide) to (36, count, channels). */
static void channels_last(const float *from, num count, num channels, num wide, float *to)
{
    for (num p = 0; p < POINTS; p++, from += channels * wide, to += plane_of(count, channels))
        for (num c = 0; c < channels; c += LANES)
            for (num n = 0; n < count; n++)
                store(to + n * channels + c, gather(from + c * wide + n, wide));
}

/* Transform a block of a kernel that is stored as (rows, 3, 3, channels): `columns` of its channels, to 36 planes of
   (rows, columns). For the gradient of the input, rotate it by 180 degrees. */
static void transform_block(const float *kernel, num channels, num rows, num columns, int rotated, float *to)
{
    enum { ROWS_AHEAD = 4 };
    for (num o = 0; o < rows; o++)
        for (num k = 0; k < columns; k += LANES) {
            const float *at = kernel + o * 9 * channels + k;
            float *dst = to + o * columns + k;
            for (int i = 0; i < 9; i++) /* hardware does not prefetch lines that lie so far apart */
                __builtin_prefetch(at + (9 * ROWS_AHEAD + i) * channels);
#define GET(i, j) load(at + (rotated ? 8 - 3 * i - j : 3 * i + j) * channels)
#define PUT(i, j, v) store(dst + (6 * i + j) * PLANE, v)
            BOTH_AXES(kernel_axis, 3, 6, GET, PUT);
#undef GET
#undef PUT
        }
}

/* sums (BLOCK, wide) = a plane (BLOCK, depth), or (depth, BLOCK) if transposed, times tiles (depth, wide); with `add`, it
   is added. */
static inline __attribute__((always_inline)) void plane_product(const float *plane, const float *tiles, num depth,
                                                                num wide, const int transposed, const int across,
                                                                int add, float *sums)
{
    enum { HIGH = LANES / 2 }; /* with two vectors across, the sums fill half of the registers */
    const num row = transposed ? 1 : depth, next = transposed ? BLOCK : 1;
    for (num o = 0; o < BLOCK; o += HIGH)
        for (num n = 0; n < wide; n += across * LANES) {
            vec sum[HIGH][2] = {{{0}}};
            float *to = sums + o * wide + n;
            multiply(plane + o * row, row, next, tiles + n, wide, depth, HIGH, across, sum);
            for (int i = 0; i < HIGH; i++)
                for (int j = 0; j < across; j++)
                    store(to + i * wide + LANES * j, (add ? load(to + i * wide + LANES * j) : (vec){0}) + sum[i][j]);
        }
}

/* The same for all planes. */
ALONE block_product(const float *block, const float *tiles, num inputs, num outputs, num depth, num wide, int transposed,
                    int add, float *sums)
{
    for (num p = 0; p < POINTS; p++, block += PLANE, tiles += inputs * wide, sums += outputs * wide) {
#define CALL(transposed, across) plane_product(block, tiles, depth, wide, transposed, across, add, sums)
        if (wide % (2 * LANES))
            transposed ? CALL(1, 1) : CALL(0, 1);
        else
            transposed ? CALL(1, 2) : CALL(0, 2);
#undef CALL
    }
}

static int convolve_large(const float *x, const float *kernel, const float *bias, num images, num height, num width,
                          num inputs, num outputs, int transposed, float *y)
{
    const struct tiles from = tiling(height, width, inputs), into = tiling(height, width, outputs);
    const num each = from.rows * from.columns, group = minimum(images, (AT_ONCE + each - 1) / each);
    const num most = (group * each + LANES - 1) / LANES * LANES, larger_side = inputs > outputs ? inputs : outputs;
    float *tiles = scratch(POINTS * (PLANE + plane_of(most, larger_side) + most * (inputs + outputs)));
    if (!tiles)
        return 0;
    float *turned = tiles + POINTS * plane_of(most, larger_side), *sums = turned + POINTS * most * inputs;
    float *block = sums + POINTS * most * outputs;
    for (num i = 0; i < images; i += group) {
        const num here = minimum(group, images - i), count = here * each, wide = (count + LANES - 1) / LANES * LANES;
        transform_tiles(x + i * height * width * inputs, &from, 0, count, inputs, tiles);
        tiles_last(tiles, count, inputs, wide, turned);
        for (num o = 0; o < outputs; o += BLOCK)
            for (num k = 0; k < inputs; k += DEPTH) {
                const num depth = minimum(DEPTH, inputs - k);
                if (transposed)
                    transform_block(kernel + k * 9 * outputs + o, outputs, depth, BLOCK, 1, block);
                else
                    transform_block(kernel + o * 9 * inputs + k, inputs, BLOCK, depth, 0, block);
                block_product(block, turned + k * wide, inputs, outputs, depth, wide, transposed, k > 0, sums + o * wide);
            }
        channels_last(sums, count, outputs, wide, tiles);
        inverse_transform_outputs(tiles, &into, 0, count, bias, y + i * height * width * outputs);
    }
    return 1;
}

/* to (36, ROWS, 2 vectors) = sums over tiles of ROWS of the outputs (36, count, BLOCK) times inputs (36, count, 2 vectors). */
ALONE tile_sums(const float *outputs, const float *inputs, num count, float *to)
{
    for (num p = 0; p < POINTS; p++, outputs += plane_of(count, BLOCK), inputs += plane_of(count, 2 * LANES)) {
        vec sum[ROWS][2] = {{{0}}};
        multiply(outputs, 1, BLOCK, inputs, 2 * LANES, count, ROWS, 2, sum);
        for (int i = 0; i < ROWS; i++)
            for (int j = 0; j < 2; j++, to += LANES)
                store(to, sum[i][j]);
    }
}

/* The gradient of a large kernel on few tiles: a few outputs and two vectors of inputs at a time, transformed back at once. */
static int large_kernel_grad(const float *x, const float *grads, num images, num height, num width, num inputs,
                             num outputs, float *to)
{
    const struct tiles from = tiling(height, width, inputs), at = tiling(height, width, outputs);
    const num count = images * from.rows * from.columns;
    const num left = POINTS * plane_of(count, BLOCK), wide = POINTS * plane_of(count, 2 * LANES);
    float *rows = scratch(outputs / BLOCK * left + inputs / (2 * LANES) * wide + POINTS * ROWS * 2 * LANES);
    if (!rows)
        return 0;
    float *right = rows + outputs / BLOCK * left, *block = right + inputs / (2 * LANES) * wide;
    transform_tiles(x, &from, 0, count, 2 * LANES, right);
    transform_grads(grads, &at, 0, count, BLOCK, rows);
    for (num first = 0; first < outputs; first += BLOCK)
        for (num k = 0; k < inputs; k += 2 * LANES)
            for (num o = first; o < first + BLOCK; o += ROWS) {
                tile_sums(rows + first / BLOCK * left + o - first, right + k / (2 * LANES) * wide, count, block);
                for (int i = 0; i < ROWS; i++)
                    for (int j = 0; j < 2; j++) {
                        const float *source = block + (i * 2 + j) * LANES;
                        float *dst = to + (o + i) * 9 * inputs + k + j * LANES;
#define GET(a, b) load(source + (6 * a + b) * ROWS * 2 * LANES)
#define PUT(a, b, v) store(dst + (3 * a + b) * inputs, v)
                        BOTH_AXES(kernel_axis_transposed, 6, 3, GET, PUT);
#undef GET
#undef PUT
                    }
            }
    return 1;
}

/* y (images, height, width, outputs) from x (..., inputs) and the layer's kernel. With `transposed`, x is grad_output
   and y the gradient of the layer's input; `inputs` and `outputs` are then those of this transposed convolution.
   Returns 0 if out of memory. */
int NAME(convolve)(const float *x, const float *kernel, const float *bias, num images, num height, num width, num inputs,
             num outputs, int transposed, float *y)
{
    if (inputs < 8)
        return few_channels_convolve(x, kernel, bias, images, height, width, inputs, outputs, y);
    if (is_large(images, height, width, inputs, outputs, LARGE))
        return convolve_large(x, kernel, bias, images, height, width, inputs, outputs, transposed, y);
    const struct tiles from = tiling(height, width, inputs);
    struct tiles into = tiling(height, width, outputs);
    into.past = past_cache(y, images * height * width * outputs);
    const num tiles = images * from.rows * from.columns, most = tiles_at_once(inputs, outputs);
    struct buffers buffers;
    if (!get_buffers(inputs, outputs, &buffers))
        return 0;
    if (transposed)
        transform_kernel(kernel, outputs, inputs, 1, buffers.kernel);
    else
        transform_kernel(kernel, inputs, outputs, 0, buffers.kernel);
    for (num first = 0; first < tiles; first += most) {
        const num count = minimum(most, tiles - first);
        transform_tiles(x, &from, first, count, inputs, buffers.inputs);
        /* Rows beyond the last tile hold arbitrary values and are never read. */
        products(buffers.inputs, buffers.kernel, count, inputs, outputs, buffers.outputs);
        inverse_transform_outputs(buffers.outputs, &into, first, count, bias, y);
    }
    return 1;
}

static void bias_grad(const float *grad_output, num pixels, num outputs, float *to)
{
    double totals[outputs];
    for (num o = 0; o < outputs; o++)
        totals[o] = 0;
    for (num first = 0; first < pixels; first += CHUNK, grad_output += CHUNK * outputs)
        for (num o = 0; o < outputs; o += LANES) {
            vec sum = {0};
            for (num n = 0; n < minimum(CHUNK, pixels - first); n++)
                sum += load(grad_output + n * outputs + o);
            add(totals + o, sum);
        }
    for (num o = 0; o < outputs; o++)
        to[o] = totals[o];
}

/* The gradients of the kernel, (outputs, 3, 3, inputs), and of the bias. Returns 0 if out of memory. */
int NAME(convolve_backward)(const float *x, const float *grad_output, num images, num height, num width, num inputs,
                      num outputs, float *grad_kernel, float *grad_bias)
{
    const num pixels = height * width;
    bias_grad(grad_output, images * pixels, outputs, grad_bias);
    if (inputs < 8)
        return few_channels_kernel_grad(x, grad_output, images, height, width, inputs, outputs, grad_kernel);
    if (is_large(images, height, width, inputs, outputs, LARGE_GRAD))
        return large_kernel_grad(x, grad_output, images, height, width, inputs, outputs, grad_kernel);
    const struct tiles from = tiling(height, width, inputs), at = tiling(height, width, outputs);
    const num tiles = images * from.rows * from.columns, most = tiles_at_once(inputs, outputs);
    struct buffers buffers;
    if (!get_buffers(inputs, outputs, &buffers))
        return 0;
    memset(buffers.kernel, 0, POINTS * plane_of(inputs, outputs) * sizeof *buffers.kernel);
    for (num first = 0; first < tiles; first += most) {
        const num count = minimum(most, tiles - first);
        transform_tiles(x, &from, first, count, inputs, buffers.inputs);
        transform_grads(grad_output, &at, first, count, outputs, buffers.outputs);
        products_transposed(buffers.inputs, buffers.outputs, count, inputs, outputs, buffers.kernel);
    }
    kernel_grad(buffers.kernel, inputs, outputs, grad_kernel);
    return 1;
}
