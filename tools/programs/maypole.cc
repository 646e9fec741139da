// maypole: the programs that talk gRPC, in one file, because that and TLS are
// most of each. The wheel has it; the name under which it is started (argv[0])
// says which program it is. start_program.c starts it under the names of its
// programs.
#include <sys/prctl.h>

#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include "client/ctl/program.h"
#include "coordinator/program.h"
#include "worker/program.h"

namespace {

struct Program {
  std::string_view name;
  int (*main)(const std::vector<std::string>& args);
};

constexpr Program kPrograms[] = {
    {"maypole-coordinator", maypole::coordinator::Main},
    {"maypole-worker", maypole::worker::Main},
    {"maypolectl", maypole::ctl::Main},
};

}  // namespace

int main(int argc, char** argv) {
  const std::string path = argc > 0 ? argv[0] : "";
  const std::string name = path.substr(path.rfind('/') + 1);
  for (const Program& program : kPrograms) {
    if (program.name != name) continue;
    prctl(PR_SET_NAME, name.c_str());  // in ps and top, as if it were a file
    return program.main({argv + 1, argv + argc});
  }
  fputs(
      "maypole: not a command; the commands beside it are maypolerun, "
      "maypolectl, maypole-worker and maypole-coordinator\n",
      stderr);
  return 2;
}
