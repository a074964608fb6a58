/* Every function that is called from Python or from another file. The C compiler and cffi read the same declarations, so
   this file holds nothing but plain C declarations.

   Tensors are float32. Images are (images, height, width, channels). In a pack, replicas occupy lanes: see `struct pack`
   in vectors.h. Functions that return int return 0 if they are out of memory. */

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

/* wide.c */
int widest(void);

/* normalize.c */
void normalize(const float *x, num images, num height, num width, num channels, num replicas, num lanes, int pool,
               const float *skip, const float *gamma, const float *beta, double epsilon, float *batch_mean,
               float *batch_variance, float *saved, float *y);
void normalize_fixed(const float *x, num images, num height, num width, num channels, num replicas, num lanes, int pool,
                     const float *skip, const float *gamma, const float *beta, double epsilon, const float *mean,
                     const float *variance, float *y);
void normalize_backward(const float *x, const float *grad_output, num images, num height, num width, num channels,
                        num replicas, num lanes, int pool, const float *y, const float *saved, float *grad_x,
                        float *grad_gamma, float *grad_beta, float *grad_skip);

/* layer_norm.c */
void layer_normalize(const float *x, num images, num height, num width, num channels, num replicas, num lanes, int pool,
                     const float *gamma, const float *beta, double epsilon, float *saved, float *y);
void layer_normalize_backward(const float *x, const float *grad_output, num images, num height, num width, num channels,
                              num replicas, num lanes, int pool, const float *gamma, const float *beta,
                              const float *saved, float *grad_x, float *grad_gamma, float *grad_beta);

/* winograd.c; the wide functions exist only where widest() is 16 */
int convolve(const float *x, const float *kernel, const float *bias, num images, num height, num width, num inputs,
             num outputs, int transposed, float *y);
int convolve_wide(const float *x, const float *kernel, const float *bias, num images, num height, num width, num inputs,
                  num outputs, int transposed, float *y);
int convolve_backward(const float *x, const float *grad_output, num images, num height, num width, num inputs,
                      num outputs, float *grad_kernel, float *grad_bias);
int convolve_backward_wide(const float *x, const float *grad_output, num images, num height, num width, num inputs,
                           num outputs, float *grad_kernel, float *grad_bias);

/* lanes.c; the wide functions exist only where widest() is 16 */
int lanes_convolve(const float *x, const float *kernel, const float *bias, num images, num height, num width, num inputs,
                   num outputs, num replicas, num lanes, int transposed, float *y);
int lanes_convolve_wide(const float *x, const float *kernel, const float *bias, num images, num height, num width,
                        num inputs, num outputs, num replicas, num lanes, int transposed, float *y);
int lanes_convolve_backward(const float *x, const float *grad_output, num images, num height, num width, num inputs,
                            num outputs, num replicas, num lanes, float *grad_kernel, float *grad_bias);
int lanes_convolve_backward_wide(const float *x, const float *grad_output, num images, num height, num width, num inputs,
                                 num outputs, num replicas, num lanes, float *grad_kernel, float *grad_bias);

/* chain.c */
num chain_floats(num count, const struct block_sizes *sizes, const struct block_variables *variables, num images,
                 num height, num width, num replicas, num lanes, num widest, int keep);
int chain(num count, const struct block_sizes *sizes, const struct block_variables *variables, num images, num height,
          num width, num replicas, num lanes, num widest, int training, const float *x, double epsilon, float *buffer,
          float *y);
int chain_backward(num count, const struct block_sizes *sizes, const struct block_variables *variables, num images,
                   num height, num width, num replicas, num lanes, num widest, const float *x, const float *buffer,
                   const float *grad_output, const struct block_gradients *gradients, float *work, float *grad_x);

/* head.c */
void head(const float *x, num images, num pixels, num channels, num replicas, num lanes, num classes, int largest,
          const float *kernel, const float *bias, float *features, float *logits);
void head_backward(const float *x, const float *features, const float *grad_logits, num images, num pixels,
                   num channels, num replicas, num lanes, num classes, int largest, const float *kernel, float *grad_x,
                   float *grad_kernel, float *grad_bias);

/* update.c */
void add_scaled(num count, const num *sizes, float *const *from, float *const *to, double factor);
void momentum_step(num count, const num *sizes, float *const *gradients, float *const *variables,
                   float *const *velocities, double momentum, double rate);
void adam_step(num count, const num *sizes, float *const *gradients, float *const *variables, float *const *means,
               float *const *squares, double beta1, double beta2, double epsilon, double rate);
void sum_of_squares(num count, const num *sizes, float *const *variables, num replicas, float *sums);
void absorb(num count, const num *sizes, float *const *batch_means, float *const *batch_variances,
            float *const *means, float *const *variances, const double *factors, double share);
