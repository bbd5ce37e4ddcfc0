/* huge.h: zeroed anonymous memory on huge pages, for weights and scratch. */
#ifndef MODEL_HUGE_H
#define MODEL_HUGE_H

#include <stddef.h>

#define HUGE_PAGE ((size_t)2 << 20)

/* At least `bytes`, beginning at a 2 MiB border; NULL if there is none. *mapped: for huge_unmap. */
void *huge_map(size_t bytes, size_t *mapped);
/* Has the system supply the huge page at p now; what is in it stays. */
void huge_touch(void *p);
void huge_unmap(void *p, size_t mapped);

#endif
