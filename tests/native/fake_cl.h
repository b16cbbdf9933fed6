/* fake_cl.h: see fake_cl.c. */
#ifndef FAKE_CL_H
#define FAKE_CL_H

extern long fake_fail, fake_live;

#endif
