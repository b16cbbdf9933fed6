/* info.h: the description of this machine and its OpenCL devices as JSON. */
#ifndef HANDHELD_INFO_H
#define HANDHELD_INFO_H

#include "base.h"

/* Appends the answer to HELLO. It loads OpenCL; if that fails, the JSON says why. */
void describe(struct bytes *to, const char *library);

/* Appends the answer to SYSTEM: what HELLO says about the machine and this process. OpenCL is not loaded. */
void describe_system(struct bytes *to);

#endif
