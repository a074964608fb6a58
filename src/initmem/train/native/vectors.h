/* Shared by all layers, which work on float32 tensors in channels-last layout, on one core.

   The compiler maps `vec` to SIMD registers. Sums over a batch are short float32 sums, accumulated in float64.
   Convolutions and batch normalization are compiled twice where processors have wider registers: see wide.c.
*/
#pragma once
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#ifdef __AVX512F__
#include <immintrin.h>
#endif

#include "layers.h"

#ifndef LANES
#define LANES 8 /* floats in a vec */
#define NAME(function) function
#endif

/* Leave what fills wider vectors to the function of the same name in wide.c. */
#if LANES == 8 && defined(__AVX512F__)
#define WIDE(fits, function, ...)                                                                                     \
    if (fits)                                                                                                         \
    return function##_wide(__VA_ARGS__)
#else
#define WIDE(fits, function, ...)
#endif

typedef float vec __attribute__((vector_size(4 * LANES), aligned(4)));
typedef int mask __attribute__((vector_size(4 * LANES), aligned(4)));

enum { CHUNK = 64 }; /* pixels summed in float32 */

static inline vec load(const float *p) { return *(const vec *)p; }
static inline void store(float *p, vec v) { *(vec *)p = v; }

/* Results that do not fit in the cache are written past it, which saves reading their lines from memory first. */
#if LANES == 16
static inline int past_cache(const float *to, num floats) { return floats > 1 << 19 && (uintptr_t)to % 64 == 0; }
static inline void stream(float *p, vec v) { _mm512_stream_ps(p, (__m512)v); }
#else
static inline int past_cache(const float *to, num floats) { return 0; }
#define stream store
#endif

static inline num minimum(num a, num b) { return a < b ? a : b; }

static inline vec where(mask which, vec yes) { return (vec)(which & (mask)yes); }
static inline vec choose(mask which, vec yes, vec no) { return (vec)((which & (mask)yes) | (~which & (mask)no)); }
/* Both propagate NaN, so that a diverging run is noticed. */
static inline vec larger(vec a, vec b) { return choose((a >= b) | (a != a), a, b); }
static inline vec relu(vec v) { return where(~(v < 0), v); }

static inline void add(double *sums, vec v)
{
    for (int i = 0; i < LANES; i++)
        sums[i] += v[i];
}

/* A buffer of at least this many floats, reused between calls so that it stays in the cache; NULL if out of memory. */
static inline float *scratch(num needed)
{
    static _Thread_local float *kept;
    static _Thread_local num size;
    if (needed > size) {
        free(kept);
        kept = aligned_alloc(64, (needed * sizeof *kept + 63) / 64 * 64);
        size = kept ? needed : 0;
    }
    return kept;
}

/* Left alone, compilers reload one of the operands for every product. */
#ifdef __FMA__
#ifdef __AVX512VL__
#define REGISTER "v" /* any of 32 */
#else
#define REGISTER "x"
#endif
#define MULTIPLY_ADD(sum, a, b) __asm__("vfmadd231ps %2, %1, %0" : "+" REGISTER(sum) : REGISTER(a), REGISTER(b))
#else
#define MULTIPLY_ADD(sum, a, b) sum += a * b
#endif

/* Rows of a block of sums: with two vectors across, sums and operands fit the 32 registers of AVX-512, or 16. */
#ifdef __AVX512VL__
enum { ROWS = 8 };
#else
enum { ROWS = 4 };
#endif

/* sum (rows, across vectors) += left (rows, depth) times right (depth, across vectors), with the given distances between
   rows of left, and between what is multiplied one after another in left and right. */
static inline __attribute__((always_inline)) void multiply(const float *left, num row, num next, const float *right,
                                                           num line, num depth, const int rows, const int across,
                                                           vec sum[][2])
{
    for (num k = 0; k < depth; k++, left += next, right += line) {
        vec factor[2];
        for (int j = 0; j < across; j++)
            factor[j] = load(right + LANES * j);
        for (int i = 0; i < rows; i++) {
            const vec value = left[i * row] - (vec){0};
            for (int j = 0; j < across; j++)
                MULTIPLY_ADD(sum[i][j], value, factor[j]);
        }
    }
}

/* Process the outputs two vectors at a time; an odd last vector is processed alone. */
#define IN_PAIRS(outputs, o, call)                                                                                    \
    for (num o = 0; o < outputs; o += 2 * LANES) {                                                                    \
        if (o + LANES < outputs)                                                                                      \
            call(2);                                                                                                  \
        else                                                                                                          \
            call(1);                                                                                                  \
    }

/* Products have functions of their own: in longer ones, GCC does not keep the sums in registers. */
#define ALONE static __attribute__((noinline)) void
