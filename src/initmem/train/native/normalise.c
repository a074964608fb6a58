/* Batch normalization, 2x2 max pooling where asked, and ReLU: two passes over a batch each way. */
#include <math.h>

#include "vectors.h"

typedef int mask __attribute__((vector_size(32), aligned(4)));

static inline vec where(mask which, vec yes) { return (vec)(which & (mask)yes); }
static inline vec choose(mask which, vec yes, vec no) { return (vec)((which & (mask)yes) | (~which & (mask)no)); }
/* Both pass on what is not a number: a run that diverges must show it. */
static inline vec larger(vec a, vec b) { return choose((a >= b) | (a != a), a, b); }
static inline vec relu(vec v) { return where(~(v < 0), v); }

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
    struct window w;
    w.x[0] = load(x), w.x[1] = load(x + channels), w.x[2] = load(x + row), w.x[3] = load(x + row + channels);
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
