// Preloaded into every process of a container: the wall clock is off by the seconds in /run/spark/clock-step. The other clocks
// are the kernel's own.
#include <fcntl.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long step() {
    char text[32] = {0};
    int file = syscall(SYS_openat, AT_FDCWD, "/run/spark/clock-step", O_RDONLY | O_CLOEXEC);
    if (file < 0) return 0;
    long got = syscall(SYS_read, file, text, sizeof text - 1);
    syscall(SYS_close, file);
    return got > 0 ? atol(text) : 0;
}

extern "C" int clock_gettime(clockid_t clock, struct timespec *at) noexcept {
    int failed = syscall(SYS_clock_gettime, clock, at);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) at->tv_sec += step();
    return failed;
}

extern "C" time_t time(time_t *out) noexcept {
    struct timespec at;
    clock_gettime(CLOCK_REALTIME, &at);
    if (out) *out = at.tv_sec;
    return at.tv_sec;
}

extern "C" int gettimeofday(struct timeval *at, void *) noexcept {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return 0;
}
