// The config file of horovodrun (--config-file), as options of maypolerun.
//
// Purpose: turns the YAML text into options, each with its place in the file,
// which errors about its value name. The keys are Horovod's; docs/start.md has
// the list. A key without a value is ignored.
//
//   params:
//     fusion_threshold_mb: 32      # {"--fusion-threshold-mb", "32"}
//   stall_check:
//     enabled: false               # {"--no-stall-check", ""}
//
// Thread contract: a function; not synchronized. Pure.
#ifndef MAYPOLE_CLIENT_LAUNCHER_COMMAND_CONFIG_FILE_H_
#define MAYPOLE_CLIENT_LAUNCHER_COMMAND_CONFIG_FILE_H_

#include <string>
#include <vector>

#include "common/status.h"

namespace maypole::launcher {

struct ConfigSetting {
  std::string option;  // with its dashes
  std::string text;    // its value; empty for a switch
  std::string where;   // "run.yaml:2: params.cycle_time_ms"
};

// path: for messages. Errors name file, line and key.
Status ReadConfig(const std::string& path, const std::string& text,
                  std::vector<ConfigSetting>* out);

}  // namespace maypole::launcher

#endif  // MAYPOLE_CLIENT_LAUNCHER_COMMAND_CONFIG_FILE_H_
