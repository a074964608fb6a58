/* Layer normalization over the channels of each replica at every pixel, optional 2x2 max pooling, and ReLU, fused: one
   pass over the batch in each direction. */
#include <math.h>

#include "vectors.h"

#ifdef __clang__
#define TURN(v, ...) __builtin_shufflevector(v, v, __VA_ARGS__)
#else
#define TURN(v, ...) __builtin_shuffle(v, (mask){__VA_ARGS__})
#endif

/* The values of one pixel: for a single network, `count` vectors of channels; in lanes, for each of the `groups` of
   lanes that fill a vector, `count` channels that are `step` floats apart. */
struct pixel {
    num channels, groups, count, step;
    float over; /* 1 / channels of a replica */
};

static struct pixel pixel_of(num channels, num lanes)
{
    if (lanes == 1)
        return (struct pixel){channels, 1, channels / LANES, LANES, 1.0f / channels};
    return (struct pixel){channels, lanes / LANES, channels / lanes, lanes, (float)lanes / channels};
}

/* The sum over the channels of a replica, from the sum of a pixel's vectors: in lanes, there is nothing left to add. */
static inline vec total(vec v, const int single)
{
    if (single) {
        v += TURN(v, 4, 5, 6, 7, 0, 1, 2, 3);
        v += TURN(v, 2, 3, 0, 1, 6, 7, 4, 5);
        v += TURN(v, 1, 0, 3, 2, 5, 4, 7, 6);
    }
    return v;
}

/* Two statistics of a pixel are saved: `step` means, then `step` inverse standard deviations; of a single network, one
   of each. */
static inline vec get(const float *p, const int single) { return single ? *p - (vec){0} : load(p); }
static inline void put(float *p, vec v, const int single)
{
    if (single)
        *p = v[0];
    else
        store(p, v);
}

/* z = gamma * (x - mean) / std + beta at one pixel. */
static inline __attribute__((always_inline)) void forward_pixel(const float *x, struct pixel at, const float *gamma,
                                                                const float *beta, float epsilon, const int single,
                                                                float *saved, float *z)
{
    for (num group = 0; group < at.groups; group++) {
        const num first = group * LANES, end = first + at.count * at.step;
        vec sum = {0}, square = {0}, root;
        for (num c = first; c < end; c += at.step)
            sum += load(x + c);
        const vec mean = total(sum, single) * at.over;
        for (num c = first; c < end; c += at.step) {
            const vec off = load(x + c) - mean;
            square += off * off;
        }
        square = total(square, single) * at.over + epsilon;
        for (int i = 0; i < LANES; i++)
            root[i] = sqrtf(square[i]);
        const vec inverse = 1 / root;
        put(saved + first, mean, single), put(saved + (single ? 1 : at.step) + first, inverse, single);
        for (num c = first; c < end; c += at.step)
            store(z + c, (load(x + c) - mean) * inverse * load(gamma + c) + load(beta + c));
    }
}

/* grad_x at one pixel from the gradient of z; adds to the gradients of gamma and beta. */
static inline __attribute__((always_inline)) void backward_pixel(const float *x, const float *grad_z, struct pixel at,
                                                                 const float *gamma, const int single,
                                                                 const float *saved, float *grad_x, float *grad_gamma,
                                                                 float *grad_beta)
{
    for (num group = 0; group < at.groups; group++) {
        const num first = group * LANES, end = first + at.count * at.step;
        const vec mean = get(saved + first, single), inverse = get(saved + (single ? 1 : at.step) + first, single);
        vec sum = {0}, product = {0};
        for (num c = first; c < end; c += at.step) {
            const vec g = load(grad_z + c), unit = (load(x + c) - mean) * inverse, h = g * load(gamma + c);
            sum += h, product += h * unit;
            store(grad_gamma + c, load(grad_gamma + c) + g * unit);
            store(grad_beta + c, load(grad_beta + c) + g);
        }
        sum = total(sum, single) * at.over, product = total(product, single) * at.over;
        for (num c = first; c < end; c += at.step) {
            const vec unit = (load(x + c) - mean) * inverse;
            store(grad_x + c, inverse * (load(grad_z + c) * load(gamma + c) - sum - unit * product));
        }
    }
}

/* The offset of pixel k of a pooling window. */
static inline num in_window(int k, num width, num channels) { return (k / 2 * width + k % 2) * channels; }

static inline __attribute__((always_inline)) void forward(const float *x, num images, num height, num width,
                                                          struct pixel at, int pool, const float *gamma,
                                                          const float *beta, float epsilon, const int single,
                                                          float *saved, float *y)
{
    const num channels = at.channels, pixels = images * height * width, statistics = single ? 2 : 2 * at.step;
    float z[4][channels];
    for (num p = 0; !pool && p < pixels; p++, x += channels, saved += statistics, y += channels) {
        forward_pixel(x, at, gamma, beta, epsilon, single, saved, z[0]);
        for (num c = 0; c < channels; c += LANES)
            store(y + c, relu(load(z[0] + c)));
    }
    for (num row = 0; pool && row < images * height; row += 2)
        for (num column = 0; column < width; column += 2, y += channels) {
            const num p = row * width + column;
            for (int k = 0; k < 4; k++)
                forward_pixel(x + p * channels + in_window(k, width, channels), at, gamma, beta, epsilon, single,
                              saved + p * statistics + in_window(k, width, statistics), z[k]);
            for (num c = 0; c < channels; c += LANES)
                store(y + c, relu(larger(larger(load(z[0] + c), load(z[1] + c)),
                                         larger(load(z[2] + c), load(z[3] + c)))));
        }
}

/* z again, from the saved statistics. */
static inline __attribute__((always_inline)) void again(const float *x, struct pixel at, const float *gamma,
                                                        const float *beta, const int single, const float *saved,
                                                        float *z)
{
    for (num group = 0; group < at.groups; group++) {
        const num first = group * LANES, end = first + at.count * at.step;
        const vec mean = get(saved + first, single), inverse = get(saved + (single ? 1 : at.step) + first, single);
        for (num c = first; c < end; c += at.step)
            store(z + c, (load(x + c) - mean) * inverse * load(gamma + c) + load(beta + c));
    }
}

static inline __attribute__((always_inline)) void backward(const float *x, const float *grad_output, num images,
                                                           num height, num width, struct pixel at, int pool,
                                                           const float *gamma, const float *beta, const int single,
                                                           const float *saved, float *grad_x, double *gammas,
                                                           double *betas)
{
    const num channels = at.channels, pixels = images * height * width, statistics = single ? 2 : 2 * at.step;
    const num windows = pool ? pixels / 4 : pixels, side = pool ? width / 2 : width;
    const int size = pool ? 4 : 1;
    float z[4][channels], grad_gamma[channels], grad_beta[channels];
    for (num start = 0; start < windows; start += CHUNK) {
        memset(grad_gamma, 0, sizeof grad_gamma), memset(grad_beta, 0, sizeof grad_beta);
        for (num w = start; w < minimum(start + CHUNK, windows); w++, grad_output += channels) {
            const num p = pool ? w / side * 2 * width + w % side * 2 : w;
            for (int k = 0; k < size; k++)
                again(x + p * channels + in_window(k, width, channels), at, gamma, beta, single,
                      saved + p * statistics + in_window(k, width, statistics), z[k]);
            for (num c = 0; c < channels; c += LANES) {
                const vec g = load(grad_output + c), z0 = load(z[0] + c);
                if (!pool) {
                    store(z[0] + c, where(z0 > 0, g));
                    continue;
                }
                const vec z1 = load(z[1] + c), z2 = load(z[2] + c), z3 = load(z[3] + c);
                const mask left = z0 >= z1, right = z2 >= z3; /* of equal values the first */
                const vec above = choose(left, z0, z1), below = choose(right, z2, z3);
                const mask upper = above >= below, alive = choose(upper, above, below) > 0;
                store(z[0] + c, where(alive & upper & left, g)), store(z[1] + c, where(alive & upper & ~left, g));
                store(z[2] + c, where(alive & ~upper & right, g)), store(z[3] + c, where(alive & ~upper & ~right, g));
            }
            for (int k = 0; k < size; k++) {
                const num offset = p * channels + in_window(k, width, channels);
                backward_pixel(x + offset, z[k], at, gamma, single,
                               saved + p * statistics + in_window(k, width, statistics), grad_x + offset, grad_gamma,
                               grad_beta);
            }
        }
        for (num c = 0; c < channels; c++)
            gammas[c] += grad_gamma[c], betas[c] += grad_beta[c];
    }
}

/* `saved` holds 2 statistics per pixel and lane for `layer_normalize_backward`. */
void layer_normalize(const float *x, num images, num height, num width, num channels, num lanes, int pool,
                     const float *gamma, const float *beta, double epsilon, float *saved, float *y)
{
    const struct pixel at = pixel_of(channels, lanes);
    if (lanes == 1)
        forward(x, images, height, width, at, pool, gamma, beta, epsilon, 1, saved, y);
    else
        forward(x, images, height, width, at, pool, gamma, beta, epsilon, 0, saved, y);
}

/* The gradients of x, gamma and beta from grad_output. */
void layer_normalize_backward(const float *x, const float *grad_output, num images, num height, num width, num channels,
                              num lanes, int pool, const float *gamma, const float *beta, const float *saved,
                              float *grad_x, float *grad_gamma, float *grad_beta)
{
    const struct pixel at = pixel_of(channels, lanes);
    double products[channels], sums[channels];
    for (num c = 0; c < channels; c++)
        products[c] = sums[c] = 0;
    if (lanes == 1)
        backward(x, grad_output, images, height, width, at, pool, gamma, beta, 1, saved, grad_x, products, sums);
    else
        backward(x, grad_output, images, height, width, at, pool, gamma, beta, 0, saved, grad_x, products, sums);
    for (num c = 0; c < channels; c++)
        grad_gamma[c] = products[c], grad_beta[c] = sums[c];
}
