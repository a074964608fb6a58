/* 3x3 convolutions with 'same' padding of images with fewer channels than a vector has lanes: the first of a network.

   An output is the sum of 3 x 3 x inputs values, each times a tap of the kernel. In an image with a border of zeros, the
   values under one row of the kernel lie side by side, so that the outputs of a row of pixels are three matrix products.
*/
#include "vectors.h"

/* An image with a border of zeros, and room for ROWS pixels beyond, which are read but do not count. */
static num bordered(num height, num width, num inputs) { return ((height + 2) * (width + 2) + ROWS) * inputs; }

static void fill(const float *x, num height, num width, num inputs, float *image)
{
    for (num r = 0; r < height; r++)
        memcpy(image + ((r + 1) * (width + 2) + 1) * inputs, x + r * width * inputs, width * inputs * sizeof *x);
}

/* A row of outputs; `taps` are (3, 3 x inputs, outputs). */
static inline __attribute__((always_inline)) void output_row(const float *at, const float *taps, const float *bias,
                                                             num width, num inputs, num outputs, const int across,
                                                             float *y)
{
    for (num c = 0; c < width; c += ROWS) {
        vec sum[ROWS][2];
        for (int n = 0; n < ROWS; n++)
            for (int j = 0; j < across; j++)
                sum[n][j] = load(bias + LANES * j);
        for (num i = 0; i < 3; i++)
            multiply(at + (i * (width + 2) + c) * inputs, inputs, 1, taps + i * 3 * inputs * outputs, outputs,
                     3 * inputs, ROWS, across, sum);
        for (int n = 0; n < ROWS && c + n < width; n++)
            for (int j = 0; j < across; j++)
                store(y + (c + n) * outputs + LANES * j, sum[n][j]);
    }
}

ALONE output_rows(const float *image, const float *taps, const float *bias, num height, num width, num inputs,
                  num outputs, float *y)
{
    for (num r = 0; r < height; r++, image += (width + 2) * inputs, y += width * outputs) {
#define CALL(across) output_row(image, taps + o, bias + o, width, inputs, outputs, across, y + o)
        IN_PAIRS(outputs, o, CALL)
#undef CALL
    }
}

/* Returns 0 if out of memory. */
int NAME(few_channels_convolve)(const float *x, const float *kernel, const float *bias, num images, num height, num width,
                          num inputs, num outputs, float *y)
{
    WIDE(outputs % 16 == 0, few_channels_convolve, x, kernel, bias, images, height, width, inputs, outputs, y);
    const num size = bordered(height, width, inputs), all = 9 * inputs;
    float *image = scratch(size + all * outputs), *taps = image + size;
    if (!image)
        return 0;
    memset(image, 0, size * sizeof *image);
    for (num o = 0; o < outputs; o++)
        for (num t = 0; t < all; t++)
            taps[t * outputs + o] = kernel[o * all + t];
    for (num n = 0; n < images; n++, x += height * width * inputs, y += height * width * outputs) {
        fill(x, height, width, inputs, image);
        output_rows(image, taps, bias, height, width, inputs, outputs, y);
    }
    return 1;
}

/* Add the gradients of `count` taps that lie side by side, from one image; to (count, outputs). */
static inline __attribute__((always_inline)) void tap_grads(const float *at, const float *grads, num height, num width,
                                                            num inputs, num outputs, const int count, const int across,
                                                            double *to)
{
    float stored[9 * 2 * LANES];
    vec sum[9][2] = {{{0}}};
    for (num r = 0; r < height; r++, at += (width + 2) * inputs, grads += width * outputs)
        multiply(at, 1, inputs, grads, outputs, width, count, across, sum);
    for (int t = 0; t < count; t++)
        for (int j = 0; j < across; j++)
            store(stored + (t * across + j) * LANES, sum[t][j]);
    for (int t = 0; t < count; t++)
        for (int j = 0; j < across * LANES; j++)
            to[t * outputs + j] += stored[t * across * LANES + j];
}

ALONE image_grads(const float *image, const float *grads, num height, num width, num inputs, num outputs, double *to)
{
    const num row = 3 * inputs, step = row % 9 ? 3 : 9;
    for (num i = 0; i < 3; i++, image += (width + 2) * inputs)
        for (num t = 0; t < row; t += step, to += step * outputs)
            for (num o = 0, across; o < outputs; o += across * LANES) {
                across = ROWS == 8 && o + LANES < outputs ? 2 : 1; /* 16 registers hold the sums of one vector */
#define SUM(count, across) tap_grads(image + t, grads + o, height, width, inputs, outputs, count, across, to + o)
                if (across == 2)
                    step == 9 ? SUM(9, 2) : SUM(3, 2);
                else
                    step == 9 ? SUM(9, 1) : SUM(3, 1);
#undef SUM
            }
}

/* The gradient of the kernel, (outputs, 3, 3, inputs). Returns 0 if out of memory. */
int NAME(few_channels_kernel_grad)(const float *x, const float *grads, num images, num height, num width, num inputs,
                             num outputs, float *to)
{
    WIDE(outputs % 16 == 0, few_channels_kernel_grad, x, grads, images, height, width, inputs, outputs, to);
    const num size = bordered(height, width, inputs), all = 9 * inputs;
    double totals[all * outputs];
    float *image = scratch(size);
    if (!image)
        return 0;
    memset(image, 0, size * sizeof *image);
    memset(totals, 0, sizeof totals);
    for (num n = 0; n < images; n++, x += height * width * inputs, grads += height * width * outputs) {
        fill(x, height, width, inputs, image);
        image_grads(image, grads, height, width, inputs, outputs, totals);
    }
    for (num o = 0; o < outputs; o++)
        for (num t = 0; t < all; t++)
            to[o * all + t] = totals[t * outputs + o];
    return 1;
}
