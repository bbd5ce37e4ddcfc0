#include <stdio.h>
#include <string.h>

#include "tools/tool.h"

static const struct {
    const char *name, *help;
    int (*run)(int argc, char **argv);
} commands[] = {
#define COMMAND(name, help) {#name, help, cmd_##name},
#include "tools/commands.def"
#undef COMMAND
    {NULL, NULL, NULL},
};

static void usage(FILE *out)
{
    fputs("usage: tokenring COMMAND [OPTION]...\n       tokenring --version\n\ncommands:\n", out);
    for (unsigned i = 0; commands[i].name != NULL; i++)
        fprintf(out, "  %-12s %s\n", commands[i].name, commands[i].help);
    fputs("\n`tokenring COMMAND --help` tells a command's options.\n", out);
}

int main(int argc, char **argv)
{
    const char *last = argc >= 2 ? argv[argc == 3 ? 2 : 1] : ""; /* behind a command, too */
    if (strcmp(last, "--version") == 0) {
        puts("tokenring " TOKENRING_VERSION);
        return 0;
    }
    if (argc >= 2 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)) {
        usage(stdout);
        return 0;
    }
    for (unsigned i = 0; argc >= 2 && commands[i].name != NULL; i++)
        if (strcmp(argv[1], commands[i].name) == 0)
            return commands[i].run(argc - 1, argv + 1);
    if (argc >= 2)
        fprintf(stderr, "tokenring: no command is named '%s'\n", argv[1]);
    usage(stderr);
    return 2;
}
