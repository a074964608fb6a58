/* Batch normalization, optional 2x2 max pooling or addition of a skip connection, and ReLU, fused: two passes over the
   batch in each direction. There is never a skip connection (it is NULL) with pooling. */
#include <math.h>

#include "vectors.h"

/* Whether channels fill several of the wider vectors. */
#define MANY (channels % 16 == 0 && channels >= 64)

/* Mean and biased variance of every channel. One pass suffices without cancellation, because the squares are taken
   about a pivot inside the data: the mean of the first pixels. */
static void statistics(const float *x, num pixels, num channels, double *mean, double *variance)
{
    float pivot[channels];
    for (num c = 0; c < channels; c += LANES) {
        const num count = minimum(pixels, CHUNK);
        vec sum = {0};
        for (num p = 0; p < count; p++)
            sum += load(x + p * channels + c);
        store(pivot + c, sum / (float)count);
    }
    for (num c = 0; c < channels; c++)
        mean[c] = variance[c] = 0;
    for (num start = 0; start < pixels; start += CHUNK)
        for (num c = 0; c < channels; c += LANES) {
            const num end = minimum(start + CHUNK, pixels);
            const vec center = load(pivot + c);
            vec sum = {0}, square = {0};
            for (num p = start; p < end; p++) {
                const vec off = load(x + p * channels + c) - center;
                sum += off, square += off * off;
            }
            add(mean + c, sum), add(variance + c, square);
        }
    for (num c = 0; c < channels; c++) {
        const double off = mean[c] / pixels, spread = variance[c] / pixels - off * off;
        mean[c] = pivot[c] + off;
        variance[c] = spread < 0 ? 0 : spread;
    }
}

/* The scale and shift of y = scale * x + shift for every channel. */
static void scale_and_shift(num channels, const float *gamma, const float *beta, double epsilon, const double *mean,
                            const double *variance, float *inverse_std, float *scale, float *shift)
{
    for (num c = 0; c < channels; c++) {
        const double inverse = 1 / sqrt(variance[c] + epsilon);
        inverse_std[c] = inverse;
        scale[c] = gamma[c] * inverse;
        shift[c] = beta[c] - mean[c] * gamma[c] * inverse;
    }
}

/* y = ReLU(scale * x + shift + skip), pooled if asked. */
static void apply(const float *x, num images, num height, num width, num channels, int pool, const float *skip,
                  const float *scale, const float *shift, float *y)
{
    const num row = width * channels;
    if (skip) {
        for (num p = 0; p < images * height * width; p++)
            for (num c = 0; c < channels; c += LANES, x += LANES, skip += LANES, y += LANES)
                store(y, relu(load(x) * load(scale + c) + load(shift + c) + load(skip)));
        return;
    }
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

/* Training mode. Also writes the batch mean and unbiased variance; `saved` holds 4 rows for `normalize_backward`. */
void NAME(normalize)(const float *x, num images, num height, num width, num channels, int pool, const float *skip,
               const float *gamma, const float *beta, double epsilon, float *batch_mean, float *batch_variance,
               float *saved, float *y)
{
    WIDE(MANY, normalize, x, images, height, width, channels, pool, skip, gamma, beta, epsilon, batch_mean, batch_variance, saved, y);
    const num pixels = images * height * width;
    double mean[channels], variance[channels];
    float *inverse_std = saved + channels, *scale = inverse_std + channels, *shift = scale + channels;
    statistics(x, pixels, channels, mean, variance);
    scale_and_shift(channels, gamma, beta, epsilon, mean, variance, inverse_std, scale, shift);
    for (num c = 0; c < channels; c++) {
        saved[c] = batch_mean[c] = mean[c];
        batch_variance[c] = variance[c] * pixels / (pixels > 1 ? pixels - 1 : 1);
    }
    apply(x, images, height, width, channels, pool, skip, scale, shift, y);
}

/* Evaluation mode, with the moving statistics. */
void NAME(normalize_fixed)(const float *x, num images, num height, num width, num channels, int pool, const float *skip,
                     const float *gamma, const float *beta, double epsilon, const float *mean,
                     const float *variance, float *y)
{
    WIDE(MANY, normalize_fixed, x, images, height, width, channels, pool, skip, gamma, beta, epsilon, mean, variance, y);
    double means[channels], variances[channels];
    float inverse_std[channels], scale[channels], shift[channels];
    for (num c = 0; c < channels; c++)
        means[c] = mean[c], variances[c] = variance[c];
    scale_and_shift(channels, gamma, beta, epsilon, means, variances, inverse_std, scale, shift);
    apply(x, images, height, width, channels, pool, skip, scale, shift, y);
}

/* A 2x2 pooling window and the position of its maximum: the first one in case of a tie. */
struct window {
    vec x[4];
    mask left, right, upper;
    vec best; /* the maximum, after scale and shift */
};

static inline struct window compare(const float *x, num channels, num row, vec scale, vec shift)
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

/* The gradients of x, gamma, beta and the skip connection from grad_output. With a skip connection, y tells where ReLU
   let it pass; without, y and grad_skip are NULL, and it is computed again. */
void NAME(normalize_backward)(const float *x, const float *grad_output, num images, num height, num width, num channels,
                        int pool, const float *y, const float *saved, float *grad_x,
                        float *grad_gamma, float *grad_beta, float *grad_skip)
{
    WIDE(MANY, normalize_backward, x, grad_output, images, height, width, channels, pool, y, saved, grad_x, grad_gamma, grad_beta, grad_skip);
    const num pixels = images * height * width, row = width * channels;
    const float *mean = saved, *inverse_std = mean + channels;
    const float *scale = inverse_std + channels, *shift = scale + channels;
    double sums[channels], products[channels];
    for (num c = 0; c < channels; c++)
        sums[c] = products[c] = 0;
    for (num start = 0; !pool && start < pixels; start += CHUNK)
        for (num c = 0; c < channels; c += LANES) {
            const num end = minimum(start + CHUNK, pixels);
            const vec a = load(scale + c), b = load(shift + c), m = load(mean + c);
            vec sum = {0}, product = {0};
            for (num p = start; p < end; p++) {
                const num at = p * channels + c;
                const vec v = load(x + at);
                const vec s = where((y ? load(y + at) : v * a + b) > 0, load(grad_output + at));
                sum += s, product += s * (v - m);
            }
            add(sums + c, sum), add(products + c, product);
        }
    for (num pair = 0; pool && pair < images * height / 2; pair++)
        for (num c = 0; c < channels; c += LANES) {
            const float *at = x + 2 * pair * row + c, *from = grad_output + pair * row / 2 + c;
            const vec a = load(scale + c), b = load(shift + c), m = load(mean + c);
            vec sum = {0}, product = {0};
            for (num column = 0; column < width; column += 2, at += 2 * channels, from += channels) {
                const struct window w = compare(at, channels, row, a, b);
                const vec winner = choose(w.upper, choose(w.left, w.x[0], w.x[1]), choose(w.right, w.x[2], w.x[3]));
                const vec s = where(w.best > 0, load(from));
                sum += s, product += s * (winner - m);
            }
            add(sums + c, sum), add(products + c, product);
        }
    /* Mean and variance depend on x as well; their contribution is an affine function of x. */
    float tilt[channels], level[channels];
    for (num c = 0; c < channels; c++) {
        const double steep = products[c] * inverse_std[c] * inverse_std[c] / pixels;
        grad_beta[c] = sums[c], grad_gamma[c] = products[c] * inverse_std[c];
        tilt[c] = -scale[c] * steep;
        level[c] = scale[c] * (mean[c] * steep - sums[c] / pixels);
    }
    for (num p = 0; y && p < pixels; p++)
        for (num c = 0; c < channels; c += LANES, x += LANES, y += LANES, grad_output += LANES) {
            const vec s = where(load(y) > 0, load(grad_output));
            store(grad_x, load(scale + c) * s + (load(tilt + c) * load(x) + load(level + c))), grad_x += LANES;
            store(grad_skip, s), grad_skip += LANES;
        }
    for (num p = 0; !y && !pool && p < pixels; p++)
        for (num c = 0; c < channels; c += LANES, x += LANES, grad_output += LANES, grad_x += LANES) {
            const vec v = load(x), a = load(scale + c);
            const vec s = where(v * a + load(shift + c) > 0, load(grad_output));
            store(grad_x, a * s + (load(tilt + c) * v + load(level + c)));
        }
    for (num pair = 0; pool && pair < images * height / 2; pair++, x += row, grad_x += row)
        for (num column = 0; column < width; column += 2, x += channels, grad_x += channels)
            for (num c = 0; c < channels; c += LANES, x += LANES, grad_x += LANES, grad_output += LANES) {
                const vec a = load(scale + c), t = load(tilt + c), l = load(level + c);
                const struct window w = compare(x, channels, row, a, load(shift + c));
                const vec s = a * where(w.best > 0, load(grad_output));
                store(grad_x, where(w.upper & w.left, s) + (t * w.x[0] + l));
                store(grad_x + channels, where(w.upper & ~w.left, s) + (t * w.x[1] + l));
                store(grad_x + row, where(~w.upper & w.right, s) + (t * w.x[2] + l));
                store(grad_x + row + channels, where(~w.upper & ~w.right, s) + (t * w.x[3] + l));
            }
}
