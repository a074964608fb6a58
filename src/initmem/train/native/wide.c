/* Convolutions and batch normalization once more, with vectors of 16, for processors that have them. */
#ifdef __AVX512F__
#define LANES 16
#define NAME(function) function##_wide
#include "few_channels.c"
#include "lanes.c"
#include "normalize.c"
#include "transformer.c"
#include "winograd.c"
#endif

/* Floats in the widest vectors that the convolutions are compiled for. */
int widest(void)
{
#ifdef __AVX512F__
    return 16;
#else
    return 8;
#endif
}
