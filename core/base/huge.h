/* huge.h: zeroed anonymous memory on huge pages, for weights, scratch and tables that are looked up at random. */
#ifndef BASE_HUGE_H
#define BASE_HUGE_H

#include <stddef.h>

#define HUGE_PAGE ((size_t)2 << 20)

/* At least `bytes`, beginning at a 2 MiB border; NULL if there is none. *mapped: for huge_unmap. */
void *huge_map(size_t bytes, size_t *mapped);
/* Has the system supply the huge page at p now; what is in it stays. */
void huge_touch(void *p);
void huge_unmap(void *p, size_t mapped);

/* Zeroed memory for a table: on huge pages if it fills half of one, as 512 small pages cost more to make than a huge
 * one, and else from malloc. Aborts when there is none. *mapped: for huge_table_free. */
void *huge_table(size_t bytes, size_t *mapped);
void huge_table_free(void *table, size_t mapped);

#endif
