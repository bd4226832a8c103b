// The machine as a process in a container sees it.
#ifndef PE_MACHINE_H
#define PE_MACHINE_H

#include "pyedge.h"

// pe_machine_query, with the files of /proc and /sys/fs/cgroup looked up under `root`: "", or in tests a folder that
// holds made-up ones.
void pe_machine_query_under(const char *root, pe_machine *out);

#endif
