/* What happens between two batches, for all variables of a network in one call: update rules, moving statistics, norms.

   Variable v of a list is a block of sizes[v] floats, whatever its shape; its gradient and its state are laid out alike.
   The rules are those of initmem.train.optimizers, rounded after the same operations but for fused multiply-adds. */
#include <math.h>

#include "vectors.h"

/* to += factor * from. */
void add_scaled(num count, const num *sizes, float *const *from, float *const *to, double factor)
{
    const float by = factor;
    for (num v = 0; v < count; v++) {
        const float *restrict x = from[v];
        float *restrict y = to[v];
        for (num i = 0; i < sizes[v]; i++)
            y[i] += by * x[i];
    }
}

void momentum_step(num count, const num *sizes, float *const *gradients, float *const *variables,
                   float *const *velocities, double momentum, double rate)
{
    const float kept = momentum, by = -rate;
    for (num v = 0; v < count; v++) {
        const float *restrict g = gradients[v];
        float *restrict w = variables[v], *restrict velocity = velocities[v];
        for (num i = 0; i < sizes[v]; i++) {
            velocity[i] = velocity[i] * kept + by * g[i];
            w[i] += velocity[i];
        }
    }
}

/* `rate` includes the correction of the bias of both averages. */
void adam_step(num count, const num *sizes, float *const *gradients, float *const *variables, float *const *means,
               float *const *squares, double beta1, double beta2, double epsilon, double rate)
{
    const float share = 1 - beta1, kept = beta2, added = 1 - beta2, least = epsilon, by = -rate;
    for (num v = 0; v < count; v++) {
        const float *restrict g = gradients[v];
        float *restrict w = variables[v], *restrict mean = means[v], *restrict square = squares[v];
        for (num i = 0; i < sizes[v]; i++) {
            mean[i] += share * (g[i] - mean[i]);
            square[i] = square[i] * kept + added * g[i] * g[i];
            w[i] += by * mean[i] / (sqrtf(square[i]) + least);
        }
    }
}

/* The sum of all squares of each replica's share of the variables, which is a block of its own. */
void sum_of_squares(num count, const num *sizes, float *const *variables, num replicas, float *sums)
{
    for (num r = 0; r < replicas; r++) {
        double total = 0;
        for (num v = 0; v < count; v++) {
            const num size = sizes[v] / replicas;
            const float *x = variables[v] + r * size;
            for (num start = 0; start < size; start += CHUNK * LANES) {
                const num end = minimum(start + CHUNK * LANES, size);
                vec sum = {0};
                num i = start;
                for (; i + LANES <= end; i += LANES)
                    sum += load(x + i) * load(x + i);
                for (int lane = 0; lane < LANES; lane++)
                    total += sum[lane];
                for (; i < end; i++)
                    total += (double)x[i] * x[i];
            }
        }
        sums[r] = total;
    }
}

/* Move moving statistics towards those of a batch by this share. A batch variance is multiplied by factors[v] first; one
   that is multiplied by zero counts as zero, also if it is not a number. */
void absorb(num count, const num *sizes, float *const *batch_means, float *const *batch_variances,
            float *const *means, float *const *variances, const double *factors, double share)
{
    for (num v = 0; v < count; v++)
        for (num i = 0; i < sizes[v]; i++) {
            const double variance = factors[v] ? factors[v] * batch_variances[v][i] : 0;
            means[v][i] += share * (batch_means[v][i] - means[v][i]);
            variances[v][i] += share * (variance - variances[v][i]);
        }
}
