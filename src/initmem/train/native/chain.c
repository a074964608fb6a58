/* Blocks one after another: a forward pass in one call, and its backward pass in another.

   A block is a 3x3 convolution, batch or layer normalization, optional 2x2 max pooling, and ReLU. A residual block adds
   the input of the block before to its output. */
#include "vectors.h"

/* A block: the size of its input, and where its tensors are in a buffer. */
struct place {
    num height, width, middle, saved, output;
};

static num larger_of(num a, num b) { return a > b ? a : b; }
static num aligned(num floats) { return (floats + 15) / 16 * 16; }

/* Find the places and return the size of the buffer. With `keep`, each block has its own; without, all share one for the
   output of the convolution and one for what normalization saves, and take turns with three for their outputs. */
static num arrange(const struct network *net, int keep, struct place *places)
{
    num height = net->height, width = net->width, total = 0, middle = 0, saved = 0, output = 0;
    for (num i = 0; i < net->count; i++) {
        const struct block_sizes size = net->sizes[i];
        const num pixels = net->images * height * width, channels = size.outputs * net->lanes;
        const num of_middle = aligned(pixels * channels);
        const num of_saved = aligned(net->variables[i].mean ? 4 * channels : 2 * pixels * net->lanes);
        const num of_output = aligned(pixels * channels / (size.pool ? 4 : 1));
        places[i] = (struct place){height, width, total, total + of_middle, total + of_middle + of_saved};
        total += of_middle + of_saved + of_output;
        middle = larger_of(middle, of_middle), saved = larger_of(saved, of_saved);
        output = larger_of(output, of_output);
        if (size.pool)
            height /= 2, width /= 2;
    }
    if (keep)
        return total;
    for (num i = 0; i < net->count; i++)
        places[i].middle = 0, places[i].saved = middle, places[i].output = middle + saved + i % 3 * output;
    return middle + saved + 3 * output;
}

/* Whether channels, or lanes, fill the widest vectors. */
static int is_wide(const struct network *net, num inputs, num outputs)
{
    const num widest = net->widest;
    return widest > 8 && (net->lanes > 1 ? net->lanes % widest == 0 : inputs % widest == 0 && outputs % widest == 0);
}

static int convolved(const struct network *net, struct place at, const float *x, const float *kernel,
                     const float *bias, num inputs, num outputs, int transposed, float *y)
{
    const num n = net->images, h = at.height, w = at.width, lanes = net->lanes;
#ifdef __AVX512F__
    if (is_wide(net, inputs, outputs)) {
        if (lanes == 1)
            return convolve_wide(x, kernel, bias, n, h, w, inputs, outputs, transposed, y);
        lanes_convolve_wide(x, kernel, bias, n, h, w, inputs, outputs, lanes, transposed, y);
        return 1;
    }
#endif
    if (lanes == 1)
        return convolve(x, kernel, bias, n, h, w, inputs, outputs, transposed, y);
    lanes_convolve(x, kernel, bias, n, h, w, inputs, outputs, lanes, transposed, y);
    return 1;
}

static int convolved_backward(const struct network *net, struct place at, const float *x, const float *grad,
                              num inputs, num outputs, float *grad_kernel, float *grad_bias)
{
    const num n = net->images, h = at.height, w = at.width, lanes = net->lanes;
#ifdef __AVX512F__
    if (is_wide(net, inputs, outputs)) {
        if (lanes == 1)
            return convolve_backward_wide(x, grad, n, h, w, inputs, outputs, grad_kernel, grad_bias);
        lanes_convolve_backward_wide(x, grad, n, h, w, inputs, outputs, lanes, grad_kernel, grad_bias);
        return 1;
    }
#endif
    if (lanes == 1)
        return convolve_backward(x, grad, n, h, w, inputs, outputs, grad_kernel, grad_bias);
    lanes_convolve_backward(x, grad, n, h, w, inputs, outputs, lanes, grad_kernel, grad_bias);
    return 1;
}

static void accumulate(float *restrict to, const float *restrict from, num floats)
{
    for (num i = 0; i < floats; i++)
        to[i] += from[i];
}

/* The number of floats that a buffer must have: `keep` for the forward pass of training, not for the others. */
num chain_floats(const struct network *net, int keep)
{
    struct place places[net->count];
    return arrange(net, keep, places);
}

enum { IN_CACHE = 16 }; /* images that a pack evaluates at a time, so that they stay in the cache */

/* In training, `buffer` is what `chain_backward` needs. */
int chain(const struct network *net, int training, const float *x, float *buffer, float *y)
{
    if (!training && net->lanes > 1 && net->images > IN_CACHE) {
        const num each = net->height * net->width * net->lanes * net->sizes[0].inputs;
        num into = net->height * net->width * net->lanes * net->sizes[net->count - 1].outputs;
        struct network part = *net;
        for (num i = 0; i < net->count; i++)
            into /= net->sizes[i].pool ? 4 : 1;
        for (num first = 0; first < net->images; first += IN_CACHE) {
            part.images = minimum(IN_CACHE, net->images - first);
            if (!chain(&part, 0, x + first * each, buffer, y + first * into))
                return 0;
        }
        return 1;
    }
    const num count = net->count, images = net->images, lanes = net->lanes;
    const double epsilon = net->epsilon;
    const float *before = x;
    struct place places[count];
    arrange(net, training, places);
    for (num i = 0; i < count; i++) {
        const struct block_sizes size = net->sizes[i];
        const struct block_variables v = net->variables[i];
        const struct place at = places[i];
        const num channels = size.outputs * lanes, h = at.height, w = at.width;
        float *middle = buffer + at.middle, *saved = buffer + at.saved;
        float *output = i + 1 < count ? buffer + at.output : y;
        if (!convolved(net, at, x, v.kernel, v.bias, size.inputs, size.outputs, 0, middle))
            return 0;
        if (!v.mean)
            layer_normalize(middle, images, h, w, channels, lanes, size.pool, v.gamma, v.beta, epsilon, saved, output);
        else if (training)
            normalize(middle, images, h, w, channels, size.pool, NULL, v.gamma, v.beta, epsilon, v.mean, v.variance,
                      saved, output);
        else
            normalize_fixed(middle, images, h, w, channels, size.pool, NULL, v.gamma, v.beta, epsilon, v.mean,
                            v.variance, output);
        if (size.residual)
            accumulate(output, before, images * h * w * channels);
        before = x, x = output;
    }
    return 1;
}

/* The gradients of all variables, and of x unless grad_x is NULL. */
int chain_backward(const struct network *net, const float *x, const float *buffer, const float *grad_output,
                   const struct block_gradients *gradients, float *work, float *grad_x)
{
    const num count = net->count, images = net->images, lanes = net->lanes;
    struct place kept[count], places[count];
    const float *grad = grad_output, *skip = NULL; /* what the sum of a residual block passes on */
    arrange(net, 1, kept), arrange(net, 0, places);
    for (num i = count - 1; i >= 0; i--) {
        const struct block_sizes size = net->sizes[i];
        const struct block_variables v = net->variables[i];
        const struct block_gradients g = gradients[i];
        const num channels = size.outputs * lanes, h = kept[i].height, w = kept[i].width;
        const float *input = i ? buffer + kept[i - 1].output : x;
        const float *middle = buffer + kept[i].middle, *saved = buffer + kept[i].saved;
        float *grad_middle = work + places[i].middle, *grad_input = i ? work + places[i].output : grad_x;
        if (v.mean)
            normalize_backward(middle, grad, images, h, w, channels, size.pool, NULL, saved, grad_middle, g.gamma,
                               g.beta, NULL);
        else
            layer_normalize_backward(middle, grad, images, h, w, channels, lanes, size.pool, v.gamma, v.beta, saved,
                                     grad_middle, g.gamma, g.beta);
        if (grad_input
            && !convolved(net, kept[i], grad_middle, v.kernel, NULL, size.outputs, size.inputs, 1, grad_input))
            return 0;
        if (!convolved_backward(net, kept[i], input, grad_middle, size.inputs, size.outputs, g.kernel, g.bias))
            return 0;
        if (skip && grad_input)
            accumulate(grad_input, skip, images * h * w * size.inputs * lanes);
        skip = size.residual ? grad : NULL;
        grad = grad_input;
    }
    return 1;
}
