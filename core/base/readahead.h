/* readahead.h: files come from the disk while their readers compute.
 *
 * The system reads ahead of a program that reads a file from front to back, with large requests into large pages. What a
 * program orders ahead of its own reads (POSIX_FADV_WILLNEED) comes in small pages, which cost more to make and to copy
 * from: 65 to 105 ms instead of 50 for 98 MB, on a disk of which the system reads 8 MiB ahead. So orders pay only where
 * it reads little ahead (Linux's own default is 128 KiB); elsewhere a thread that reads in front of the others, without
 * copying (sendfile to /dev/null), has the system do it. */
#ifndef BASE_READAHEAD_H
#define BASE_READAHEAD_H

#include <stdbool.h>
#include <stdint.h>

/* Bytes, by what the system says below the folder `sys` ("/sys") of the device with these numbers; 0 if it says
 * nothing. */
uint64_t readahead_bytes(const char *sys, unsigned major, unsigned minor);
/* Whether the system reads so little ahead of fd's readers that they should give orders. */
bool readahead_is_short(int fd);
/* Has bytes [from, to) come from the disk: waits for it, or, if is_short, for its queue to take the order. What is in
 * the system's cache costs nothing. fd should be this caller's alone. */
void readahead_fetch(int fd, bool is_short, uint64_t from, uint64_t to);

#endif
