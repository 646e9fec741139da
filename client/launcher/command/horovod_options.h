// The options that maypolerun has because horovodrun has them.
//
// Purpose: a command line of horovodrun works. Options that mean something here
// are translated; those of parts that Maypole does not have (MPI, a cycle, a
// response cache) are accepted and have no effect, and are not in --help.
// docs/horovod-compat.md has the list.
//
// Thread contract: functions and values; not synchronized.
#ifndef MAYPOLE_CLIENT_LAUNCHER_COMMAND_HOROVOD_OPTIONS_H_
#define MAYPOLE_CLIENT_LAUNCHER_COMMAND_HOROVOD_OPTIONS_H_

#include <string>
#include <vector>

#include "client/launcher/command/options.h"
#include "common/command_line/command_line.h"
#include "common/status.h"

namespace maypole::launcher {

struct HorovodGiven {
  bool shim = false;
  std::string shim_directory;
  std::vector<std::string> interfaces;
  int fusion_threshold_mb = -1;  // here and below, -1: not given
  bool stall_check = true;
  int stall_warning_s = -1;
  int stall_shutdown_s = -1;
  int network_timeout_s = -1;
  std::string log_level;
  // Without effect.
  bool flag = false;
  std::string text;
};

void DefineHorovod(HorovodGiven* given, CommandLine* line);
// Finds the directory of Maypole's package `horovod`, if it is wanted.
Status FindShim(const Surroundings& around, const HorovodGiven& given,
                LauncherOptions* o);
void ApplyHorovod(const HorovodGiven& given, LauncherOptions* o);

}  // namespace maypole::launcher

#endif  // MAYPOLE_CLIENT_LAUNCHER_COMMAND_HOROVOD_OPTIONS_H_
