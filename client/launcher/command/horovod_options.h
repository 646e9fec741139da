// The options that maypolerun takes over from horovodrun.
//
// Purpose: command lines of horovodrun work. Options that mean something here
// are translated. Options of parts that Maypole does not have (MPI, a cycle, a
// response cache) are accepted but not in --help, and a note says why they have
// no effect, unless they ask for what Maypole does anyway.
// docs/horovod-compat.md has the list.
//
// Thread contract: functions and values; not synchronized.
#ifndef MAYPOLE_CLIENT_LAUNCHER_COMMAND_HOROVOD_OPTIONS_H_
#define MAYPOLE_CLIENT_LAUNCHER_COMMAND_HOROVOD_OPTIONS_H_

#include <map>
#include <optional>
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
  std::string timeline;
  bool timeline_mark_cycles = false;
  std::optional<bool> hide_time;  // in the daemons' log lines
  std::string thread_affinity;
  // The given options that have no effect, by the reason.
  std::map<std::string, std::vector<std::string>> without_effect;
};

void DefineHorovod(HorovodGiven* given, CommandLine* line);
// Finds the directory of Maypole's package `horovod`, if it is wanted.
Status FindShim(const Surroundings& around, const HorovodGiven& given,
                LauncherOptions* o);
// Applies `given`; what it leaves open is taken from the environment, if set
// there.
Status ApplyHorovod(const Surroundings& around, const HorovodGiven& given,
                    LauncherOptions* o);

}  // namespace maypole::launcher

#endif  // MAYPOLE_CLIENT_LAUNCHER_COMMAND_HOROVOD_OPTIONS_H_
