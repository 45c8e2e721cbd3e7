/* A clock that is two minutes slow, for a process that is started with LD_PRELOAD; monotonic clocks stay. */

#define _GNU_SOURCE
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t which, struct timespec *now) {
  int failed = (int)syscall(SYS_clock_gettime, which, now);
  if (failed == 0 && (which == CLOCK_REALTIME || which == CLOCK_REALTIME_COARSE)) now->tv_sec -= 120;
  return failed;
}

time_t time(time_t *kept) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (kept != NULL) *kept = now.tv_sec;
  return now.tv_sec;
}
