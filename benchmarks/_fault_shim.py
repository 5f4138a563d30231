"""Make chosen system calls on files below one directory fail: a library in front of libc, steered by a shared file."""

from __future__ import annotations

import mmap
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

struct control {
    _Atomic int armed;      /* 0: nothing is counted */
    _Atomic int error;      /* errno of the call that fails; 0: none fails */
    _Atomic int lasting;    /* all later ones fail too */
    _Atomic int brief;      /* writes are cut in half instead */
    _Atomic int reads;      /* calls that read are counted, and no others */
    int unused;
    _Atomic long long number, count, fired;
    char root[4096];
    char what[256];
};
static struct control *control;

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("DISK_FAULTS_CONTROL");
    int fd = path ? syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC) : -1;
    if (fd < 0) return;
    void *map = (void *)syscall(SYS_mmap, 0, sizeof(struct control), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    syscall(SYS_close, fd);
    if (map != MAP_FAILED) control = map;
}

static int below(const char *path) {
    size_t n = strlen(control->root);
    return n && !strncmp(path, control->root, n) && (path[n] == '/' || !path[n]);
}
static int fd_below(int fd) {
    char link[64], path[4200];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = syscall(SYS_readlinkat, AT_FDCWD, link, path, sizeof path - 1);
    if (n < 0) return 0;
    path[n] = 0;
    return below(path);
}
static int path_below(int at, const char *path) {
    if (!path) return 0;
    if (path[0] == '/') return below(path);
    if (at != AT_FDCWD) return fd_below(at);
    char here[4200];
    long n = syscall(SYS_getcwd, here, sizeof here);
    return n > 0 && below(here);
}
/* 1: this call fails, with errno set; 2: it is cut short */
static int fails(const char *what, int writes) {
    long long now = atomic_fetch_add(&control->count, 1) + 1;
    if (now != control->number && !(control->lasting && control->number && now > control->number)) return 0;
    if (control->brief) {
        if (!writes) return 0;
    } else if (!control->error) return 0;
    if (!atomic_fetch_add(&control->fired, 1))
        snprintf(control->what, sizeof control->what, "%s", control->brief ? "short" : what);
    if (control->brief) return 2;
    errno = control->error;
    return 1;
}
#define ON (control && control->armed && !control->reads)
#define READING (control && control->armed && control->reads)
#define REAL(type, name, ...) static type (*real)(__VA_ARGS__); if (!real) real = dlsym(RTLD_NEXT, #name)
#define WRITES(flags) (((flags) & O_ACCMODE) != O_RDONLY || ((flags) & O_CREAT))

#define OPEN(name) int name(const char *path, int flags, ...) { \
    REAL(int, name, const char *, int, ...); \
    va_list list; va_start(list, flags); mode_t mode = va_arg(list, int); va_end(list); \
    if ((WRITES(flags) ? ON : READING) && path_below(AT_FDCWD, path) && fails("open", 0) == 1) return -1; \
    return real(path, flags, mode); }
OPEN(open) OPEN(open64)
#define OPENAT(name) int name(int at, const char *path, int flags, ...) { \
    REAL(int, name, int, const char *, int, ...); \
    va_list list; va_start(list, flags); mode_t mode = va_arg(list, int); va_end(list); \
    if ((WRITES(flags) ? ON : READING) && path_below(at, path) && fails("openat", 0) == 1) return -1; \
    return real(at, path, flags, mode); }
OPENAT(openat) OPENAT(openat64)
#define FOPEN(name) FILE *name(const char *path, const char *mode) { \
    REAL(FILE *, name, const char *, const char *); \
    if (ON && strpbrk(mode, "wa+") && path_below(AT_FDCWD, path) && fails("fopen", 0) == 1) return NULL; \
    return real(path, mode); }
FOPEN(fopen) FOPEN(fopen64)

ssize_t read(int fd, void *data, size_t n) {
    REAL(ssize_t, read, int, void *, size_t);
    if (READING && fd_below(fd) && fails("read", 0) == 1) return -1;
    return real(fd, data, n);
}
#define PREAD(name) ssize_t name(int fd, void *data, size_t n, off_t at) { \
    REAL(ssize_t, name, int, void *, size_t, off_t); \
    if (READING && fd_below(fd) && fails("pread", 0) == 1) return -1; \
    return real(fd, data, n, at); }
PREAD(pread) PREAD(pread64)
ssize_t write(int fd, const void *data, size_t n) {
    REAL(ssize_t, write, int, const void *, size_t);
    if (ON && fd_below(fd)) { int how = fails("write", n > 1); if (how == 1) return -1; if (how == 2) n /= 2; }
    return real(fd, data, n);
}
#define PWRITE(name) ssize_t name(int fd, const void *data, size_t n, off_t at) { \
    REAL(ssize_t, name, int, const void *, size_t, off_t); \
    if (ON && fd_below(fd)) { int how = fails("pwrite", n > 1); if (how == 1) return -1; if (how == 2) n /= 2; } \
    return real(fd, data, n, at); }
PWRITE(pwrite) PWRITE(pwrite64)
ssize_t writev(int fd, const struct iovec *parts, int n) {
    REAL(ssize_t, writev, int, const struct iovec *, int);
    if (ON && fd_below(fd)) { int how = fails("writev", n > 1); if (how == 1) return -1; if (how == 2) n = 1; }
    return real(fd, parts, n);
}
ssize_t sendfile(int out, int in, off_t *at, size_t n) {
    REAL(ssize_t, sendfile, int, int, off_t *, size_t);
    if (ON && fd_below(out)) { int how = fails("sendfile", n > 1); if (how == 1) return -1; }
    return real(out, in, at, n);
}
ssize_t sendfile64(int out, int in, off_t *at, size_t n) {
    REAL(ssize_t, sendfile64, int, int, off_t *, size_t);
    if (ON && fd_below(out)) { int how = fails("sendfile", n > 1); if (how == 1) return -1; }
    return real(out, in, at, n);
}
ssize_t copy_file_range(int in, off_t *a, int out, off_t *b, size_t n, unsigned flags) {
    REAL(ssize_t, copy_file_range, int, off_t *, int, off_t *, size_t, unsigned);
    if (ON && fd_below(out) && fails("copy_file_range", 0) == 1) return -1;
    return real(in, a, out, b, n, flags);
}
#define ON_FD(name) int name(int fd) { REAL(int, name, int); \
    if (ON && fd_below(fd) && fails(#name, 0) == 1) return -1; return real(fd); }
ON_FD(fsync) ON_FD(fdatasync)
#define CUT(name) int name(int fd, off_t n) { REAL(int, name, int, off_t); \
    if (ON && fd_below(fd) && fails("ftruncate", 0) == 1) return -1; return real(fd, n); }
CUT(ftruncate) CUT(ftruncate64)
#define TAKE(name) int name(int fd, off_t at, off_t n) { REAL(int, name, int, off_t, off_t); \
    if (ON && fd_below(fd) && fails("posix_fallocate", 0) == 1) return errno; return real(fd, at, n); }
TAKE(posix_fallocate) TAKE(posix_fallocate64)
#define ON_PATH(name) int name(const char *path) { REAL(int, name, const char *); \
    if (ON && path_below(AT_FDCWD, path) && fails(#name, 0) == 1) return -1; return real(path); }
ON_PATH(unlink) ON_PATH(rmdir)
int unlinkat(int at, const char *path, int flags) {
    REAL(int, unlinkat, int, const char *, int);
    if (ON && path_below(at, path) && fails("unlinkat", 0) == 1) return -1;
    return real(at, path, flags);
}
int mkdir(const char *path, mode_t mode) {
    REAL(int, mkdir, const char *, mode_t);
    /* one that is there is EEXIST on any disk */
    int is_new = ON && faccessat(AT_FDCWD, path, F_OK, AT_SYMLINK_NOFOLLOW);
    if (is_new && path_below(AT_FDCWD, path) && fails("mkdir", 0) == 1) return -1;
    return real(path, mode);
}
int mkdirat(int at, const char *path, mode_t mode) {
    REAL(int, mkdirat, int, const char *, mode_t);
    if (ON && path_below(at, path) && fails("mkdirat", 0) == 1) return -1;
    return real(at, path, mode);
}
#define TWO(name) int name(const char *from, const char *to) { REAL(int, name, const char *, const char *); \
    if (ON && path_below(AT_FDCWD, to) && fails(#name, 0) == 1) return -1; return real(from, to); }
TWO(rename) TWO(link) TWO(symlink)
int renameat(int a, const char *from, int b, const char *to) {
    REAL(int, renameat, int, const char *, int, const char *);
    if (ON && path_below(b, to) && fails("renameat", 0) == 1) return -1;
    return real(a, from, b, to);
}
int linkat(int a, const char *from, int b, const char *to, int flags) {
    REAL(int, linkat, int, const char *, int, const char *, int);
    if (ON && path_below(b, to) && fails("linkat", 0) == 1) return -1;
    return real(a, from, b, to, flags);
}
#define MAP(name) void *name(void *where, size_t n, int prot, int flags, int fd, off_t at) { \
    REAL(void *, name, void *, size_t, int, int, int, off_t); \
    int writes = ON && fd >= 0 && (flags & MAP_SHARED) && (prot & PROT_WRITE); \
    if (writes && fd_below(fd) && fails("mmap", 0) == 1) return MAP_FAILED; \
    return real(where, n, prot, flags, fd, at); }
MAP(mmap) MAP(mmap64)
"""
HEAD = struct.Struct("=iiiiiiqqq4096s256s")
VARIABLE = "DISK_FAULTS_CONTROL"


class Fault(NamedTuple):
    """What a call ends with, and which calls are meant."""

    error: int = 0
    is_brief: bool = False
    """Writes are cut in half instead."""
    reads: bool = False
    """Of calls that read, and not of those that write."""


NO_FAULT = Fault()


class Shim:
    """Arms and disarms the library that this process and all that it starts run with."""

    def __init__(self) -> None:
        with open(os.environ[VARIABLE], "r+b") as file:
            self._map = mmap.mmap(file.fileno(), HEAD.size)

    def arm(self, root: Path, number: int = 0, fault: Fault = NO_FAULT, lasting: bool = False) -> None:
        """Count calls below a directory, and let the one of this number fail, or be cut short; 0 = none."""
        kind = (fault.error, int(lasting), int(fault.is_brief), int(fault.reads), 0)
        fields = (1, *kind, number, 0, 0, os.fsencode(root.resolve()), b"")
        self._map[:] = HEAD.pack(*fields)

    def disarm(self) -> tuple[int, int, str]:
        """Return how many calls there were, how many failed, and what the first of those was."""
        *_, count, fired, _, what = HEAD.unpack(self._map[:])
        self._map[:4] = bytes(4)
        return count, fired, what.rstrip(b"\0").decode()


def run_again_with_shim(folder: Path) -> None:
    """Build the library and start this program again with it in front of libc; return where that is done already."""
    if VARIABLE in os.environ:
        return
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        sys.exit("disk-faults needs a C compiler: install gcc")
    source, library, control = folder / "shim.c", folder / "shim.so", folder / "control"
    source.write_text(SOURCE)
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-w", "-o", library, source, "-ldl"], check=True)
    control.write_bytes(bytes(HEAD.size))
    env = os.environ | {VARIABLE: str(control), "LD_PRELOAD": str(library)}
    sys.exit(subprocess.run([sys.executable, *sys.argv], env=env, check=False).returncode)
