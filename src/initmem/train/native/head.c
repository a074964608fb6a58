/* The end of a network: the maximum or mean over all pixels, then a dense layer. The number of channels of a replica must
   be a multiple of 8. */
#include "vectors.h"

/* The maximum or mean of every channel of one image; `row` is the number of channels times lanes. */
static void pooled(const float *x, num pixels, num row, int largest, float *to)
{
    for (num c = 0; c < row; c += LANES) {
        vec v = load(x + c);
        for (num p = 1; p < pixels; p++)
            v = largest ? larger(v, load(x + p * row + c)) : v + load(x + p * row + c);
        store(to + c, largest ? v : v / (float)pixels);
    }
}

/* Map x (images, pixels, channels, lanes) to logits (images, replicas, classes), by the kernel (replicas, classes,
   channels). The features (images, replicas, channels) are what `head_backward` needs. */
void head(const float *x, num images, num pixels, num channels, num replicas, num lanes, num classes, int largest,
          const float *kernel, const float *bias, float *features, float *logits)
{
    float row[channels * lanes];
    for (num n = 0; n < images; n++, x += pixels * channels * lanes) {
        pooled(x, pixels, channels * lanes, largest, row);
        for (num r = 0; r < replicas; r++, features += channels, logits += classes) {
            for (num c = 0; c < channels; c++)
                features[c] = row[c * lanes + r];
            for (num o = 0; o < classes; o++) {
                const float *by = kernel + (r * classes + o) * channels;
                float total = 0;
                vec sum = {0};
                for (num c = 0; c < channels; c += LANES)
                    sum += load(features + c) * load(by + c);
                for (int i = 0; i < LANES; i++)
                    total += sum[i];
                logits[o] = total + bias[r * classes + o];
            }
        }
    }
}

/* The gradients of x, kernel and bias. Equal maxima share a gradient, as in PyTorch; where the maximum is not a number,
   neither is the gradient. */
void head_backward(const float *x, const float *features, const float *grad_logits, num images, num pixels,
                   num channels, num replicas, num lanes, num classes, int largest, const float *kernel, float *grad_x,
                   float *grad_kernel, float *grad_bias)
{
    const num width = channels * lanes;
    float row[width], grad_row[width], grad_features[channels];
    memset(grad_kernel, 0, replicas * classes * channels * sizeof *grad_kernel);
    memset(grad_bias, 0, replicas * classes * sizeof *grad_bias);
    memset(grad_row, 0, sizeof grad_row); /* empty lanes stay zero */
    for (num n = 0; n < images; n++, x += pixels * width, grad_x += pixels * width) {
        for (num r = 0; r < replicas; r++, features += channels, grad_logits += classes) {
            memset(grad_features, 0, sizeof grad_features);
            for (num o = 0; o < classes; o++) {
                const num at = r * classes + o;
                const float g = grad_logits[o];
                grad_bias[at] += g;
                for (num c = 0; c < channels; c++) {
                    grad_features[c] += g * kernel[at * channels + c];
                    grad_kernel[at * channels + c] += g * features[c];
                }
            }
            for (num c = 0; c < channels; c++)
                grad_row[c * lanes + r] = grad_features[c];
        }
        if (largest)
            pooled(x, pixels, width, 1, row);
        for (num c = 0; c < width; c += LANES) {
            const vec one = (vec){0} + 1, most = load(row + c);
            vec count = {0};
            for (num p = 0; largest && p < pixels; p++)
                count += where(load(x + p * width + c) == most, one);
            const vec share = load(grad_row + c) / (largest ? count : one * (float)pixels);
            for (num p = 0; p < pixels; p++)
                store(grad_x + p * width + c, largest ? share * where(load(x + p * width + c) == most, one) : share);
        }
    }
}
