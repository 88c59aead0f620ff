/* Loaded before the C library: counts the syncs of a process, and passes them on. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdatomic.h>

static atomic_ulong count;

unsigned long syncs_so_far(void) { return atomic_load(&count); }

#define COUNTED(name)                                              \
    int name(int file)                                             \
    {                                                              \
        static int (*real)(int);                                   \
        if (!real)                                                 \
            real = (int (*)(int))dlsym(RTLD_NEXT, #name);          \
        atomic_fetch_add(&count, 1);                               \
        return real(file);                                         \
    }

COUNTED(fsync)
COUNTED(fdatasync)
