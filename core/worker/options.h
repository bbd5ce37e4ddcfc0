/* options.h: the worker's options: one table (options.def), read from the command line and a config
 * file.
 *
 *     tokenringd --config F --model M --threads 4        command line wins over the file
 *
 *     # config file: one option a line, same names
 *     model   /srv/models/smollm2.gguf
 *     threads = 4
 *     trace-logits                 (a flag alone means on; on and off may be written)
 *
 * Every error names the option and, in a file, file:line. A name given twice in a file is an error;
 * on the command line the last one wins. Values are checked here as far as the table can (number,
 * range, size, mode); what needs more knowledge (does the group exist, which tiers are there) is
 * checked by who uses it. */
#ifndef WORKER_OPTIONS_H
#define WORKER_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "core/base/buffer.h"
#include "core/base/status.h"

/* The C types of the kinds of options.def. */
#define OPTION_TYPE_TEXT char *
#define OPTION_TYPE_NUMBER uint64_t
#define OPTION_TYPE_SIZE uint64_t
#define OPTION_TYPE_MODE uint64_t
#define OPTION_TYPE_FLAG bool

struct options {
#define OPTION(field, name, kind, value, min, max, argument, help) OPTION_TYPE_##kind field;
#include "core/worker/options.def"
#undef OPTION
    char *config;      /* --config, or "" */
    bool check_only;   /* -t */
    bool show_help;    /* --help, -h */
    bool show_version; /* --version, -V */
};

/* Sets every default. Texts are owned by the options from here on. */
void options_init(struct options *o);
/* Frees the texts. */
void options_release(struct options *o);
/* Reads the file of --config (if any) and then the command line, argv[1] on. STATUS_INVALID or
 * STATUS_IO with a sentence in err; options stay releasable. */
enum status options_parse(struct options *o, int argc, char **argv, struct error *err);
/* Reads a config file. */
enum status options_read_file(struct options *o, const char *path, struct error *err);
/* What --help prints: every option with its default. */
void options_help(struct buffer *out);
/* "64k", "1.5g", "4096": bytes. False if it is no size or does not fit. */
bool options_parse_size(const char *text, uint64_t *bytes);
/* Writes bytes as people read them ("96.0 MiB") into out. */
void options_format_size(uint64_t bytes, char out[32]);

#endif
