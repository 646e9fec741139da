// What the compiler's archives, Debian's and our own objects need of glibc, and
// glibc 2.28 does not have (stubs.py): implemented with what it has.
//
// All symbols are hidden: a program never offers its own ones to the libraries
// that it loads, which use those of the glibc that is there.
//
// Thread contract: as of the functions of glibc.
#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>

#define HIDDEN __attribute__((visibility("hidden")))

// --- Random bytes (2.36) ----------------------------------------------------

HIDDEN void arc4random_buf(void* to, size_t size) {
  char* at = to;
  while (size > 0) {
    const ssize_t got = getrandom(at, size, 0);
    if (got >= 0) {
      at += got;
      size -= (size_t)got;
    } else if (errno != EINTR) {
      abort();  // as glibc does: the callers know no error
    }
  }
}

HIDDEN uint32_t arc4random(void) {
  uint32_t value;
  arc4random_buf(&value, sizeof(value));
  return value;
}

// --- What unwinds the stack: the object of an address (2.35) ---------------

struct Search {
  uintptr_t address;
  struct dl_find_object* object;
};

// Returns 1, which ends dl_iterate_phdr, if the object has the address and says
// how its functions are unwound.
static int HasAddress(struct dl_phdr_info* info, size_t size, void* data) {
  (void)size;
  const struct Search* search = data;
  uintptr_t low = UINTPTR_MAX;
  uintptr_t high = 0;
  uintptr_t eh_frame = 0;
  int has_it = 0;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const ElfW(Phdr)* header = &info->dlpi_phdr[i];
    const uintptr_t begin = info->dlpi_addr + header->p_vaddr;
    const uintptr_t end = begin + header->p_memsz;
    if (header->p_type == PT_GNU_EH_FRAME) eh_frame = begin;
    if (header->p_type != PT_LOAD) continue;
    if (begin < low) low = begin;
    if (end > high) high = end;
    if (search->address >= begin && search->address < end) has_it = 1;
  }
  if (!has_it || eh_frame == 0) return 0;
  *search->object = (struct dl_find_object){
      .dlfo_map_start = (void*)low,
      .dlfo_map_end = (void*)high,
      .dlfo_eh_frame = (void*)eh_frame,
  };
  return 1;
}

HIDDEN int _dl_find_object(void* address, struct dl_find_object* object) {
  struct Search search = {(uintptr_t)address, object};
  return dl_iterate_phdr(HasAddress, &search) == 1 ? 0 : -1;
}

// --- Waits by another clock than the wall clock (2.30) ----------------------

enum { kNanosecondsPerSecond = 1000000000 };

static struct timespec Now(clockid_t clock) {
  struct timespec now;
  clock_gettime(clock, &now);
  return now;
}

// The time that the wall clock will show when `clock` shows `end`, if nobody
// sets it in between; at most a second from now, so that it matters little if
// somebody does.
static struct timespec WallTime(clockid_t clock, const struct timespec* end) {
  const struct timespec now = Now(clock);
  const time_t seconds = end->tv_sec - now.tv_sec;
  int64_t left = seconds > 1 ? kNanosecondsPerSecond : 0;
  if (seconds >= 0 && seconds <= 1) {
    left = seconds * kNanosecondsPerSecond + end->tv_nsec - now.tv_nsec;
    if (left < 0) left = 0;
    if (left > kNanosecondsPerSecond) left = kNanosecondsPerSecond;
  }
  struct timespec wall = Now(CLOCK_REALTIME);
  wall.tv_nsec += left;
  wall.tv_sec += wall.tv_nsec / kNanosecondsPerSecond;
  wall.tv_nsec %= kNanosecondsPerSecond;
  return wall;
}

static int IsOver(clockid_t clock, const struct timespec* end) {
  const struct timespec now = Now(clock);
  return now.tv_sec > end->tv_sec ||
         (now.tv_sec == end->tv_sec && now.tv_nsec >= end->tv_nsec);
}

typedef int CondClockWait(pthread_cond_t*, pthread_mutex_t*, clockid_t,
                          const struct timespec*);
static CondClockWait* cond_clock_wait_of_glibc;

__attribute__((constructor)) static void FindFunctionsOfGlibc(void) {
  cond_clock_wait_of_glibc =
      (CondClockWait*)dlsym(RTLD_DEFAULT, "pthread_cond_clockwait");
}

// Where glibc has no such function, a wait of more than a second returns
// earlier, as if another thread had woken it: callers expect that of every
// wait.
HIDDEN int pthread_cond_clockwait(pthread_cond_t* condition,
                                  pthread_mutex_t* mutex, clockid_t clock,
                                  const struct timespec* end) {
  if (cond_clock_wait_of_glibc != NULL) {
    return cond_clock_wait_of_glibc(condition, mutex, clock, end);
  }
  const struct timespec wall = WallTime(clock, end);
  const int error = pthread_cond_timedwait(condition, mutex, &wall);
  return error == ETIMEDOUT && !IsOver(clock, end) ? 0 : error;
}

HIDDEN int pthread_mutex_clocklock(pthread_mutex_t* mutex, clockid_t clock,
                                   const struct timespec* end) {
  for (;;) {
    const struct timespec wall = WallTime(clock, end);
    const int error = pthread_mutex_timedlock(mutex, &wall);
    if (error != ETIMEDOUT || IsOver(clock, end)) return error;
  }
}

// --- One thread alone? (2.32) -----------------------------------------------
// Always "perhaps more": libstdc++ then counts references atomically.
HIDDEN char __libc_single_threaded = 0;

// --- The status of files (2.33) ---------------------------------------------
// Before, these were inline functions: glibc has them with the version of
// struct stat as an argument.

#ifdef __x86_64__
enum { kStatVersion = 1 };
#else
enum { kStatVersion = 0 };
#endif
int __xstat(int, const char*, struct stat*);
int __lxstat(int, const char*, struct stat*);
int __fxstat(int, int, struct stat*);
int __fxstatat(int, int, const char*, struct stat*, int);

HIDDEN int stat(const char* path, struct stat* status) {
  return __xstat(kStatVersion, path, status);
}
HIDDEN int lstat(const char* path, struct stat* status) {
  return __lxstat(kStatVersion, path, status);
}
HIDDEN int fstat(int fd, struct stat* status) {
  return __fxstat(kStatVersion, fd, status);
}
HIDDEN int fstatat(int fd, const char* path, struct stat* status, int flags) {
  return __fxstatat(kStatVersion, fd, path, status, flags);
}

// On 64-bit machines the two structures are one.
_Static_assert(sizeof(struct stat) == sizeof(struct stat64), "struct stat64");
HIDDEN int stat64(const char* path, struct stat64* status) {
  return stat(path, (struct stat*)status);
}
HIDDEN int lstat64(const char* path, struct stat64* status) {
  return lstat(path, (struct stat*)status);
}
HIDDEN int fstat64(int fd, struct stat64* status) {
  return fstat(fd, (struct stat*)status);
}
HIDDEN int fstatat64(int fd, const char* path, struct stat64* status,
                     int flags) {
  return fstatat(fd, path, (struct stat*)status, flags);
}
