/* cuBLASLt that knows one algorithm for everything, and computes nothing. */

#include <stddef.h>
#include <string.h>

typedef struct { char bytes[96]; } Result; /* cublasLtMatmulHeuristicResult_t */

int cublasLtCreate(void **made) {
    static size_t last = 0x9000;
    *made = (void *)(last += 16);
    return 0;
}

int cublasLtMatmulAlgoGetHeuristic(void *handle, void *operation, void *a, void *b, void *c,
                                   void *d, void *preference, int most, Result *found, int *count) {
    memset(found, 0, sizeof *found);
    *count = 1;
    return 0;
}

size_t cublasLtGetCudartVersion(void) { return 13000; }
