/* What a step spends time on beside matrix products, for one network on one core: float32, channels last.

   The compiler turns `vec` into the registers of the processor. Sums over a batch are made of short sums in
   float32, added up in float64.
*/
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef float vec __attribute__((vector_size(32), aligned(4)));
typedef int mask __attribute__((vector_size(32), aligned(4)));
typedef long num;

enum {
    LANES = 8,    /* numbers in a vec */
    CHUNK = 64,   /* places added up in float32 */
    POINTS = 36,  /* of a tile in Winograd's basis */
    TILES = 16,   /* at a time */
};

static inline vec load(const float *p) { return *(const vec *)p; }
static inline void store(float *p, vec v) { *(vec *)p = v; }
static inline vec where(mask which, vec yes) { return (vec)(which & (mask)yes); }
static inline vec choose(mask which, vec yes, vec no) { return (vec)((which & (mask)yes) | (~which & (mask)no)); }
/* Both pass on what is not a number: a run that diverges must show it. */
static inline vec larger(vec a, vec b) { return choose((a >= b) | (a != a), a, b); }
static inline vec relu(vec v) { return where(~(v < 0), v); }

static inline num least(num a, num b) { return a < b ? a : b; }

static void add(double *sums, vec v)
{
    for (int i = 0; i < LANES; i++)
        sums[i] += v[i];
}

/* Room for so many numbers, the same from call to call so that it stays in the cache; NULL when there is none. */
static float *keep(num needed)
{
    static _Thread_local float *kept;
    static _Thread_local num size;
    if (needed > size) {
        free(kept);
        kept = malloc(needed * sizeof *kept);
        size = kept ? needed : 0;
    }
    return kept;
}

/* ---- Batch normalization, 2x2 max pooling where asked, and ReLU ---- */

/* Mean and biased variance of every channel. One pass is enough, since the squares are of distances to a value
   in the midst of the data: the mean of the first places. */
static void statistics(const float *x, num places, num channels, double *mean, double *variance)
{
    float about[channels];
    for (num c = 0; c < channels; c += LANES) {
        const num few = least(places, CHUNK);
        vec sum = {0};
        for (num p = 0; p < few; p++)
            sum += load(x + p * channels + c);
        store(about + c, sum / (float)few);
    }
    for (num c = 0; c < channels; c++)
        mean[c] = variance[c] = 0;
    for (num start = 0; start < places; start += CHUNK)
        for (num c = 0; c < channels; c += LANES) {
            const num end = least(start + CHUNK, places);
            const vec middle = load(about + c);
            vec sum = {0}, square = {0};
            for (num p = start; p < end; p++) {
                const vec off = load(x + p * channels + c) - middle;
                sum += off, square += off * off;
            }
            add(mean + c, sum), add(variance + c, square);
        }
    for (num c = 0; c < channels; c++) {
        const double off = mean[c] / places, spread = variance[c] / places - off * off;
        mean[c] = about[c] + off;
        variance[c] = spread < 0 ? 0 : spread;
    }
}

/* Replicas lie side by side in lanes, the last of which may be empty: channel c of replica r is c * lanes + r here,
   and r * channels + c in a variable. One network alone is one replica in one lane. */
struct pack {
    num replicas, lanes;
};

/* Where a channel is in a variable; -1 in an empty lane. */
static inline num in_variable(struct pack pack, num channels, num c)
{
    const num lane = c % pack.lanes;
    return lane < pack.replicas ? lane * (channels / pack.lanes) + c / pack.lanes : -1;
}

/* The line y = scale * x + shift of every channel; that of an empty lane is zero. */
static void lines(num channels, struct pack pack, const float *gamma, const float *beta, double epsilon,
                  const double *mean, const double *variance, float *rate, float *scale, float *shift)
{
    for (num c = 0; c < channels; c++) {
        const double inverse = 1 / sqrt(variance[c] + epsilon);
        const num v = in_variable(pack, channels, c);
        rate[c] = inverse;
        scale[c] = v < 0 ? 0 : gamma[v] * inverse;
        shift[c] = v < 0 ? 0 : beta[v] - mean[c] * gamma[v] * inverse;
    }
}

static void follow(const float *x, num images, num height, num width, num channels, int pool, const float *scale,
                   const float *shift, float *y)
{
    const num row = width * channels;
    if (!pool) {
        for (num p = 0; p < images * height * width; p++)
            for (num c = 0; c < channels; c += LANES, x += LANES, y += LANES)
                store(y, relu(load(x) * load(scale + c) + load(shift + c)));
        return;
    }
    for (num pair = 0; pair < images * height / 2; pair++, x += row)
        for (num column = 0; column < width; column += 2, x += channels)
            for (num c = 0; c < channels; c += LANES, x += LANES, y += LANES) {
                const vec a = load(scale + c), b = load(shift + c);
                const vec above = larger(load(x) * a + b, load(x + channels) * a + b);
                const vec below = larger(load(x + row) * a + b, load(x + row + channels) * a + b);
                store(y, relu(larger(above, below)));
            }
}

/* In training. Also gives the batch's mean and unbiased variance; `saved` are 4 rows for `normalise_back`. */
void normalise(const float *x, num images, num height, num width, num channels, num replicas, num lanes, int pool,
               const float *gamma, const float *beta, double epsilon, float *batch_mean, float *batch_variance,
               float *saved, float *y)
{
    const struct pack pack = {replicas, lanes};
    const num places = images * height * width;
    double mean[channels], variance[channels];
    float *rate = saved + channels, *scale = rate + channels, *shift = scale + channels;
    statistics(x, places, channels, mean, variance);
    lines(channels, pack, gamma, beta, epsilon, mean, variance, rate, scale, shift);
    for (num c = 0; c < channels; c++) {
        const num v = in_variable(pack, channels, c);
        saved[c] = mean[c];
        if (v >= 0) {
            batch_mean[v] = mean[c];
            batch_variance[v] = variance[c] * places / (places > 1 ? places - 1 : 1);
        }
    }
    follow(x, images, height, width, channels, pool, scale, shift, y);
}

/* In evaluation, with the moving statistics. */
void normalise_fixed(const float *x, num images, num height, num width, num channels, num replicas, num lanes,
                     int pool, const float *gamma, const float *beta, double epsilon, const float *mean,
                     const float *variance, float *y)
{
    const struct pack pack = {replicas, lanes};
    double means[channels], variances[channels];
    float rate[channels], scale[channels], shift[channels];
    for (num c = 0; c < channels; c++) {
        const num v = in_variable(pack, channels, c);
        means[c] = v < 0 ? 0 : mean[v], variances[c] = v < 0 ? 1 : variance[v];
    }
    lines(channels, pack, gamma, beta, epsilon, means, variances, rate, scale, shift);
    follow(x, images, height, width, channels, pool, scale, shift, y);
}

/* A window of 2x2 places and which of them is the largest: the first, where several are. */
struct window {
    vec x[4];
    mask left, right, upper;
    vec best; /* on the line */
};

static inline struct window look(const float *x, num channels, num row, vec scale, vec shift)
{
    struct window w = {{load(x), load(x + channels), load(x + row), load(x + row + channels)}};
    const vec v0 = w.x[0] * scale + shift, v1 = w.x[1] * scale + shift;
    const vec v2 = w.x[2] * scale + shift, v3 = w.x[3] * scale + shift;
    w.left = v0 >= v1, w.right = v2 >= v3;
    const vec above = choose(w.left, v0, v1), below = choose(w.right, v2, v3);
    w.upper = above >= below;
    w.best = choose(w.upper, above, below);
    return w;
}

/* The slopes at x, gamma and beta from those at y. */
void normalise_back(const float *x, const float *slope, num images, num height, num width, num channels,
                    num replicas, num lanes, int pool, const float *saved, float *for_x, float *for_gamma,
                    float *for_beta)
{
    const struct pack pack = {replicas, lanes};
    const num places = images * height * width, row = width * channels;
    const float *mean = saved, *rate = mean + channels, *scale = rate + channels, *shift = scale + channels;
    double sums[channels], products[channels];
    for (num c = 0; c < channels; c++)
        sums[c] = products[c] = 0;
    for (num start = 0; !pool && start < places; start += CHUNK)
        for (num c = 0; c < channels; c += LANES) {
            const num end = least(start + CHUNK, places);
            const vec a = load(scale + c), b = load(shift + c), m = load(mean + c);
            vec sum = {0}, product = {0};
            for (num p = start; p < end; p++) {
                const vec v = load(x + p * channels + c);
                const vec s = where(v * a + b > 0, load(slope + p * channels + c));
                sum += s, product += s * (v - m);
            }
            add(sums + c, sum), add(products + c, product);
        }
    for (num pair = 0; pool && pair < images * height / 2; pair++)
        for (num c = 0; c < channels; c += LANES) {
            const float *at = x + 2 * pair * row + c, *from = slope + pair * row / 2 + c;
            const vec a = load(scale + c), b = load(shift + c), m = load(mean + c);
            vec sum = {0}, product = {0};
            for (num column = 0; column < width; column += 2, at += 2 * channels, from += channels) {
                const struct window w = look(at, channels, row, a, b);
                const vec winner = choose(w.upper, choose(w.left, w.x[0], w.x[1]), choose(w.right, w.x[2], w.x[3]));
                const vec s = where(w.best > 0, load(from));
                sum += s, product += s * (winner - m);
            }
            add(sums + c, sum), add(products + c, product);
        }
    /* Mean and variance depend on x too: what that adds is a line in x. */
    float tilt[channels], level[channels];
    for (num c = 0; c < channels; c++) {
        const double steep = products[c] * rate[c] * rate[c] / places;
        const num v = in_variable(pack, channels, c);
        if (v >= 0)
            for_beta[v] = sums[c], for_gamma[v] = products[c] * rate[c];
        tilt[c] = -scale[c] * steep;
        level[c] = scale[c] * (mean[c] * steep - sums[c] / places);
    }
    for (num p = 0; !pool && p < places; p++)
        for (num c = 0; c < channels; c += LANES, x += LANES, slope += LANES, for_x += LANES) {
            const vec v = load(x), a = load(scale + c);
            const vec s = where(v * a + load(shift + c) > 0, load(slope));
            store(for_x, a * s + (load(tilt + c) * v + load(level + c)));
        }
    for (num pair = 0; pool && pair < images * height / 2; pair++, x += row, for_x += row)
        for (num column = 0; column < width; column += 2, x += channels, for_x += channels)
            for (num c = 0; c < channels; c += LANES, x += LANES, for_x += LANES, slope += LANES) {
                const vec a = load(scale + c), t = load(tilt + c), l = load(level + c);
                const struct window w = look(x, channels, row, a, load(shift + c));
                const vec s = a * where(w.best > 0, load(slope));
                store(for_x, where(w.upper & w.left, s) + (t * w.x[0] + l));
                store(for_x + channels, where(w.upper & ~w.left, s) + (t * w.x[1] + l));
                store(for_x + row, where(~w.upper & w.right, s) + (t * w.x[2] + l));
                store(for_x + row + channels, where(~w.upper & ~w.right, s) + (t * w.x[3] + l));
            }
}

/* ---- 3x3 convolutions with 'same' padding, by Winograd's F(4x4, 3x3) ----

   The image is cut into tiles of 6x6 places that overlap by two. In the basis of polynomials at the points 0, 1,
   -1, 2, -2 and infinity, convolving a tile with a kernel is a product place by place: 36 multiplications for 4x4
   outputs instead of 144. With all channels, these are 36 matrix products. Tiles are taken a few at a time, so that
   all stays in the cache. Sides are multiples of 4.
*/

/* What each change of basis does along one axis; both axes: 6x6. A few lines each, since the compiler is to keep it
   all in registers. */
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

#define GET(i, j) load(at + i * edge + j * channels)
#define PUT(i, j, v) store(place + (6 * i + j) * few * channels, v)
/* Tiles of padded images in the basis: (36, few, channels). */
static void image_basis(const float *padded, const struct tiles *t, num first, num few, float *to)
{
    const num edge = t->edge, channels = t->channels;
    for (num n = 0; n < few; n++)
        for (num c = 0; c < channels; c += LANES) {
            const float *at = padded + corner(t, first + n) + c;
            float *place = to + n * channels + c;
            BOTH_AXES(image_axis, 6, 6, GET, PUT);
        }
}

/* The same of slopes at the outputs. */
static void slope_basis(const float *slope, const struct tiles *t, num first, num few, float *to)
{
    const num edge = t->edge, channels = t->channels;
    for (num n = 0; n < few; n++)
        for (num c = 0; c < channels; c += LANES) {
            const float *at = slope + corner(t, first + n) + c;
            float *place = to + n * channels + c;
            BOTH_AXES(output_back, 4, 6, GET, PUT);
        }
}
#undef GET
#undef PUT

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

/* Left alone, compilers load one of the factors again for every product. */
#ifdef __FMA__
#define MULTIPLY_ADD(sum, a, b) __asm__("vfmadd231ps %2, %1, %0" : "+x"(sum) : "x"(a), "x"(b))
#else
#define MULTIPLY_ADD(sum, a, b) sum += a * b
#endif

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
            image_basis(room.padded, &from, first, few, room.inputs);
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
            image_basis(room.padded, &from, first, few, room.inputs);
            slope_basis(slopes, &at, first, few, room.outputs);
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

/* ---- 3x3 convolutions of many small networks at once: the lanes of a vector are replicas ----

   Tiny networks leave no channels to fill a vector with. Replicas do it instead: every number of the plain sum is a
   vector of them, and no replica sees another. Outputs come in fours.
*/

enum { QUAD = 4 };

/* Kernels (replicas * outputs, inputs, 3, 3) as (9, inputs, outputs, lanes); turned around, (9, outputs, inputs,
   lanes). Empty lanes are zero. */
static void kernel_lanes(const float *kernel, struct pack pack, num inputs, num outputs, int turn, float *to)
{
    const num each = 9 * inputs * outputs;
    for (num o = 0; o < outputs; o++)
        for (num k = 0; k < inputs; k++)
            for (num tap = 0; tap < 9; tap++, kernel++) {
                const num at = turn ? ((8 - tap) * outputs + o) * inputs + k : (tap * inputs + k) * outputs + o;
                for (num r = 0; r < pack.lanes; r++)
                    to[at * pack.lanes + r] = r < pack.replicas ? kernel[r * each] : 0;
            }
}

/* 4 outputs at one place of one image, or of two, for a vector of lanes. */
static inline __attribute__((always_inline)) void place_lanes(const float *x, const float *kernel, const float *bias,
                                                              num row, num column, num height, num width, num inputs,
                                                              num outputs, num lanes, const int images, float *y)
{
    const num image = height * width;
    vec sum[QUAD][2];
    for (int q = 0; q < QUAD; q++)
        for (int i = 0; i < images; i++)
            sum[q][i] = load(bias + q * lanes);
    for (num r = row > 0 ? row - 1 : 0; r < least(row + 2, height); r++)
        for (num c = column > 0 ? column - 1 : 0; c < least(column + 2, width); c++) {
            const float *at = x + (r * width + c) * inputs * lanes;
            const float *by = kernel + (3 * (r - row + 1) + c - column + 1) * inputs * outputs * lanes;
            for (num k = 0; k < inputs; k++, at += lanes, by += outputs * lanes) {
                const vec first = load(at), second = images > 1 ? load(at + image * inputs * lanes) : first;
                for (int q = 0; q < QUAD; q++) {
                    const vec v = load(by + q * lanes);
                    MULTIPLY_ADD(sum[q][0], first, v);
                    if (images > 1)
                        MULTIPLY_ADD(sum[q][1], second, v);
                }
            }
        }
    for (int q = 0; q < QUAD; q++)
        for (int i = 0; i < images; i++)
            store(y + (i * image + row * width + column) * outputs * lanes + q * lanes, sum[q][i]);
}

/* Like `convolve`, for x (images, height, width, inputs, lanes) and kernels (replicas * outputs, inputs, 3, 3). */
int convolve_lanes(const float *x, const float *kernel, const float *bias, num images, num height, num width,
                   num inputs, num outputs, num replicas, num lanes, int turn, float *y)
{
    const struct pack pack = {replicas, lanes};
    float *kernels = keep((9 * inputs + 1) * outputs * lanes), *biases = kernels + 9 * inputs * outputs * lanes;
    if (!kernels)
        return 0;
    if (turn)
        kernel_lanes(kernel, pack, outputs, inputs, 1, kernels);
    else
        kernel_lanes(kernel, pack, inputs, outputs, 0, kernels);
    for (num c = 0; c < outputs * lanes; c++) {
        const num v = bias ? in_variable(pack, outputs * lanes, c) : -1;
        biases[c] = v < 0 ? 0 : bias[v];
    }
    for (num n = 0; n < images; n += 2, x += 2 * height * width * inputs * lanes, y += 2 * height * width * outputs * lanes)
        for (num lane = 0; lane < lanes; lane += LANES)
            for (num o = 0; o < outputs; o += QUAD)
                for (num row = 0; row < height; row++)
                    for (num column = 0; column < width; column++) {
                        const num at = o * lanes + lane;
                        if (n + 1 < images)
                            place_lanes(x + lane, kernels + at, biases + at, row, column, height, width, inputs,
                                        outputs, lanes, 2, y + at);
                        else
                            place_lanes(x + lane, kernels + at, biases + at, row, column, height, width, inputs,
                                        outputs, lanes, 1, y + at);
                    }
    return 1;
}

/* Sums over all places that a tap reaches: 1 or 2 inputs x 4 outputs, for a vector of lanes. */
static inline __attribute__((always_inline)) void tap_lanes(const float *x, const float *slope, num down, num right,
                                                            num images, num height, num width, num inputs,
                                                            num outputs, num lanes, const int wide, float *to)
{
    vec sum[QUAD][2] = {{{0}}};
    for (num n = 0; n < images; n++)
        for (num row = down < 0 ? 1 : 0; row < height - (down > 0); row++) {
            const num start = right < 0 ? 1 : 0, end = width - (right > 0), line = n * height + row;
            const float *at = x + ((line + down) * width + start + right) * inputs * lanes;
            const float *by = slope + (line * width + start) * outputs * lanes;
            for (num column = start; column < end; column++, at += inputs * lanes, by += outputs * lanes) {
                const vec first = load(at), second = wide > 1 ? load(at + lanes) : first;
                for (int q = 0; q < QUAD; q++) {
                    const vec v = load(by + q * lanes);
                    MULTIPLY_ADD(sum[q][0], first, v);
                    if (wide > 1)
                        MULTIPLY_ADD(sum[q][1], second, v);
                }
            }
        }
    for (int i = 0; i < wide; i++)
        for (int q = 0; q < QUAD; q++) {
            float *place = to + (i * outputs + q) * lanes;
            store(place, load(place) + sum[q][i]);
        }
}

/* Like `convolve_back`: for_kernel (replicas * outputs, inputs, 3, 3). */
int convolve_lanes_back(const float *x, const float *slope, num images, num height, num width, num inputs,
                        num outputs, num replicas, num lanes, float *for_kernel, float *for_bias)
{
    const struct pack pack = {replicas, lanes};
    float *sums = keep(9 * inputs * outputs * lanes);
    if (!sums)
        return 0;
    memset(sums, 0, 9 * inputs * outputs * lanes * sizeof *sums);
    const num places = height * width, group = places < CHUNK ? CHUNK / places : 1; /* stays in the cache */
    for (num n = 0; n < images; n += group) {
        const num few = least(group, images - n);
        for (num lane = 0; lane < lanes; lane += LANES)
            for (num o = 0; o < outputs; o += QUAD)
                for (num k = 0; k < inputs; k += 2)
                    for (num tap = 0; tap < 9; tap++) {
                        float *to = sums + ((tap * inputs + k) * outputs + o) * lanes + lane;
                        const float *at = x + (n * places * inputs + k) * lanes + lane;
                        const float *by = slope + (n * places * outputs + o) * lanes + lane;
                        const num down = tap / 3 - 1, right = tap % 3 - 1;
                        if (k + 1 < inputs)
                            tap_lanes(at, by, down, right, few, height, width, inputs, outputs, lanes, 2, to);
                        else
                            tap_lanes(at, by, down, right, few, height, width, inputs, outputs, lanes, 1, to);
                    }
    }
    for (num o = 0; o < outputs; o++)
        for (num k = 0; k < inputs; k++)
            for (num tap = 0; tap < 9; tap++, for_kernel++)
                for (num r = 0; r < replicas; r++)
                    for_kernel[r * 9 * inputs * outputs] = sums[((tap * inputs + k) * outputs + o) * lanes + r];
    for (num c = 0; c < outputs * lanes; c += LANES) {
        vec sum = {0};
        for (num n = 0; n < images * height * width; n++)
            sum += load(slope + n * outputs * lanes + c);
        for (num i = 0; i < LANES; i++) {
            const num v = in_variable(pack, outputs * lanes, c + i);
            if (v >= 0)
                for_bias[v] = sum[i];
        }
    }
    return 1;
}
