// Starts maypole, which lies beside this file, as the program of this file's
// name: a wheel cannot have links. Needs nothing but the system calls of the C
// library, so that it costs 20 kB and a fraction of a millisecond.
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const char kProgram[] = "maypole";

int main(int argc, char** argv) {
  (void)argc;
  char self[PATH_MAX];
  char program[PATH_MAX + sizeof(kProgram)];
  const ssize_t length = readlink("/proc/self/exe", self, sizeof(self) - 1);
  if (length < 0) {
    fprintf(stderr, "%s: cannot read /proc/self/exe: %s\n", kProgram,
            strerror(errno));
    return 126;
  }
  self[length] = '\0';
  const size_t directory = (size_t)(strrchr(self, '/') + 1 - self);
  memcpy(program, self, directory);
  memcpy(program + directory, kProgram, sizeof(kProgram));
  argv[0] = self;
  execv(program, argv);
  fprintf(stderr, "%s: cannot run %s: %s\n", self + directory, program,
          strerror(errno));
  return 127;
}
