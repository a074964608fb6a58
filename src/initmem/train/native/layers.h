/* Every function that is called from Python or from another file. The C compiler and cffi read the same declarations, so
   this file holds nothing but plain C declarations.

   Tensors are float32. Images are (images, height, width, channels). In a pack, replicas
   occupy lanes, the last of which may be empty: images are (images, height, width, channels, lanes), and channel c of
   replica r has index c * lanes + r, also in the variables of a block. Functions that return int return 0 if they are out of memory. */

typedef long num;

/* One block of `chain`. Without a mean, it has layer normalization. */
struct block_sizes {
    num inputs, outputs, pool, residual;
};
struct block_variables {
    float *kernel, *bias, *gamma, *beta, *mean, *variance;
};
struct block_gradients {
    float *kernel, *bias, *gamma, *beta;
};

/* Blocks one after another, and the images that go through them. */
struct network {
    num count, images, height, width, lanes, widest;
    double epsilon;
    const struct block_sizes *sizes;
    const struct block_variables *variables;
};

/* A pack in lanes that `train` trains: its blocks, and a head whose variables are not in lanes. Of the variables of the
   blocks, then of the head: their sizes, whether they are kernels and whether they decay, and the state of the rule. */
struct pack {
    struct network network;
    num channels, replicas, classes, largest;
    const struct block_gradients *gradients;
    float *const *moving; /* mean and variance of each block; NULL: the blocks have layer normalization */
    num count;
    const num *sizes;
    const num *is_kernel, *decays;
    float *const *variables, *const *all_gradients, *const *first, *const *second;
};
struct rule {
    num kind, update; /* kind: 0 sgd, 1 momentum, 2 adam; the number of the first update */
    double momentum, beta1, beta2, epsilon, l2, decay;
};

/* Blocks of a transformer, and how much goes through them. */
struct transformer {
    num count, replicas, sequences, positions, width, heads, causal;
    double epsilon;
};

/* wide.c */
int widest(void);

/* normalize.c */
void normalize(const float *x, num images, num height, num width, num channels, int pool, const float *skip,
               const float *gamma, const float *beta, double epsilon, float *batch_mean, float *batch_variance,
               float *saved, float *y);
void normalize_fixed(const float *x, num images, num height, num width, num channels, int pool, const float *skip,
                     const float *gamma, const float *beta, double epsilon, const float *mean, const float *variance,
                     float *y);
void normalize_backward(const float *x, const float *grad_output, num images, num height, num width, num channels,
                        int pool, const float *y, const float *saved, float *grad_x,
                        float *grad_gamma, float *grad_beta, float *grad_skip);
/* called by those for channels that fill vectors of 16; they exist only where widest() is 16 */
void normalize_wide(const float *x, num images, num height, num width, num channels, int pool, const float *skip,
               const float *gamma, const float *beta, double epsilon, float *batch_mean, float *batch_variance,
               float *saved, float *y);
void normalize_fixed_wide(const float *x, num images, num height, num width, num channels, int pool, const float *skip,
                     const float *gamma, const float *beta, double epsilon, const float *mean,
                     const float *variance, float *y);
void normalize_backward_wide(const float *x, const float *grad_output, num images, num height, num width, num channels,
                        int pool, const float *y, const float *saved, float *grad_x,
                        float *grad_gamma, float *grad_beta, float *grad_skip);

/* layer_norm.c */
void layer_normalize(const float *x, num images, num height, num width, num channels, num lanes, int pool,
                     const float *gamma, const float *beta, double epsilon, float *saved, float *y);
void layer_normalize_backward(const float *x, const float *grad_output, num images, num height, num width, num channels,
                              num lanes, int pool, const float *gamma, const float *beta, const float *saved,
                              float *grad_x, float *grad_gamma, float *grad_beta);

/* few_channels.c, called by the convolutions of winograd.c for fewer than 8 inputs; the wide functions as above */
int few_channels_convolve(const float *x, const float *kernel, const float *bias, num images, num height, num width,
                          num inputs, num outputs, float *y);
int few_channels_convolve_wide(const float *x, const float *kernel, const float *bias, num images, num height, num width,
                               num inputs, num outputs, float *y);
int few_channels_kernel_grad(const float *x, const float *grads, num images, num height, num width, num inputs,
                             num outputs, float *to);
int few_channels_kernel_grad_wide(const float *x, const float *grads, num images, num height, num width, num inputs,
                                  num outputs, float *to);

/* winograd.c; the wide functions exist only where widest() is 16. The gradient of an image needs 8 inputs. */
int convolve(const float *x, const float *kernel, const float *bias, num images, num height, num width, num inputs,
             num outputs, int transposed, float *y);
int convolve_wide(const float *x, const float *kernel, const float *bias, num images, num height, num width, num inputs,
                  num outputs, int transposed, float *y);
int convolve_backward(const float *x, const float *grad_output, num images, num height, num width, num inputs,
                      num outputs, float *grad_kernel, float *grad_bias);
int convolve_backward_wide(const float *x, const float *grad_output, num images, num height, num width, num inputs,
                           num outputs, float *grad_kernel, float *grad_bias);

/* lanes.c; the wide functions exist only where widest() is 16 */
void lanes_convolve(const float *x, const float *kernel, const float *bias, num images, num height, num width,
                         num inputs, num outputs, num lanes, int transposed, float *y);
void lanes_convolve_backward(const float *x, const float *grad_output, num images, num height, num width, num inputs,
                                  num outputs, num lanes, float *grad_kernel, float *grad_bias);
void lanes_convolve_wide(const float *x, const float *kernel, const float *bias, num images, num height, num width,
                         num inputs, num outputs, num lanes, int transposed, float *y);
void lanes_convolve_backward_wide(const float *x, const float *grad_output, num images, num height, num width, num inputs,
                                  num outputs, num lanes, float *grad_kernel, float *grad_bias);

/* chain.c */
num chain_floats(const struct network *net, int keep);
int chain(const struct network *net, int training, const float *x, float *buffer, float *y);
int chain_backward(const struct network *net, const float *x, const float *buffer, const float *grad_output,
                   const struct block_gradients *gradients, float *work, float *grad_x);

/* head.c */
void head(const float *x, num images, num pixels, num channels, num replicas, num lanes, num classes, int largest,
          const float *kernel, const float *bias, float *features, float *logits);
void head_backward(const float *x, const float *features, const float *grad_logits, num images, num pixels,
                   num channels, num replicas, num lanes, num classes, int largest, const float *kernel, float *grad_x,
                   float *grad_kernel, float *grad_bias);

/* transformer.c; the wide functions exist only where widest() is 16 */
num transformer_floats(const struct transformer *net, int keep);
int transformer(const struct transformer *net, int keep, const float *x, float *const *variables, float *buffer,
                float *y);
int transformer_backward(const struct transformer *net, float *const *variables, float *buffer,
                         const float *grad_output, float *const *gradients, float *grad_x);
num transformer_floats_wide(const struct transformer *net, int keep);
int transformer_wide(const struct transformer *net, int keep, const float *x, float *const *variables, float *buffer,
                     float *y);
int transformer_backward_wide(const struct transformer *net, float *const *variables, float *buffer,
                              const float *grad_output, float *const *gradients, float *grad_x);

/* update.c */
void add_scaled(num count, const num *sizes, float *const *from, float *const *to, double factor);
void momentum_step(num count, const num *sizes, float *const *gradients, float *const *variables,
                   float *const *velocities, double momentum, double rate);
void adam_step(num count, const num *sizes, float *const *gradients, float *const *variables, float *const *means,
               float *const *squares, double beta1, double beta2, double epsilon, double rate);
void sum_of_squares(num count, const num *sizes, float *const *variables, num replicas, float *sums);
void absorb(num count, const num *sizes, float *const *batch_means, float *const *batch_variances,
            float *const *means, float *const *variances, const double *factors, double share);

/* train.c */
void into_lanes(num count, const num *sizes, float *const *from, num replicas, num lanes, float *const *to);
void out_of_lanes(num count, const num *sizes, float *const *to, num replicas, num lanes, float *const *from);
int train(const struct pack *pack, const struct rule *rule, num examples, const float *x, const long long *labels,
          const double *rates, const double *shares, double *losses, double *correct, double *angular);
