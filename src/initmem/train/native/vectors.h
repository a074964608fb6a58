/* What the layers have in common. They are for float32 on one core, with the channels last in memory.

   The compiler turns `vec` into the registers of the processor. Sums over a batch are made of short sums in float32,
   added up in float64.
*/
#pragma once
#include <stdlib.h>
#include <string.h>

typedef float vec __attribute__((vector_size(32), aligned(4)));
typedef long num;

enum {
    LANES = 8,  /* numbers in a vec */
    CHUNK = 64, /* places added up in float32 */
};

static inline vec load(const float *p) { return *(const vec *)p; }
static inline void store(float *p, vec v) { *(vec *)p = v; }
static inline num least(num a, num b) { return a < b ? a : b; }

static inline void add(double *sums, vec v)
{
    for (int i = 0; i < LANES; i++)
        sums[i] += v[i];
}

/* Room for so many numbers, the same from call to call so that it stays in the cache; NULL when there is none. */
static inline float *keep(num needed)
{
    static _Thread_local float *kept;
    static _Thread_local num size;
    if (needed > size) {
        free(kept);
        kept = malloc(needed * sizeof *kept);
        size = kept ? needed : 0;
    }
    return kept;
}

/* Left alone, compilers load one of the factors again for every product. */
#ifdef __FMA__
#define MULTIPLY_ADD(sum, a, b) __asm__("vfmadd231ps %2, %1, %0" : "+x"(sum) : "x"(a), "x"(b))
#else
#define MULTIPLY_ADD(sum, a, b) sum += a * b
#endif

/* Replicas lie side by side in lanes, the last of which may be empty: channel c of replica r is c * lanes + r here,
   and r * channels + c in a variable. One network alone is one replica in one lane. */
struct pack {
    num replicas, lanes;
};

/* Where a channel is in a variable; -1 in an empty lane. */
static inline num in_variable(struct pack pack, num channels, num c)
{
    const num lane = c % pack.lanes;
    return lane < pack.replicas ? lane * (channels / pack.lanes) + c / pack.lanes : -1;
}
