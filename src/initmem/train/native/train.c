/* Training of a single network, or a pack in lanes: many batches in one call: forward and backward pass, update, moving statistics. */
#include <math.h>

#include "vectors.h"

enum { LINE = 16 }; /* floats of a variable that are rearranged at a time: a cache line */

/* Copy variables (replicas, n) to lanes: (n, lanes). Empty lanes become zero; sizes[v] is replicas * n. */
void into_lanes(num count, const num *sizes, float *const *from, num replicas, num lanes, float *const *to)
{
    for (num v = 0; v < count; v++) {
        const num n = sizes[v] / replicas;
        for (num start = 0; start < n; start += LINE)
            for (num r = 0; r < lanes; r++)
                for (num i = start; i < minimum(start + LINE, n); i++)
                    to[v][i * lanes + r] = r < replicas ? from[v][r * n + i] : 0;
    }
}

void out_of_lanes(num count, const num *sizes, float *const *to, num replicas, num lanes, float *const *from)
{
    for (num v = 0; v < count; v++) {
        const num n = sizes[v] / replicas;
        for (num start = 0; start < n; start += LINE)
            for (num r = 0; r < replicas; r++)
                for (num i = start; i < minimum(start + LINE, n); i++)
                    to[v][r * n + i] = from[v][i * lanes + r];
    }
}

/* Images (images, replicas, channels, pixels) to lanes: (images, pixels, channels, lanes). */
static void images_into_lanes(const float *x, const struct pack *pack, num images, float *to)
{
    const num pixels = pack->network.height * pack->network.width, channels = pack->channels;
    const num lanes = pack->network.lanes;
    memset(to, 0, images * pixels * channels * lanes * sizeof *to);
    for (num n = 0; n < images; n++, to += pixels * channels * lanes)
        for (num r = 0; r < pack->replicas; r++)
            for (num c = 0; c < channels; c++)
                for (num p = 0; p < pixels; p++)
                    to[(p * channels + c) * lanes + r] = *x++;
}

/* The gradient of the mean cross-entropy of a batch. Adds the losses, and how many labels are the first of the largest
   logits, to the sums of every replica. */
static void cross_entropy(const struct pack *pack, num images, const float *logits, const long long *labels, float *grad,
                          double *losses, double *correct)
{
    const num classes = pack->classes;
    for (num n = 0; n < images; n++)
        for (num r = 0; r < pack->replicas; r++, logits += classes, grad += classes, labels++) {
            num best = 0;
            float total = 0;
            for (num o = 1; o < classes; o++)
                best = logits[o] > logits[best] ? o : best;
            for (num o = 0; o < classes; o++)
                total += grad[o] = expf(logits[o] - logits[best]);
            for (num o = 0; o < classes; o++)
                grad[o] = (grad[o] / total - (o == *labels)) / images;
            losses[r] += logf(total) + logits[best] - logits[*labels];
            correct[r] += best == *labels;
        }
}

/* Add rate / (sum of the squares of all kernels) to the angular clock of every replica. */
static void add_angle(const struct pack *pack, double rate, double *angular)
{
    const num lanes = pack->network.lanes, in_lanes = 4 * pack->network.count;
    double total[lanes];
    memset(total, 0, sizeof total);
    for (num v = 0; v < pack->count; v++) {
        const float *x = pack->variables[v];
        if (!pack->is_kernel[v])
            continue;
        if (lanes == 1 || v >= in_lanes) { /* the head is never in lanes */
            float squares[pack->replicas];
            sum_of_squares(1, &pack->sizes[v], &pack->variables[v], pack->replicas, squares);
            for (num r = 0; r < pack->replicas; r++)
                total[r] += squares[r];
            continue;
        }
        for (num start = 0; start < pack->sizes[v]; start += CHUNK * lanes)
            for (num lane = 0; lane < lanes; lane += LANES) {
                vec sum = {0};
                for (num i = start + lane; i < minimum(start + CHUNK * lanes, pack->sizes[v]); i += lanes)
                    sum += load(x + i) * load(x + i);
                add(total + lane, sum);
            }
    }
    for (num r = 0; r < pack->replicas; r++)
        angular[r] += rate / total[r];
}

/* One update, as in initmem.train.optimizers: L2 is part of the gradients, weight decay is not. */
static void update(const struct pack *pack, const struct rule *rule, num k, double rate)
{
    for (num v = 0; v < pack->count; v++) {
        const num *size = &pack->sizes[v];
        float *const *w = &pack->variables[v], *const *g = &pack->all_gradients[v];
        if (rule->l2 && pack->is_kernel[v])
            add_scaled(1, size, w, g, 2 * rule->l2);
        if (rule->decay && pack->decays[v]) {
            const float kept = 1 - rate * rule->decay;
            for (num i = 0; i < *size; i++)
                w[0][i] *= kept;
        }
        if (rule->kind == 0)
            add_scaled(1, size, g, w, -rate);
        else if (rule->kind == 1)
            momentum_step(1, size, g, w, &pack->first[v], rule->momentum, rate);
        else
            adam_step(1, size, g, w, &pack->first[v], &pack->second[v], rule->beta1, rule->beta2, rule->epsilon,
                      rate * sqrt(1 - pow(rule->beta2, k)) / (1 - pow(rule->beta1, k)));
    }
}

/* Move the moving statistics of every block by this share towards those of the last batch, with biased variances. */
static void absorb_batch(const struct pack *pack, num images, double share)
{
    num pixels = images * pack->network.height * pack->network.width;
    for (num i = 0; i < pack->network.count; i++) {
        const struct block_sizes block = pack->network.sizes[i];
        const struct block_variables v = pack->network.variables[i];
        const num size = block.outputs * pack->network.lanes;
        const double factor = 1 - 1.0 / pixels;
        absorb(1, &size, &v.mean, &v.variance, &pack->moving[2 * i], &pack->moving[2 * i + 1], &factor, share);
        pixels /= block.pool ? 4 : 1;
    }
}

/* Train on examples x (examples, replicas, channels, height, width), of a single network (examples, height, width,
   channels), with labels (examples, replicas), in batches of network.images. Batch b has the learning rate rates[b] and moves the moving statistics by shares[b]. Losses, correct
   answers and angular clocks are added to the sums of every replica. Without a rule, there is only the forward pass, for
   the statistics. Returns 0 if out of memory. */
int train(const struct pack *pack, const struct rule *rule, num examples, const float *x, const long long *labels,
          const double *rates, const double *shares, double *losses, double *correct, double *angular)
{
    struct network net = pack->network;
    const num lanes = net.lanes, replicas = pack->replicas, classes = pack->classes, batch = net.images;
    const num channels = net.sizes[net.count - 1].outputs, each = net.height * net.width * pack->channels;
    num pixels = net.height * net.width;
    for (num i = 0; i < net.count; i++)
        pixels /= net.sizes[i].pool ? 4 : 1;
    const num kept = chain_floats(&net, 1), work = chain_floats(&net, 0), last = batch * pixels * channels * lanes;
    const num rows = batch * replicas;
    const num in = lanes > 1 ? batch * each * lanes : 0;
    float *start = aligned_alloc(64, (in + kept + work + 2 * last + rows * (channels + 2 * classes) + 15) / 16 * 64);
    if (!start)
        return 0;
    float *buffer = start + in, *spare = buffer + kept, *y = spare + work, *grad_y = y + last;
    float *features = grad_y + last, *logits = features + rows * channels, *grad = logits + rows * classes;
    float *const *head_variables = pack->variables + 4 * net.count;
    float *const *head_gradients = pack->all_gradients + 4 * net.count;
    int done = 1;
    for (num first = 0, b = 0; done && first < examples; first += batch, b++) {
        const float *input = x + first * replicas * each;
        net.images = minimum(batch, examples - first);
        if (lanes > 1)
            images_into_lanes(input, pack, net.images, start), input = start;
        done = chain(&net, 1, input, buffer, y);
        if (pack->moving && shares[b])
            absorb_batch(pack, net.images, shares[b]);
        if (!rule || !done)
            continue;
        head(y, net.images, pixels, channels, replicas, lanes, classes, pack->largest, head_variables[0],
             head_variables[1], features, logits);
        cross_entropy(pack, net.images, logits, labels + first * replicas, grad, losses, correct);
        head_backward(y, features, grad, net.images, pixels, channels, replicas, lanes, classes, pack->largest,
                      head_variables[0], grad_y, head_gradients[0], head_gradients[1]);
        done = chain_backward(&net, input, buffer, grad_y, pack->gradients, spare, NULL);
        add_angle(pack, rates[b], angular);
        update(pack, rule, rule->update + b, rates[b]);
    }
    free(start);
    return done;
}
