/* 3x3 convolutions with 'same' padding, by Winograd's F(4x4, 3x3).

   The image is cut into tiles of 6x6 places that overlap by two. In the basis of polynomials at the points 0, 1,
   -1, 2, -2 and infinity, convolving a tile with a kernel is a product place by place: 36 multiplications for 4x4
   outputs instead of 144. With all channels, these are 36 matrix products. Tiles are taken a few at a time, so that
   all stays in the cache. Sides are multiples of 4.
*/
#include "vectors.h"

enum {
    POINTS = 36, /* of a tile in the basis */
    TILES = 16,  /* at a time */
};

/* What each change of basis does along one axis. */
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

/* The transposes of the last two: for gradients. */
static inline void kernel_back(const vec m[6], vec t[3])
{
    const vec p = (m[1] + m[2]) / 6, q = (m[2] - m[1]) / 6, r = m[3] + m[4], s = m[3] - m[4];
    t[0] = m[0] / 4 - p + r / 24, t[1] = q + s / 12, t[2] = r / 6 - p + m[5];
}

static inline void output_back(const vec s[4], vec t[6])
{
    const vec p = s[0] + s[2], q = s[1] + s[3], r = s[0] + 4 * s[2], u = 2 * s[1] + 8 * s[3];
    t[0] = s[0], t[1] = p + q, t[2] = p - q, t[3] = r + u, t[4] = r - u, t[5] = s[3];
}

/* Both axes of one vector of channels: `from` x `from` numbers to `into` x `into`. */
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

/* A kernel (outputs, 3, 3, inputs) in the basis: (36, inputs, outputs). Or, to find the gradient of the input, turned
   around: (36, outputs, inputs). */
static void kernel_basis(const float *kernel, num inputs, num outputs, int turn, float *to)
{
    const num plane = inputs * outputs, step = 9 * inputs;
#define PUT(i, j, v) store(place + (6 * i + j) * plane, v)
    for (num o = 0; turn && o < outputs; o++)
        for (num k = 0; k < inputs; k += LANES) {
            const float *at = kernel + o * step + k;
            float *place = to + o * inputs + k;
#define GET(i, j) load(at + (8 - 3 * i - j) * inputs)
            BOTH_AXES(kernel_axis, 3, 6, GET, PUT);
#undef GET
        }
    for (num k = 0; !turn && k < inputs; k++)
        for (num o = 0; o < outputs; o += LANES) {
            const float *at = kernel + o * step + k;
            float *place = to + k * outputs + o;
#define AT(lane, i, j) at[lane * step + (3 * i + j) * inputs]
#define GET(i, j) (vec){AT(0, i, j), AT(1, i, j), AT(2, i, j), AT(3, i, j), AT(4, i, j), AT(5, i, j), AT(6, i, j), AT(7, i, j)}
            BOTH_AXES(kernel_axis, 3, 6, GET, PUT);
#undef GET
#undef AT
        }
#undef PUT
}

/* The gradient of a kernel, from the basis back to (outputs, 3, 3, inputs). */
static void kernel_from_basis(const float *sums, num inputs, num outputs, float *to)
{
    const num plane = inputs * outputs, step = 9 * inputs;
    for (num k = 0; k < inputs; k++)
        for (num o = 0; o < outputs; o += LANES) {
            const float *at = sums + k * outputs + o;
            float *place = to + o * step + k;
#define GET(i, j) load(at + (6 * i + j) * plane)
#define PUT(i, j, v)                                                                                                  \
    for (int lane = 0; lane < LANES; lane++)                                                                          \
    place[lane * step + (3 * i + j) * inputs] = (v)[lane]
            BOTH_AXES(kernel_back, 6, 3, GET, PUT);
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

/* Tiles of images (images, height, width, channels) whose places reach `margin` beyond their sides. */
struct tiles {
    num rows, columns, edge, image, channels;
};

static struct tiles cut(num height, num width, num channels, num margin)
{
    const num edge = (width + 2 * margin) * channels;
    return (struct tiles){height / 4, width / 4, edge, (height + 2 * margin) * edge, channels};
}

/* Where the first place of a tile is. */
static inline num corner(const struct tiles *t, num tile)
{
    const num each = t->rows * t->columns, within = tile % each;
    return tile / each * t->image + within / t->columns * 4 * t->edge + within % t->columns * 4 * t->channels;
}

/* Tiles in the basis, (36, few, channels): 6x6 places of padded images, or the slopes at 4x4 outputs. */
static void into_basis(const float *x, const struct tiles *t, int slopes, num first, num few, float *to)
{
    const num edge = t->edge, channels = t->channels;
    for (num n = 0; n < few; n++)
        for (num c = 0; c < channels; c += LANES) {
            const float *at = x + corner(t, first + n) + c;
            float *place = to + n * channels + c;
#define GET(i, j) load(at + i * edge + j * channels)
#define PUT(i, j, v) store(place + (6 * i + j) * few * channels, v)
            if (slopes)
                BOTH_AXES(output_back, 4, 6, GET, PUT);
            else
                BOTH_AXES(image_axis, 6, 6, GET, PUT);
#undef GET
#undef PUT
        }
}

/* Outputs (36, few, channels) from the basis back to images. */
static void outputs_from_basis(const float *from, const struct tiles *t, num first, num few, const float *bias, float *y)
{
    const num edge = t->edge, channels = t->channels;
    for (num n = 0; n < few; n++)
        for (num c = 0; c < channels; c += LANES) {
            const float *at = from + n * channels + c;
            float *place = y + corner(t, first + n) + c;
            const vec summand = bias ? load(bias + c) : (vec){0};
#define GET(i, j) load(at + (6 * i + j) * few * channels)
#define PUT(i, j, v) store(place + i * edge + j * channels, v + summand)
            BOTH_AXES(output_axis, 6, 4, GET, PUT);
#undef GET
#undef PUT
        }
}

enum { ROWS = 4 }; /* of a block of sums: with two vectors across, these and what is multiplied fit 16 registers */

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
static inline __attribute__((always_inline)) void product_back(const float *left, const float *right, num count,
                                                               num inputs, num outputs, const int across, float *to)
{
    for (num k = 0; k < inputs; k += ROWS, to += ROWS * outputs) {
        vec sum[ROWS][2] = {{{0}}};
        const float *a = left + k, *b = right;
        for (num n = 0; n < count; n++, a += inputs, b += outputs) {
            vec slopes[2];
            for (int j = 0; j < across; j++)
                slopes[j] = load(b + LANES * j);
            for (int i = 0; i < ROWS; i++) {
                const vec input = a[i] - (vec){0};
                for (int j = 0; j < across; j++)
                    MULTIPLY_ADD(sum[i][j], input, slopes[j]);
            }
        }
        for (int i = 0; i < ROWS; i++)
            for (int j = 0; j < across; j++)
                store(to + i * outputs + LANES * j, load(to + i * outputs + LANES * j) + sum[i][j]);
    }
}

/* In vectors of two, and a last one alone where they are odd. */
#define IN_PAIRS(outputs, o, call)                                                                                    \
    for (num o = 0; o < outputs; o += 2 * LANES) {                                                                    \
        if (o + LANES < outputs)                                                                                      \
            call(2);                                                                                                  \
        else                                                                                                          \
            call(1);                                                                                                  \
    }

/* Room for what is in the basis. */
struct room {
    float *kernel, *inputs, *outputs, *padded;
};

static int take_room(num height, num width, num inputs, num outputs, num group, struct room *found)
{
    const num kernel = POINTS * inputs * outputs, few = POINTS * (TILES + ROWS);
    float *kept = keep(kernel + few * (inputs + outputs) + group * (height + 2) * (width + 2) * inputs);
    if (kept) {
        found->kernel = kept, found->inputs = kept + kernel;
        found->outputs = found->inputs + few * inputs, found->padded = found->outputs + few * outputs;
    }
    return kept != NULL;
}

/* y (images, height, width, outputs) from x (..., inputs) and the layer's kernel. With `turn`: the gradient of the
   layer's input from the slopes at its outputs; inputs and outputs are then those of this convolution.
   Gives 0 when there is no memory. */
int convolve(const float *x, const float *kernel, const float *bias, num images, num height, num width, num inputs,
             num outputs, int turn, float *y)
{
    const struct tiles from = cut(height, width, inputs, 1), into = cut(height, width, outputs, 0);
    const num each = from.rows * from.columns, group = each < TILES ? TILES / each : 1;
    struct room room;
    if (!take_room(height, width, inputs, outputs, group, &room))
        return 0;
    if (turn)
        kernel_basis(kernel, outputs, inputs, 1, room.kernel);
    else
        kernel_basis(kernel, inputs, outputs, 0, room.kernel);
    for (num i = 0; i < images; i += group) {
        const num here = least(group, images - i), tiles = here * each;
        pad(x + i * height * width * inputs, here, height, width, inputs, room.padded);
        for (num first = 0; first < tiles; first += TILES) {
            /* What is beyond the last tile is whatever is there: nobody looks at it. */
            const num few = least(TILES, tiles - first), whole = (few + ROWS - 1) / ROWS * ROWS;
            into_basis(room.padded, &from, 0, first, few, room.inputs);
            for (num p = 0; p < POINTS; p++) {
#define CALL(across)                                                                                                  \
    product(room.inputs + p * few * inputs, room.kernel + p * inputs * outputs + o, whole, inputs, outputs, across,   \
            room.outputs + p * few * outputs + o)
                IN_PAIRS(outputs, o, CALL)
#undef CALL
            }
            outputs_from_basis(room.outputs, &into, first, few, bias, y + i * height * width * outputs);
        }
    }
    return 1;
}

/* The gradient of the kernel, (outputs, 3, 3, inputs), and of the bias. Gives 0 when there is no memory. */
int convolve_back(const float *x, const float *slope, num images, num height, num width, num inputs, num outputs,
                  float *for_kernel, float *for_bias)
{
    const struct tiles from = cut(height, width, inputs, 1), at = cut(height, width, outputs, 0);
    const num each = from.rows * from.columns, group = each < TILES ? TILES / each : 1, places = height * width;
    struct room room;
    if (!take_room(height, width, inputs, outputs, group, &room))
        return 0;
    double totals[outputs];
    for (num o = 0; o < outputs; o++)
        totals[o] = 0;
    memset(room.kernel, 0, POINTS * inputs * outputs * sizeof *room.kernel);
    for (num i = 0; i < images; i += group) {
        const num here = least(group, images - i), tiles = here * each;
        const float *slopes = slope + i * places * outputs;
        pad(x + i * places * inputs, here, height, width, inputs, room.padded);
        for (num o = 0; o < outputs; o += LANES) {
            vec sum = {0};
            for (num n = 0; n < here * places; n++)
                sum += load(slopes + n * outputs + o);
            add(totals + o, sum);
        }
        for (num first = 0; first < tiles; first += TILES) {
            const num few = least(TILES, tiles - first);
            into_basis(room.padded, &from, 0, first, few, room.inputs);
            into_basis(slopes, &at, 1, first, few, room.outputs);
            for (num p = 0; p < POINTS; p++) {
#define CALL(across)                                                                                                  \
    product_back(room.inputs + p * few * inputs, room.outputs + p * few * outputs + o, few, inputs, outputs, across,  \
                 room.kernel + p * inputs * outputs + o)
                IN_PAIRS(outputs, o, CALL)
#undef CALL
            }
        }
    }
    kernel_from_basis(room.kernel, inputs, outputs, for_kernel);
    for (num o = 0; o < outputs; o++)
        for_bias[o] = totals[o];
    return 1;
}
