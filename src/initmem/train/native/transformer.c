/* Blocks of a pre-norm transformer and the layer normalization after the last one: all of them in one call per direction,
   replica by replica.

   Sequences occupy the lanes of vectors: activations are (position, channel, lane). All sequences of a group of lanes go
   through all blocks, so that their activations stay in the cache. The last lanes of the last group may be empty. */
#include <math.h>

#include "vectors.h"

enum { DOWN = 4, ACROSS = LANES / 4 }; /* of a tile of sums, which are as many as a vector has lanes */
typedef float part __attribute__((vector_size(4 * ACROSS), aligned(4), may_alias));
enum { VARIABLES = 12 };               /* of a block */

/* Of a block, in the order of these names; weights are (outputs, inputs). */
enum { GAMMA1, BETA1, GAMMA2, BETA2, MIX, MIX_BIAS, JOIN, JOIN_BIAS, EXPAND, EXPAND_BIAS, PROJECT, PROJECT_BIAS };

/* Entry (i, j) is `row` * i + `column` * j floats after the first one. */
struct matrix {
    float *at;
    num row, column;
};

/* Floats from one position to the next: one vector more than there are channels, since at a distance of a power of two
   all positions would compete for the same few places in the cache. */
static inline num line(num channels) { return (channels + 1) * LANES; }

/* Activations (position, channel, lane) as a matrix, and a matrix the other way around. */
static inline struct matrix positions_of(const float *x, num channels)
{
    return (struct matrix){(float *)x, line(channels), LANES};
}
static inline struct matrix turned(struct matrix m) { return (struct matrix){m.at, m.column, m.row}; }

/* Lane i of the result is the sum over all lanes of v[i], for as many vectors as there are lanes. */
#ifdef __clang__
#define PICK(a, b, which) ({ vec r; for (int l = 0; l < LANES; l++) r[l] = which[l] < LANES ? a[which[l]] : b[which[l] - LANES]; r; })
#else
#define PICK(a, b, which) __builtin_shuffle(a, b, which)
#endif
static inline __attribute__((always_inline)) void halve(vec v[LANES], const int step)
{
    mask own, other; /* every other `step` lanes come from the second of two vectors */
    for (int l = 0; l < LANES; l++)
        own[l] = l & step ? LANES + l : l, other[l] = l & step ? LANES + l - step : l + step;
#pragma GCC unroll 8
    for (int i = 0; i < LANES; i += 2 * step)
        v[i] = PICK(v[i], v[i + step], own) + PICK(v[i], v[i + step], other);
}

static inline __attribute__((always_inline)) vec sums_of_lanes(vec v[LANES])
{
    halve(v, 1), halve(v, 2), halve(v, 4);
    if (LANES == 16)
        halve(v, 8);
    return v[0];
}

/* What is added up in a tile, entry (i, j) of which is the sum over k of a(i, k) * b(j, k). */
enum kind {
    VECTORS, /* all entries are vectors */
    WEIGHTS, /* those of b are numbers */
    LANE_SUMS /* those of the result are numbers, to which the sums over all lanes are added */
};

static inline __attribute__((always_inline)) void tile(const enum kind kind, const int down, const int across,
                                                       struct matrix a, struct matrix b, num depth,
                                                       struct matrix out, const float *bias, int add)
{
    vec sum[DOWN * ACROSS] = {{0}};
    const float *left = a.at, *right = b.at;
    for (num k = 0; k < depth; k++, left += a.column, right += b.column) {
        vec value[DOWN], factor[ACROSS];
        for (int i = 0; i < down; i++)
            value[i] = load(left + i * a.row);
        for (int j = 0; j < across; j++)
            factor[j] = kind == WEIGHTS ? right[j * b.row] - (vec){0} : load(right + j * b.row);
        for (int i = 0; i < down; i++)
            for (int j = 0; j < across; j++)
                MULTIPLY_ADD(sum[i * ACROSS + j], value[i], factor[j]);
    }
    if (kind == LANE_SUMS) {
        const union {
            vec all;
            part rows[DOWN];
        } sums = {sums_of_lanes(sum)};
        for (int i = 0; i < down; i++)
            *(part *)(out.at + i * out.row) += sums.rows[i];
        return;
    }
    for (int i = 0; i < down; i++)
        for (int j = 0; j < across; j++) {
            float *to = out.at + i * out.row + j * out.column;
            vec v = sum[i * ACROSS + j];
            v = bias ? v + bias[j] : v;
            store(to, add ? v + load(to) : v);
        }
}

/* out (rows, columns) = a (rows, depth) times the transpose of b (columns, depth), + bias, + out if `add`. */
static inline __attribute__((always_inline)) void added_up(const enum kind kind, struct matrix a, struct matrix b,
                                                          num rows, num columns, num depth, struct matrix out,
                                                          const float *bias, int add)
{
    const float *const first = bias;
    float *const start = b.at, *const line = out.at;
    for (num i = 0, down; i < rows; i += down, a.at += down * a.row) {
        down = rows - i >= DOWN ? DOWN : 1;
        b.at = start, out.at = line + i * out.row, bias = first;
        for (num j = 0, across; j < columns; j += across) {
            across = columns - j >= ACROSS ? ACROSS : 1;
            if (down == DOWN && across == ACROSS)
                tile(kind, DOWN, ACROSS, a, b, depth, out, bias, add);
            else if (down == DOWN)
                tile(kind, DOWN, 1, a, b, depth, out, bias, add);
            else if (across == ACROSS)
                tile(kind, 1, ACROSS, a, b, depth, out, bias, add);
            else
                tile(kind, 1, 1, a, b, depth, out, bias, add);
            b.at += across * b.row, out.at += across * out.column, bias += bias ? across : 0;
        }
    }
}

#define ALONE static __attribute__((noinline)) void

ALONE of_vectors(struct matrix a, struct matrix b, num rows, num columns, num depth, struct matrix out)
{
    added_up(VECTORS, a, b, rows, columns, depth, out, NULL, 0);
}

ALONE of_weights(struct matrix a, struct matrix b, num rows, num columns, num depth, struct matrix out,
                 const float *bias, int add)
{
    added_up(WEIGHTS, a, b, rows, columns, depth, out, bias, add);
}

ALONE of_lanes(struct matrix a, struct matrix b, num rows, num columns, num depth, struct matrix out)
{
    added_up(LANE_SUMS, a, b, rows, columns, depth, out, NULL, 0);
}

/* y (positions, outputs) = x (positions, inputs) times a weight, + bias, + y if `add`. */
static void dense(const float *x, const float *weight, const float *bias, num positions, num inputs, num outputs,
                  int add, float *y)
{
    of_weights(positions_of(x, inputs), (struct matrix){(float *)weight, inputs, 1}, positions, outputs, inputs,
               positions_of(y, outputs), bias, add);
}

/* Adds to the gradients of weight and bias; writes that of x. */
static void dense_backward(const float *x, const float *grad_y, const float *weight, num positions, num inputs, num outputs,
                           float *grad_weight, float *grad_bias, float *grad_x)
{
    of_weights(positions_of(grad_y, outputs), (struct matrix){(float *)weight, 1, inputs}, positions, inputs, outputs,
               positions_of(grad_x, inputs), NULL, 0);
    of_lanes(turned(positions_of(grad_y, outputs)), turned(positions_of(x, inputs)), outputs, inputs, positions,
             (struct matrix){grad_weight, inputs, 1});
    for (num o = 0; o < outputs; o += LANES) { /* outputs may be no multiple of the number of lanes */
        vec sum[LANES] = {{0}};
        const num here = minimum(LANES, outputs - o);
        for (num t = 0; t < positions; t++)
            for (num i = 0; i < here; i++)
                sum[i] += load(grad_y + t * line(outputs) + (o + i) * LANES);
        const vec sums = sums_of_lanes(sum);
        for (num i = 0; i < here; i++)
            grad_bias[o + i] += sums[i];
    }
}

static inline vec root(vec v)
{
    for (int i = 0; i < LANES; i++)
        v[i] = sqrtf(v[i]);
    return v;
}

/* exp for arguments up to 0, to about 1e-7; what is not a number stays so. */
static inline vec exponential(vec x)
{
    x = choose(x < -87, -87 - (vec){0}, x);
    const vec shifted = x * 1.44269504f + 12582912, whole = shifted - 12582912; /* rounds to an integer */
    const vec r = x - whole * 0.693359375f + whole * 2.12194440e-4f;
    vec p = 1.9875691500e-4f * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f, p = p * r + 4.1665795894e-2f, p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f, p = p * r * r + r + 1;
    return p * (vec)(((mask)shifted + 127) << 23);
}

/* GELU in place, and its derivative. The normal distribution function as in Abramowitz and Stegun, 7.1.26. */
static void gelu(float *x, num count, float *slope)
{
    for (num i = 0; i < count; i += LANES, x += LANES, slope += LANES) {
        const vec v = load(x), size = choose(v < 0, -v, v), t = 1 / (1 + 0.231641888f * size);
        const vec density = exponential(v * v * -0.5f);
        vec p = 1.061405429f * t - 1.453152027f;
        p = p * t + 1.421413741f, p = p * t - 0.284496736f, p = (p * t + 0.254829592f) * t;
        const vec tail = 0.5f * p * density, below = choose(v < 0, tail, 1 - tail);
        store(x, v * below), store(slope, below + v * density * 0.39894228f);
    }
}

/* y = gamma * hat + beta, where hat = (x - mean) / std is kept, as are the inverse standard deviations. */
static void norm(const float *x, num positions, num width, const float *gamma, const float *beta, float epsilon,
                      float *hat, float *inverse, float *y)
{
    const float over_width = 1.0f / width;
    for (num t = 0; t < positions; t++, inverse += LANES) {
        vec sum = {0}, square = {0};
        for (num c = 0; c < width; c++)
            sum += load(x + c * LANES);
        const vec mean = sum * over_width;
        for (num c = 0; c < width; c++) {
            const vec off = load(x + c * LANES) - mean;
            square += off * off;
        }
        const vec over = 1 / root(square * over_width + epsilon);
        store(inverse, over);
        for (num c = 0; c < width; c++) {
            const vec unit = (load(x + c * LANES) - mean) * over;
            store(hat + c * LANES, unit), store(y + c * LANES, unit * gamma[c] + beta[c]);
        }
        x += line(width), hat += line(width), y += line(width);
    }
}

/* Adds to the gradients of gamma and beta; writes that of x over that of y, or adds it to grad_x; y is computed again. */
static void norm_backward(const float *hat, const float *inverse, num positions, num width, const float *gamma,
                                const float *grad_y, float *sums, float *grad_gamma, float *grad_beta, int add,
                                float *grad_x)
{
    const float over_width = 1.0f / width;
    memset(sums, 0, 2 * width * LANES * sizeof *sums);
    for (num t = 0; t < positions; t++, inverse += LANES) {
        vec sum = {0}, product = {0};
        for (num c = 0; c < width; c++) {
            const vec g = load(grad_y + c * LANES), unit = load(hat + c * LANES), h = g * gamma[c];
            float *own = sums + 2 * c * LANES;
            sum += h, product += h * unit;
            store(own, load(own) + g * unit), store(own + LANES, load(own + LANES) + g);
        }
        sum *= over_width, product *= over_width;
        for (num c = 0; c < width; c++) {
            const vec h = load(grad_y + c * LANES) * gamma[c], g = load(inverse) * (h - sum - product * load(hat + c * LANES));
            store(grad_x + c * LANES, add ? load(grad_x + c * LANES) + g : g);
        }
        hat += line(width), grad_y += line(width), grad_x += line(width);
    }
    for (num c = 0; c < width; c++)
        for (int i = 0; i < LANES; i++)
            grad_gamma[c] += sums[2 * c * LANES + i], grad_beta[c] += sums[(2 * c + 1) * LANES + i];
}

/* y = gamma * hat + beta again. */
static void again(const float *hat, num positions, num width, const float *gamma, const float *beta, float *y)
{
    for (num t = 0; t < positions; t++)
        for (num c = 0; c < width; c++)
            store(y + t * line(width) + c * LANES, load(hat + t * line(width) + c * LANES) * gamma[c] + beta[c]);
}

/* What is kept of a block, (position, channel, lane) but for `seen`, (head, position, position, lane). */
struct kept {
    float *hat1, *inverse1, *mixed, *seen, *joined, *hat2, *inverse2, *hidden, *slope;
};

static num kept_floats(const struct transformer *net)
{
    const num positions = net->positions, width = net->width;
    return positions * (3 * line(width) + line(3 * width) + 2 * line(4 * width) + (2 + net->heads * positions) * LANES);
}

static struct kept kept_at(const struct transformer *net, float *at)
{
    const num positions = net->positions, activations = positions * line(net->width);
    struct kept kept;
    kept.hat1 = at, kept.mixed = kept.hat1 + activations;
    kept.joined = kept.mixed + positions * line(3 * net->width), kept.hat2 = kept.joined + activations;
    kept.hidden = kept.hat2 + activations, kept.slope = kept.hidden + positions * line(4 * net->width);
    kept.inverse1 = kept.slope + positions * line(4 * net->width), kept.inverse2 = kept.inverse1 + positions * LANES;
    kept.seen = kept.inverse2 + positions * LANES;
    return kept;
}

/* Query, key and value of a head are three matrices (position, feature) in `mixed`. */
struct head {
    struct matrix query, key, value, joined, seen;
    num features;
};

static struct head head_at(const struct transformer *net, num h, float *mixed, float *joined, float *seen)
{
    const num width = net->width, features = width / net->heads, positions = net->positions;
    float *at = mixed + h * features * LANES;
    return (struct head){
        positions_of(at, 3 * width), positions_of(at + width * LANES, 3 * width),
        positions_of(at + 2 * width * LANES, 3 * width), positions_of(joined + h * features * LANES, width),
        {seen + h * positions * positions * LANES, positions * LANES, LANES}, features,
    };
}

static void attention(const struct transformer *net, const struct kept *kept)
{
    const num positions = net->positions;
    for (num h = 0; h < net->heads; h++) {
        const struct head own = head_at(net, h, kept->mixed, kept->joined, kept->seen);
        const float scale = 1 / sqrtf(own.features);
        of_vectors(own.query, own.key, positions, positions, own.features, own.seen);
        for (num i = 0; i < positions; i++) {
            float *row = own.seen.at + i * own.seen.row;
            const num end = net->causal ? i + 1 : positions;
            vec most = load(row), sum = {0};
            for (num j = 1; j < end; j++)
                most = larger(most, load(row + j * LANES));
            for (num j = 0; j < end; j++) {
                const vec v = exponential((load(row + j * LANES) - most) * scale);
                sum += v, store(row + j * LANES, v);
            }
            const vec over = 1 / sum;
            for (num j = 0; j < end; j++)
                store(row + j * LANES, load(row + j * LANES) * over);
            memset(row + end * LANES, 0, (positions - end) * LANES * sizeof *row);
        }
        of_vectors(own.seen, turned(own.value), positions, own.features, positions, own.joined);
    }
}

/* The gradients of query, key and value from that of `joined`; `work` has room for as much as `seen` of a head. */
static void attention_backward(const struct transformer *net, const struct kept *kept, float *grad_joined, float *work,
                               float *grad_mixed)
{
    const num positions = net->positions;
    for (num h = 0; h < net->heads; h++) {
        const struct head own = head_at(net, h, kept->mixed, grad_joined, kept->seen);
        const struct head into = head_at(net, h, grad_mixed, grad_joined, kept->seen);
        const struct matrix grad = {work, positions * LANES, LANES};
        const float scale = 1 / sqrtf(own.features);
        of_vectors(own.joined, own.value, positions, positions, own.features, grad);
        of_vectors(turned(own.seen), turned(own.joined), positions, own.features, positions, into.value);
        for (num i = 0; i < positions; i++) {
            const float *seen = own.seen.at + i * own.seen.row;
            float *row = work + i * positions * LANES;
            vec sum = {0};
            for (num j = 0; j < positions; j++)
                sum += load(row + j * LANES) * load(seen + j * LANES);
            for (num j = 0; j < positions; j++)
                store(row + j * LANES, (load(row + j * LANES) - sum) * load(seen + j * LANES) * scale);
        }
        of_vectors(grad, turned(own.key), positions, own.features, positions, into.query);
        of_vectors(turned(grad), turned(own.query), positions, own.features, positions, into.key);
    }
}

static void block(const struct transformer *net, float *const *v, const struct kept *kept, float *normed, float *x)
{
    const num positions = net->positions, width = net->width;
    norm(x, positions, width, v[GAMMA1], v[BETA1], net->epsilon, kept->hat1, kept->inverse1, normed);
    dense(normed, v[MIX], v[MIX_BIAS], positions, width, 3 * width, 0, kept->mixed);
    attention(net, kept);
    dense(kept->joined, v[JOIN], v[JOIN_BIAS], positions, width, width, 1, x);
    norm(x, positions, width, v[GAMMA2], v[BETA2], net->epsilon, kept->hat2, kept->inverse2, normed);
    dense(normed, v[EXPAND], v[EXPAND_BIAS], positions, width, 4 * width, 0, kept->hidden);
    gelu(kept->hidden, positions * line(4 * width), kept->slope);
    dense(kept->hidden, v[PROJECT], v[PROJECT_BIAS], positions, 4 * width, width, 1, x);
}

/* grad_x is that of the output, and becomes that of the input. */
static void block_backward(const struct transformer *net, float *const *v, const struct kept *kept, float *const *grad,
                           float *work, float *grad_x)
{
    const num positions = net->positions, width = net->width, activations = positions * line(width);
    float *normed = work, *grad_normed = normed + activations, *grad_wide = grad_normed + activations;
    float *sums = grad_wide + positions * line(4 * width), *grad_seen = sums + 2 * width * LANES;
    dense_backward(kept->hidden, grad_x, v[PROJECT], positions, 4 * width, width, grad[PROJECT], grad[PROJECT_BIAS],
                   grad_wide);
    for (num i = 0; i < positions * line(4 * width); i += LANES)
        store(grad_wide + i, load(grad_wide + i) * load(kept->slope + i));
    again(kept->hat2, positions, width, v[GAMMA2], v[BETA2], normed);
    dense_backward(normed, grad_wide, v[EXPAND], positions, width, 4 * width, grad[EXPAND], grad[EXPAND_BIAS],
                   grad_normed);
    norm_backward(kept->hat2, kept->inverse2, positions, width, v[GAMMA2], grad_normed, sums, grad[GAMMA2],
                        grad[BETA2], 1, grad_x);
    dense_backward(kept->joined, grad_x, v[JOIN], positions, width, width, grad[JOIN], grad[JOIN_BIAS], grad_normed);
    attention_backward(net, kept, grad_normed, grad_seen, grad_wide);
    again(kept->hat1, positions, width, v[GAMMA1], v[BETA1], normed);
    dense_backward(normed, grad_wide, v[MIX], positions, width, 3 * width, grad[MIX], grad[MIX_BIAS], grad_normed);
    norm_backward(kept->hat1, kept->inverse1, positions, width, v[GAMMA1], grad_normed, sums, grad[GAMMA1],
                        grad[BETA1], 1, grad_x);
}

/* Copy `count` sequences (position, channel) into lanes, or back; empty lanes hold zeros. */
static void into(const float *from, num count, num positions, num width, float *to)
{
    memset(to, 0, positions * line(width) * sizeof *to);
    for (num t = 0; t < positions; t++, from += width, to += line(width))
        for (num c = 0; c < width; c++)
            for (num lane = 0; lane < count; lane++)
                to[c * LANES + lane] = from[lane * positions * width + c];
}

static void out_of(const float *from, num count, num positions, num width, float *to)
{
    for (num t = 0; t < positions; t++, from += line(width), to += width)
        for (num c = 0; c < width; c++)
            for (num lane = 0; lane < count; lane++)
                to[lane * positions * width + c] = from[c * LANES + lane];
}

static num size_of(num variable, num width)
{
    static const num biases[] = {1, 1, 1, 1, 0, 3, 0, 1, 0, 4, 0, 1}, weights[] = {0, 0, 0, 0, 3, 0, 1, 0, 4, 0, 4, 0};
    return biases[variable] * width + weights[variable] * width * width;
}

/* Floats kept of all blocks for a group of sequences. */
static num group_floats(const struct transformer *net)
{
    return net->count * kept_floats(net) + net->positions * (line(net->width) + LANES);
}

/* Floats that are kept for the backward pass; if not, of one group. */
num NAME(transformer_floats)(const struct transformer *net, int keep)
{
    const num groups = (net->sequences + LANES - 1) / LANES;
    return group_floats(net) * (keep ? groups * net->replicas : 1);
}

/* The variables, or gradients, of a replica: from those of all, block by block, then those of the last norm. */
static void of_replica(const struct transformer *net, float *const *from, num replica, float **to)
{
    for (num i = 0; i < net->count * VARIABLES + 2; i++)
        to[i] = from[i] + replica * size_of(i < net->count * VARIABLES ? i % VARIABLES : GAMMA1, net->width);
}

/* x and y are (replica, sequence, position, channel). */
int NAME(transformer)(const struct transformer *net, int keep, const float *x, float *const *variables, float *buffer,
                      float *y)
{
    const num positions = net->positions, width = net->width, activations = positions * line(width);
    const num last = net->count * VARIABLES;
    float *now = scratch(2 * activations), *normed = now + activations, *own[last + 2];
    if (!now)
        return 0;
    for (num r = 0; r < net->replicas; r++) {
        of_replica(net, variables, r, own);
        for (num s = 0; s < net->sequences; s += LANES) {
            const num here = minimum(LANES, net->sequences - s), first = (r * net->sequences + s) * positions * width;
            into(x + first, here, positions, width, now);
            for (num b = 0; b < net->count; b++) {
                const struct kept kept = kept_at(net, buffer + b * kept_floats(net));
                block(net, own + b * VARIABLES, &kept, normed, now);
            }
            float *hat = buffer + net->count * kept_floats(net);
            norm(now, positions, width, own[last], own[last + 1], net->epsilon, hat, hat + activations, normed);
            out_of(normed, here, positions, width, y + first);
            buffer += keep ? group_floats(net) : 0;
        }
    }
    return 1;
}

/* Writes the gradients of all variables and of x. */
int NAME(transformer_backward)(const struct transformer *net, float *const *variables, float *buffer,
                               const float *grad_output, float *const *gradients, float *grad_x)
{
    const num positions = net->positions, width = net->width, activations = positions * line(width);
    const num last = net->count * VARIABLES;
    float *now = scratch(3 * activations + positions * line(4 * width) + (2 * width + positions * positions) * LANES);
    float *work = now + activations, *own[last + 2], *grads[last + 2];
    if (!now)
        return 0;
    for (num r = 0; r < net->replicas; r++) {
        of_replica(net, variables, r, own);
        of_replica(net, gradients, r, grads);
        for (num i = 0; i < last + 2; i++)
            memset(grads[i], 0, size_of(i < last ? i % VARIABLES : GAMMA1, width) * sizeof **grads);
        for (num s = 0; s < net->sequences; s += LANES, buffer += group_floats(net)) {
            const num here = minimum(LANES, net->sequences - s), first = (r * net->sequences + s) * positions * width;
            float *hat = buffer + net->count * kept_floats(net);
            into(grad_output + first, here, positions, width, now);
            norm_backward(hat, hat + activations, positions, width, own[last], now, work, grads[last], grads[last + 1], 0,
                          now);
            for (num b = net->count - 1; b >= 0; b--) {
                const struct kept kept = kept_at(net, buffer + b * kept_floats(net));
                block_backward(net, own + b * VARIABLES, &kept, grads + b * VARIABLES, work, now);
            }
            out_of(now, here, positions, width, grad_x + first);
        }
    }
    return 1;
}
