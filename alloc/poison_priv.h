/* poison_priv.h: marks memory that nobody may touch, for AddressSanitizer and valgrind; nothing
 * otherwise.
 *
 * Under valgrind the marks are client requests: a handful of instructions that do nothing outside
 * valgrind. They are compiled in where valgrind's header is installed. */
#ifndef ALLOC_POISON_PRIV_H
#define ALLOC_POISON_PRIV_H

#include <stddef.h>

#if defined(__SANITIZE_ADDRESS__)
#define POISON_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define POISON_ASAN 1
#endif
#endif

#ifdef POISON_ASAN
#include <sanitizer/asan_interface.h>
#elif defined(__has_include)
#if __has_include(<valgrind/memcheck.h>)
#include <valgrind/memcheck.h>
#define POISON_VALGRIND 1
#endif
#endif

/* Touching [ptr, ptr + size) is an error from now on. */
static inline void poison(void *ptr, size_t size)
{
#if defined(POISON_ASAN)
    ASAN_POISON_MEMORY_REGION(ptr, size);
#elif defined(POISON_VALGRIND)
    (void)VALGRIND_MAKE_MEM_NOACCESS(ptr, size);
#else
    (void)ptr, (void)size;
#endif
}

/* [ptr, ptr + size) may be read and written again. */
static inline void unpoison(void *ptr, size_t size)
{
#if defined(POISON_ASAN)
    ASAN_UNPOISON_MEMORY_REGION(ptr, size);
#elif defined(POISON_VALGRIND)
    (void)VALGRIND_MAKE_MEM_DEFINED(ptr, size);
#else
    (void)ptr, (void)size;
#endif
}

#endif
