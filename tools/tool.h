/* tool.h: the subcommands of the `tokenring` program; each lives in tools/<name>.c. */
#ifndef TOOLS_TOOL_H
#define TOOLS_TOOL_H

/* argv[0] is the subcommand's name. Returns the exit status: 0 done, 1 failed, 2 wrong usage. */
#define COMMAND(name, help) int cmd_##name(int argc, char **argv);
#include "tools/commands.def"
#undef COMMAND

#endif
