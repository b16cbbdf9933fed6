/* serve.h: the protocol, between the host on stdin and stdout and a plan on a device. docs/runner.md has the table. */
#ifndef HANDHELD_SERVE_H
#define HANDHELD_SERVE_H

#include "base.h"

/* Serves until END or the end of stdin; returns the exit code. `root`: what FILES and SAMPLE take as `/`. `shared`: a file
 * that the host has mapped too, for WRITE_SHARED; 0 if there is none. */
int serve(const char *folder, const char *library, const char *root, int shared);

#endif
