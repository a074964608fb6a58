/* The layers in C against plain loops, for processors on which there is no PyTorch to compare with. Prints the largest
   relative error of each and fails if one is large. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "layers.h"

enum { N = 3, SIDE = 8, IN = 16, OUT = 24, R = 5, LANES = 8, LARGE = 128, MOST = LARGE * LARGE * 9 };
static float x[MOST], y[MOST], grad[MOST], kernel[MOST], grad_kernel[MOST], bias[LARGE];
static float gamma_[64], beta_[64], mean[64], variance[64], saved[MOST], grad_bias[LARGE];
static double exact[MOST];
static int failed;

static void fill(float *to, num n)
{
    for (num i = 0; i < n; i++)
        to[i] = rand() / (float)RAND_MAX - 0.5f;
}

static void check(const char *name, const float *found, num n)
{
    double off = 0, size = 0;
    for (num i = 0; i < n; i++)
        off += pow(found[i] - exact[i], 2), size += pow(exact[i], 2);
    off = sqrt(off / size);
    printf("%s %.1e\n", name, off);
    failed |= !(off < 5e-6);
}

/* Channel c of replica r at a pixel, with `lanes` replicas side by side. */
static double at(const float *from, num n, num row, num column, num channels, num lanes, num c, num r)
{
    if (row < 0 || row >= SIDE || column < 0 || column >= SIDE)
        return 0;
    return from[(((n * SIDE + row) * SIDE + column) * channels + c) * lanes + r];
}

#define EVERYWHERE for (num n = 0; n < N; n++) for (num row = 0; row < SIDE; row++) for (num col = 0; col < SIDE; col++)
#define TAPS for (num i = 0; i < 3; i++) for (num j = 0; j < 3; j++)

static void one_network(num inputs, num outputs)
{
    EVERYWHERE for (num o = 0; o < outputs; o++) {
        double sum = bias[o];
        for (num k = 0; k < inputs; k++)
            TAPS sum += at(x, n, row + i - 1, col + j - 1, inputs, 1, k, 0) * kernel[((o * 3 + i) * 3 + j) * inputs + k];
        exact[((n * SIDE + row) * SIDE + col) * outputs + o] = sum;
    }
    failed |= !convolve(x, kernel, bias, N, SIDE, SIDE, inputs, outputs, 0, y);
    check("convolution", y, N * SIDE * SIDE * outputs);
    for (num o = 0; o < outputs; o++)
        for (num k = 0; k < inputs; k++)
            TAPS {
                double sum = 0;
                EVERYWHERE sum += at(x, n, row + i - 1, col + j - 1, inputs, 1, k, 0) * at(grad, n, row, col, outputs, 1, o, 0);
                exact[((o * 3 + i) * 3 + j) * inputs + k] = sum;
            }
    failed |= !convolve_backward(x, grad, N, SIDE, SIDE, inputs, outputs, grad_kernel, grad_bias);
    check("kernel gradient", grad_kernel, outputs * inputs * 9);
}

static void in_lanes(void)
{
    const num inputs = 3, outputs = 4;
    EVERYWHERE for (num o = 0; o < outputs; o++) for (num r = 0; r < LANES; r++) {
        double sum = r < R ? bias[r * outputs + o] : 0;
        for (num k = 0; r < R && k < inputs; k++)
            TAPS sum += at(x, n, row + i - 1, col + j - 1, inputs, LANES, k, r) *
                        kernel[((r * outputs + o) * inputs + k) * 9 + 3 * i + j];
        exact[(((n * SIDE + row) * SIDE + col) * outputs + o) * LANES + r] = sum;
    }
    const num sizes[] = {R * outputs * inputs * 9, R * outputs};
    float *const variables[] = {kernel, bias}, *const lanes[] = {grad_kernel, grad_bias};
    into_lanes(2, sizes, variables, R, LANES, lanes);
    lanes_convolve(x, grad_kernel, grad_bias, N, SIDE, SIDE, inputs, outputs, LANES, 0, y);
    check("convolution in lanes", y, N * SIDE * SIDE * outputs * LANES);
}

static void norms(void)
{
    const num pixels = N * SIDE * SIDE;
    for (num c = 0; c < IN; c++) {
        double m = 0, v = 0;
        for (num p = 0; p < pixels; p++)
            m += x[p * IN + c] / (double)pixels;
        for (num p = 0; p < pixels; p++)
            v += pow(x[p * IN + c] - m, 2) / pixels;
        for (num p = 0; p < pixels; p++)
            exact[p * IN + c] = fmax(0, (x[p * IN + c] - m) / sqrt(v + 1e-3) * gamma_[c] + beta_[c]);
    }
    normalize(x, N, SIDE, SIDE, IN, 0, NULL, gamma_, beta_, 1e-3, mean, variance, saved, y);
    check("batch normalization", y, pixels * IN);
    for (num p = 0; p < pixels; p++) {
        double m = 0, v = 0;
        for (num c = 0; c < IN; c++)
            m += x[p * IN + c] / (double)IN;
        for (num c = 0; c < IN; c++)
            v += pow(x[p * IN + c] - m, 2) / IN;
        for (num c = 0; c < IN; c++)
            exact[p * IN + c] = fmax(0, (x[p * IN + c] - m) / sqrt(v + 1e-3) * gamma_[c] + beta_[c]);
    }
    layer_normalize(x, N, SIDE, SIDE, IN, 1, 0, gamma_, beta_, 1e-3, saved, y);
    check("layer normalization", y, pixels * IN);
}

/* Two variables of uneven sizes, two replicas. */
static void between_batches(void)
{
    const num sizes[] = {602, 26}, begin[] = {0, 602};
    float *w[2], *g[2], *m[2], *v[2], squares[2];
    for (int i = 0; i < 2; i++)
        w[i] = x + begin[i], g[i] = grad + begin[i], m[i] = y + begin[i], v[i] = saved + begin[i];
    fill(y, 628);
    for (num i = 0; i < 628; i++) {
        saved[i] = y[i] * y[i];
        const double mean = 0.9 * y[i] + 0.1 * grad[i], square = 0.99 * saved[i] + 0.01 * grad[i] * grad[i];
        exact[i] = x[i] - 0.01 * mean / (sqrt(square) + 1e-3);
    }
    adam_step(2, sizes, g, w, m, v, 0.9, 0.99, 1e-3, 0.01);
    check("adam", x, 628);
    double totals[2] = {0};
    for (num i = 0; i < 628; i++)
        totals[i < 301 || (i >= 602 && i < 615) ? 0 : 1] += pow(x[i], 2);
    exact[0] = totals[0], exact[1] = totals[1];
    sum_of_squares(2, sizes, w, 2, squares);
    check("sum of squares", squares, 2);
}

int main(void)
{
    fill(x, MOST), fill(grad, MOST), fill(kernel, MOST), fill(bias, LARGE), fill(gamma_, 64), fill(beta_, 64);
    one_network(IN, OUT), one_network(3, IN), one_network(LARGE, LARGE), in_lanes(), norms(), between_batches();
    printf("vectors of %d\n", widest());
    return failed;
}
