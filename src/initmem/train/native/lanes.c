/* 3x3 convolutions of many small networks at once: the lanes of a vector are replicas.

   Tiny networks have too few channels to fill a vector, so replicas fill it instead: every operand of the direct
   convolution is a vector over replicas, which never mix. Variables are in lanes as well: a kernel is (outputs, inputs,
   3, 3, lanes). The number of outputs must be a multiple of 4.
*/
#include "vectors.h"

/* Sums are kept in registers for 4 outputs and so many images or inputs: vectors of 16 come with twice the registers. */
enum { QUAD = 4, TILE = 2 };

/* Accumulate the products of 4 vectors that are `step` floats apart with `count` others, `apart` floats apart. */
static inline __attribute__((always_inline)) void multiply_quad(vec sum[QUAD][TILE], const float *at, num apart,
                                                                const int count, const float *by, num step)
{
    vec factor[TILE];
    for (int i = 0; i < count; i++)
        factor[i] = load(at + i * apart);
    for (int q = 0; q < QUAD; q++) {
        const vec v = load(by + q * step);
        for (int i = 0; i < count; i++)
            MULTIPLY_ADD(sum[q][i], factor[i], v);
    }
}

/* A kernel as a convolution reads it: how many floats its outputs and its inputs are apart, and whether it is rotated by
   180 degrees. */
struct kernel {
    num output, input;
    int rotated;
};

/* 4 outputs at one pixel of one image, or of TILE, for a vector of lanes. */
static inline __attribute__((always_inline)) void output_lanes(const float *x, const float *kernel, struct kernel is,
                                                               const float *bias, num row, num column, num height,
                                                               num width, num inputs, num outputs, num lanes,
                                                               const int images, float *y)
{
    const num image = height * width;
    vec sum[QUAD][TILE];
    for (int q = 0; q < QUAD; q++)
        for (int i = 0; i < images; i++)
            sum[q][i] = bias ? load(bias + q * lanes) : (vec){0};
    for (num r = row > 0 ? row - 1 : 0; r < minimum(row + 2, height); r++)
        for (num c = column > 0 ? column - 1 : 0; c < minimum(column + 2, width); c++) {
            const num tap = 3 * (r - row + 1) + c - column + 1;
            const float *at = x + (r * width + c) * inputs * lanes;
            const float *by = kernel + (is.rotated ? 8 - tap : tap) * lanes;
            for (num k = 0; k < inputs; k++, at += lanes, by += is.input)
                multiply_quad(sum, at, image * inputs * lanes, images, by, is.output);
        }
    for (int q = 0; q < QUAD; q++)
        for (int i = 0; i < images; i++)
            store(y + (i * image + row * width + column) * outputs * lanes + q * lanes, sum[q][i]);
}

/* Like `convolve`, for x (images, height, width, inputs, lanes). */
void NAME(lanes_convolve)(const float *x, const float *kernel, const float *bias, num images, num height, num width,
                          num inputs, num outputs, num lanes, int transposed, float *y)
{
    const num output = (transposed ? 9 : 9 * inputs) * lanes, input = (transposed ? 9 * outputs : 9) * lanes;
    const struct kernel is = {output, input, transposed};
    const num from = height * width * inputs * lanes, into = height * width * outputs * lanes;
    for (num lane = 0; lane < lanes; lane += LANES)
        for (num o = 0; o < outputs; o += QUAD) { /* outermost, so that this part of the kernel stays in the cache */
            const float *by = kernel + o * output + lane, *shift = bias ? bias + o * lanes + lane : NULL;
            for (num n = 0; n < images;) {
                const float *at = x + n * from + lane;
                float *to = y + n * into + o * lanes + lane;
                const int many = n + TILE <= images;
                for (num row = 0; row < height; row++)
                    for (num column = 0; column < width; column++)
                        if (many)
                            output_lanes(at, by, is, shift, row, column, height, width, inputs, outputs, lanes, TILE, to);
                        else
                            output_lanes(at, by, is, shift, row, column, height, width, inputs, outputs, lanes, 1, to);
                n += many ? TILE : 1;
            }
        }
}

/* The kernel gradient at one tap, summed over pixels: 1 or TILE inputs x 4 outputs, for a vector of lanes. */
static inline __attribute__((always_inline)) void tap_lanes(const float *x, const float *grad_output, num down,
                                                            num right, num images, num height, num width, num inputs,
                                                            num outputs, num lanes, const int wide, float *to)
{
    vec sum[QUAD][TILE] = {{{0}}};
    for (num n = 0; n < images; n++)
        for (num row = down < 0 ? 1 : 0; row < height - (down > 0); row++) {
            const num start = right < 0 ? 1 : 0, end = width - (right > 0), line = n * height + row;
            const float *at = x + ((line + down) * width + start + right) * inputs * lanes;
            const float *by = grad_output + (line * width + start) * outputs * lanes;
            for (num column = start; column < end; column++, at += inputs * lanes, by += outputs * lanes)
                multiply_quad(sum, at, lanes, wide, by, lanes);
        }
    for (int i = 0; i < wide; i++)
        for (int q = 0; q < QUAD; q++) {
            float *dst = to + (q * inputs + i) * 9 * lanes;
            store(dst, load(dst) + sum[q][i]);
        }
}

/* Like `convolve_backward`; the gradients are in lanes, too. */
void NAME(lanes_convolve_backward)(const float *x, const float *grad_output, num images, num height, num width,
                                   num inputs, num outputs, num lanes, float *grad_kernel, float *grad_bias)
{
    const num pixels = height * width, group = pixels < CHUNK ? CHUNK / pixels : 1; /* so that it stays in the cache */
    memset(grad_kernel, 0, 9 * inputs * outputs * lanes * sizeof *grad_kernel);
    for (num n = 0; n < images; n += group) {
        const num count = minimum(group, images - n);
        for (num lane = 0; lane < lanes; lane += LANES)
            for (num o = 0; o < outputs; o += QUAD)
                for (num k = 0, many; k < inputs; k += many ? TILE : 1) {
                    many = k + TILE <= inputs;
                    for (num tap = 0; tap < 9; tap++) {
                        float *to = grad_kernel + ((o * inputs + k) * 9 + tap) * lanes + lane;
                        const float *at = x + (n * pixels * inputs + k) * lanes + lane;
                        const float *by = grad_output + (n * pixels * outputs + o) * lanes + lane;
                        const num down = tap / 3 - 1, right = tap % 3 - 1;
                        if ((down && height == 1) || (right && width == 1))
                            continue;
                        if (many)
                            tap_lanes(at, by, down, right, count, height, width, inputs, outputs, lanes, TILE, to);
                        else
                            tap_lanes(at, by, down, right, count, height, width, inputs, outputs, lanes, 1, to);
                    }
                }
    }
    for (num c = 0; c < outputs * lanes; c += LANES) {
        vec sum = {0};
        for (num n = 0; n < images * pixels; n++)
            sum += load(grad_output + n * outputs * lanes + c);
        store(grad_bias + c, sum);
    }
}
