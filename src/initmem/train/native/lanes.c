/* 3x3 convolutions of many small networks at once: the lanes of a vector are replicas.

   Tiny networks leave no channels to fill a vector with. Replicas do it instead: every number of the plain sum is a
   vector of them, and no replica sees another. Outputs come in fours.
*/
#include "vectors.h"

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

/* Add a vector, or two, times those of 4 outputs. */
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
                multiply_quad(sum, first, second, by, lanes, images > 1);
            }
        }
    for (int q = 0; q < QUAD; q++)
        for (int i = 0; i < images; i++)
            store(y + (i * image + row * width + column) * outputs * lanes + q * lanes, sum[q][i]);
}

/* Like `convolve`, for x (images, height, width, inputs, lanes) and kernels (replicas * outputs, inputs, 3, 3). */
int lanes_convolve(const float *x, const float *kernel, const float *bias, num images, num height, num width,
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
                multiply_quad(sum, first, second, by, lanes, wide > 1);
            }
        }
    for (int i = 0; i < wide; i++)
        for (int q = 0; q < QUAD; q++) {
            float *place = to + (i * outputs + q) * lanes;
            store(place, load(place) + sum[q][i]);
        }
}

/* Like `convolve_back`: for_kernel (replicas * outputs, inputs, 3, 3). */
int lanes_convolve_back(const float *x, const float *slope, num images, num height, num width, num inputs,
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
