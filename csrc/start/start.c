/* start.c: the first instructions of a program that is built with a new glibc and runs with an old
 * one.
 *
 * Part of nodemgr, nodemgr-supervisor and nodemgr-runner.
 * Knows: the kernel's layout of the stack, the oldest version of the function that calls main. The
 * compiler's own start would need glibc 2.34. There are no constructors to run.
 */
#include "base/prim.h"

__asm__(".symver __libc_start_main,__libc_start_main@" NM_GLIBC_BASE);

#if defined(__x86_64__)
__asm__(".text\n"
        ".globl _start\n"
        ".type _start, @function\n"
        "_start:\n"
        "    xorl %ebp, %ebp\n"
        "    movq %rdx, %r9\n" /* the dynamic linker's function for the end */
        "    popq %rsi\n"      /* argc */
        "    movq %rsp, %rdx\n"
        "    andq $-16, %rsp\n"
        "    pushq %rax\n"
        "    pushq %rsp\n"
        "    xorl %r8d, %r8d\n"
        "    xorl %ecx, %ecx\n"
        "    leaq main(%rip), %rdi\n"
        "    call *__libc_start_main@GOTPCREL(%rip)\n"
        "    hlt\n");
#elif defined(__aarch64__)
__asm__(".text\n"
        ".globl _start\n"
        ".type _start, %function\n"
        "_start:\n"
        "    mov x29, #0\n"
        "    mov x30, #0\n"
        "    mov x5, x0\n" /* the dynamic linker's function for the end */
        "    ldr x1, [sp]\n"
        "    add x2, sp, #8\n"
        "    mov x6, sp\n"
        "    adrp x0, main\n"
        "    add x0, x0, :lo12:main\n"
        "    mov x3, #0\n"
        "    mov x4, #0\n"
        "    bl __libc_start_main\n"
        "    brk #1\n");
#endif
