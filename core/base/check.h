/* check.h: asserts that stay in release builds. For the worker and tools; never compiled into nginx. */
#ifndef BASE_CHECK_H
#define BASE_CHECK_H

/* Prints what was broken and where, then aborts. */
_Noreturn void check_failed(const char *what, const char *file, int line);

/* A broken invariant: our own bug, never a wrong input. */
#define check(condition) ((condition) ? (void)0 : check_failed(#condition, __FILE__, __LINE__))

#endif
