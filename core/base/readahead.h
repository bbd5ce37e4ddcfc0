/* readahead.h: how far the system reads ahead of a program that reads a file from front to back.
 *
 * It does so with large requests into large pages. What a program orders ahead of its own reads
 * (POSIX_FADV_WILLNEED) comes in small pages, which cost more to make and to copy from: 65 to 105 ms
 * instead of 50 for 98 MB, on a disk of which the system reads 8 MiB ahead. So orders pay only where it
 * reads little ahead: Linux's own default is 128 KiB. */
#ifndef BASE_READAHEAD_H
#define BASE_READAHEAD_H

#include <stdbool.h>
#include <stdint.h>

/* Bytes, by what the system says below the folder `sys` ("/sys") of the device with these numbers; 0 if it says
 * nothing. */
uint64_t readahead_bytes(const char *sys, unsigned major, unsigned minor);
/* Whether the file's reader should order what follows by itself. */
bool readahead_is_short(int fd);

#endif
