/* libc_bare.c: where an Android build without an NDK begins.
 *
 * The NDK has a start file (crtbegin_dynamic.o) that gives the start of the stack to Android's C library. This is the
 * same in a few lines. Other builds have the start file of their system, and this file is empty for them.
 */
#include "libc.h"

#ifdef HANDHELD_BARE

typedef void started(void);

/* The functions to call before main and at the end. The runner is C and has none: three empty lists, three counts. */
struct structors {
    started **before_init, **init, **fini;
    size_t counts[3];
};

int main(int count, char **arguments, char **environment);
void __libc_init(void *stack, void (*at_exit)(void), int (*main)(int, char **, char **), const struct structors *lists)
    __attribute__((noreturn));
void handheld_start(void *stack) __attribute__((used, noreturn));

void handheld_start(void *stack) {
    static started *none[1];
    static const struct structors lists = {none, none, none, {0, 0, 0}};
    __libc_init(stack, NULL, main, &lists);
}

/* The kernel enters here with the stack pointer at argc. No frame is above this one. */
__asm__(
    ".text\n"
    ".globl _start\n"
    ".hidden _start\n"
    ".type _start, %function\n"
    "_start:\n"
    "  mov x29, #0\n"
    "  mov x30, #0\n"
    "  mov x0, sp\n"
    "  b handheld_start\n"
    ".size _start, . - _start\n");

#else

typedef int nothing_else_is_here; /* C99 has no empty files. */

#endif
