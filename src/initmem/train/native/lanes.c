/* 3x3 convolutions of many small networks at once: the lanes of a vector are replicas.

   Tiny networks have too few channels to fill a vector, so replicas fill it instead: every operand of the direct
   convolution is a vector over replicas, which never mix. The number of outputs must be a multiple of 4.
*/
#include "vectors.h"

enum { QUAD = 4 };

/* Rearrange kernels (replicas * outputs, inputs, 3, 3) to (9, inputs, outputs, lanes), or, transposed and rotated by
   180 degrees, to (9, outputs, inputs, lanes). Empty lanes are zero. */
static void kernel_lanes(const float *kernel, struct pack pack, num inputs, num outputs, int transposed, float *to)
{
    const num each = 9 * inputs * outputs;
    for (num o = 0; o < outputs; o++)
        for (num k = 0; k < inputs; k++)
            for (num tap = 0; tap < 9; tap++, kernel++) {
                const num at = transposed ? ((8 - tap) * outputs + o) * inputs + k : (tap * inputs + k) * outputs + o;
                for (num r = 0; r < pack.lanes; r++)
                    to[at * pack.lanes + r] = r < pack.replicas ? kernel[r * each] : 0;
            }
}

/* Accumulate the products of one vector, or two, with the vectors of 4 outputs. */
static inline __attribute__((always_inline)) void multiply_quad(vec sum[QUAD][2], vec first, vec second,
                                                                const float *by, num lanes, const int two)
{
    for (int q = 0; q < QUAD; q++) {
        const vec v = load(by + q * lanes);
        MULTIPLY_ADD(sum[q][0], first, v);
        if (two)
            MULTIPLY_ADD(sum[q][1], second, v);
    }
}

/* 4 outputs at one pixel of one image, or of two, for a vector of lanes. */
static inline __attribute__((always_inline)) void output_lanes(const float *x, const float *kernel, const float *bias,
                                                               num row, num column, num height, num width, num inputs,
                                                               num outputs, num lanes, const int images, float *y)
{
    const num image = height * width;
    vec sum[QUAD][2];
    for (int q = 0; q < QUAD; q++)
        for (int i = 0; i < images; i++)
            sum[q][i] = load(bias + q * lanes);
    for (num r = row > 0 ? row - 1 : 0; r < minimum(row + 2, height); r++)
        for (num c = column > 0 ? column - 1 : 0; c < minimum(column + 2, width); c++) {
            const float *at = x + (r * width + c) * inputs * lanes;
            const float *by = kernel + (3 * (r - row + 1) + c - column + 1) * inputs * outputs * lanes;
            for (num k = 0; k < inputs; k++, at += lanes, by += outputs * lanes) {
                const vec first = load(at), second = images > 1 ? load(at + image * inputs * lanes) : first;
                multiply_quad(sum, first, second, by, lanes, images > 1);
            }
        }
    for (int q = 0; q < QUAD; q++)
        for (int i = 0; i < images; i++)
            store(y + (i * image + row * width + column) * outputs * lanes + q * lanes, sum[q][i]);
}

/* Like `convolve`, for x (images, height, width, inputs, lanes) and kernels (replicas * outputs, inputs, 3, 3). */
int NAME(lanes_convolve)(const float *x, const float *kernel, const float *bias, num images, num height, num width,
                   num inputs, num outputs, num replicas, num lanes, int transposed, float *y)
{
    const struct pack pack = {replicas, lanes};
    float *kernels = scratch((9 * inputs + 1) * outputs * lanes), *biases = kernels + 9 * inputs * outputs * lanes;
    if (!kernels)
        return 0;
    if (transposed)
        kernel_lanes(kernel, pack, outputs, inputs, 1, kernels);
    else
        kernel_lanes(kernel, pack, inputs, outputs, 0, kernels);
    for (num c = 0; c < outputs * lanes; c++) {
        const num v = bias ? in_variable(pack, outputs * lanes, c) : -1;
        biases[c] = v < 0 ? 0 : bias[v];
    }
    for (num n = 0; n < images;
         n += 2, x += 2 * height * width * inputs * lanes, y += 2 * height * width * outputs * lanes)
        for (num lane = 0; lane < lanes; lane += LANES)
            for (num o = 0; o < outputs; o += QUAD)
                for (num row = 0; row < height; row++)
                    for (num column = 0; column < width; column++) {
                        const num at = o * lanes + lane;
                        if (n + 1 < images)
                            output_lanes(x + lane, kernels + at, biases + at, row, column, height, width, inputs,
                                         outputs, lanes, 2, y + at);
                        else
                            output_lanes(x + lane, kernels + at, biases + at, row, column, height, width, inputs,
                                         outputs, lanes, 1, y + at);
                    }
    return 1;
}

/* The kernel gradient at one tap, summed over pixels: 1 or 2 inputs x 4 outputs, for a vector of lanes. */
static inline __attribute__((always_inline)) void tap_lanes(const float *x, const float *grad_output, num down,
                                                            num right, num images, num height, num width, num inputs,
                                                            num outputs, num lanes, const int wide, float *to)
{
    vec sum[QUAD][2] = {{{0}}};
    for (num n = 0; n < images; n++)
        for (num row = down < 0 ? 1 : 0; row < height - (down > 0); row++) {
            const num start = right < 0 ? 1 : 0, end = width - (right > 0), line = n * height + row;
            const float *at = x + ((line + down) * width + start + right) * inputs * lanes;
            const float *by = grad_output + (line * width + start) * outputs * lanes;
            for (num column = start; column < end; column++, at += inputs * lanes, by += outputs * lanes) {
                const vec first = load(at), second = wide > 1 ? load(at + lanes) : first;
                multiply_quad(sum, first, second, by, lanes, wide > 1);
            }
        }
    for (int i = 0; i < wide; i++)
        for (int q = 0; q < QUAD; q++) {
            float *dst = to + (i * outputs + q) * lanes;
            store(dst, load(dst) + sum[q][i]);
        }
}

/* Like `convolve_backward`: grad_kernel (replicas * outputs, inputs, 3, 3). */
int NAME(lanes_convolve_backward)(const float *x, const float *grad_output, num images, num height, num width, num inputs,
                            num outputs, num replicas, num lanes, float *grad_kernel, float *grad_bias)
{
    const struct pack pack = {replicas, lanes};
    float *sums = scratch(9 * inputs * outputs * lanes);
    if (!sums)
        return 0;
    memset(sums, 0, 9 * inputs * outputs * lanes * sizeof *sums);
    const num pixels = height * width, group = pixels < CHUNK ? CHUNK / pixels : 1; /* so that it stays in the cache */
    for (num n = 0; n < images; n += group) {
        const num count = minimum(group, images - n);
        for (num lane = 0; lane < lanes; lane += LANES)
            for (num o = 0; o < outputs; o += QUAD)
                for (num k = 0; k < inputs; k += 2)
                    for (num tap = 0; tap < 9; tap++) {
                        float *to = sums + ((tap * inputs + k) * outputs + o) * lanes + lane;
                        const float *at = x + (n * pixels * inputs + k) * lanes + lane;
                        const float *by = grad_output + (n * pixels * outputs + o) * lanes + lane;
                        const num down = tap / 3 - 1, right = tap % 3 - 1;
                        if (k + 1 < inputs)
                            tap_lanes(at, by, down, right, count, height, width, inputs, outputs, lanes, 2, to);
                        else
                            tap_lanes(at, by, down, right, count, height, width, inputs, outputs, lanes, 1, to);
                    }
    }
    for (num o = 0; o < outputs; o++)
        for (num k = 0; k < inputs; k++)
            for (num tap = 0; tap < 9; tap++, grad_kernel++)
                for (num r = 0; r < replicas; r++)
                    grad_kernel[r * 9 * inputs * outputs] = sums[((tap * inputs + k) * outputs + o) * lanes + r];
    for (num c = 0; c < outputs * lanes; c += LANES) {
        vec sum = {0};
        for (num n = 0; n < images * height * width; n++)
            sum += load(grad_output + n * outputs * lanes + c);
        for (num i = 0; i < LANES; i++) {
            const num v = in_variable(pack, outputs * lanes, c + i);
            if (v >= 0)
                grad_bias[v] = sum[i];
        }
    }
    return 1;
}
