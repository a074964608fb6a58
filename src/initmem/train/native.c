/* What a step spends time on beside matrix products, for one network on one core: float32, channels last.

   The compiler turns `vec` into the registers of the processor. Sums over a batch are made of short sums in
   float32, added up in float64.
*/
#include <math.h>
#include <string.h>

typedef float vec __attribute__((vector_size(32), aligned(4)));
typedef int mask __attribute__((vector_size(32), aligned(4)));
typedef long num;

enum {
    LANES = 8,    /* numbers in a vec */
    TAPS = 6,     /* a block of 6 x 16 sums leaves room in 16 registers for what is multiplied */
    CHUNK = 64,   /* places added up in float32 */
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

/* The line y = scale * x + shift of every channel. */
static void lines(num channels, const float *gamma, const float *beta, double epsilon, const double *mean,
                  const double *variance, float *rate, float *scale, float *shift)
{
    for (num c = 0; c < channels; c++) {
        const double inverse = 1 / sqrt(variance[c] + epsilon);
        rate[c] = inverse;
        scale[c] = gamma[c] * inverse;
        shift[c] = beta[c] - mean[c] * gamma[c] * inverse;
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
void normalise(const float *x, num images, num height, num width, num channels, int pool, const float *gamma,
               const float *beta, double epsilon, float *batch_mean, float *batch_variance, float *saved, float *y)
{
    const num places = images * height * width;
    double mean[channels], variance[channels];
    float *rate = saved + channels, *scale = rate + channels, *shift = scale + channels;
    statistics(x, places, channels, mean, variance);
    lines(channels, gamma, beta, epsilon, mean, variance, rate, scale, shift);
    for (num c = 0; c < channels; c++) {
        batch_mean[c] = saved[c] = mean[c];
        batch_variance[c] = variance[c] * places / (places - 1);
    }
    follow(x, images, height, width, channels, pool, scale, shift, y);
}

/* In evaluation, with the moving statistics. */
void normalise_fixed(const float *x, num images, num height, num width, num channels, int pool, const float *gamma,
                     const float *beta, double epsilon, const float *mean, const float *variance, float *y)
{
    double means[channels], variances[channels];
    float rate[channels], scale[channels], shift[channels];
    for (num c = 0; c < channels; c++)
        means[c] = mean[c], variances[c] = variance[c];
    lines(channels, gamma, beta, epsilon, means, variances, rate, scale, shift);
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
void normalise_back(const float *x, const float *slope, num images, num height, num width, num channels, int pool,
                    const float *saved, float *for_x, float *for_gamma, float *for_beta)
{
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
        for_beta[c] = sums[c];
        for_gamma[c] = products[c] * rate[c];
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

/* ---- The kernel's gradient of a 3x3 convolution with 'same' padding ---- */

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

/* Left alone, compilers reorder the products of a block until its sums no longer fit the registers. */
#ifdef __FMA__
#define MULTIPLY_ADD(sum, a, b) __asm__("vfmadd231ps %2, %1, %0" : "+x"(sum) : "x"(a), "x"(b))
#else
#define MULTIPLY_ADD(sum, a, b) sum += a * b
#endif

/* Add to 6 x 16 sums: over all places, 6 inputs side by side times the slopes of 16 outputs. */
static void multiply(const float *x, const float *slope, num images, num height, num width, num inputs,
                     num outputs, float *sums)
{
    vec a0 = {0}, a1 = {0}, a2 = {0}, a3 = {0}, a4 = {0}, a5 = {0};
    vec b0 = {0}, b1 = {0}, b2 = {0}, b3 = {0}, b4 = {0}, b5 = {0};
    for (num image = 0; image < images; image++, x += 2 * (width + 2) * inputs)
        for (num row = 0; row < height; row++, x += 2 * inputs)
            for (num column = 0; column < width; column++, x += inputs, slope += outputs) {
                const vec a = load(slope), b = load(slope + LANES);
                vec v;
#define STEP(i) v = x[i] - (vec){0}; MULTIPLY_ADD(a##i, v, a); MULTIPLY_ADD(b##i, v, b);
                STEP(0) STEP(1) STEP(2) STEP(3) STEP(4) STEP(5)
            }
#define KEEP(i) store(sums, load(sums) + a##i), store(sums + LANES, load(sums + LANES) + b##i), sums += outputs;
    KEEP(0) KEEP(1) KEEP(2) KEEP(3) KEEP(4) KEEP(5)
}

/* From x (images, height, width, inputs) and the slopes at the outputs: for_kernel (outputs, 3, 3, inputs) and
   for_bias. Inputs come in twos, outputs in sixteens. In a padded row the inputs of three neighbours lie side by
   side, so that the gradient is three matrix products, kept as (3, 3 * inputs, outputs) in `room`; after it there is
   room for `group` padded images. */
void kernel_gradient(const float *x, const float *slope, num images, num height, num width, num inputs,
                     num outputs, num group, float *room, float *for_kernel, float *for_bias)
{
    const num places = height * width, edge = (width + 2) * inputs, span = 3 * inputs;
    float *sums = room, *padded = room + 3 * span * outputs;
    double totals[outputs];
    for (num o = 0; o < outputs; o++)
        totals[o] = 0;
    memset(sums, 0, 3 * span * outputs * sizeof *sums);
    for (num i = 0; i < images; i += group) {
        const num few = least(group, images - i);
        pad(x + i * places * inputs, few, height, width, inputs, padded);
        const float *here = slope + i * places * outputs;
        for (num o = 0; o < outputs; o += LANES) {
            vec sum = {0};
            for (num p = 0; p < few * places; p++)
                sum += load(here + p * outputs + o);
            add(totals + o, sum);
        }
        for (num row = 0; row < 3; row++)
            for (num o = 0; o < outputs; o += 2 * LANES)
                for (num k = 0; k < span; k += TAPS)
                    multiply(padded + row * edge + k, here + o, few, height, width, inputs, outputs,
                             sums + (row * span + k) * outputs + o);
    }
    for (num o = 0; o < outputs; o++) {
        for_bias[o] = totals[o];
        for (num k = 0; k < 3 * span; k++)
            *for_kernel++ = sums[k * outputs + o];
    }
}
