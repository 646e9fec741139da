// The options of maypolerun that make a job elastic.
//
// Thread contract: functions and values; not synchronized.
#ifndef MAYPOLE_CLIENT_LAUNCHER_COMMAND_ELASTIC_OPTIONS_H_
#define MAYPOLE_CLIENT_LAUNCHER_COMMAND_ELASTIC_OPTIONS_H_

#include <string>
#include <vector>

#include "client/launcher/command/options.h"
#include "common/command_line/command_line.h"

namespace maypole::launcher {

struct ElasticGiven {
  ElasticOptions options;  // its sizes are 0 if not given
  std::vector<std::string> cooldown;
};

void DefineElastic(ElasticGiven* given, CommandLine* line);
bool IsElastic(const ElasticGiven& given);
// Checks the sizes against each other and the slots of `hosts` (-H,
// --hostfile), and sets o->ranks and o->elastic.
Status ChooseElastic(const ElasticGiven& given, const std::vector<Host>& hosts,
                     LauncherOptions* o);

}  // namespace maypole::launcher

#endif  // MAYPOLE_CLIENT_LAUNCHER_COMMAND_ELASTIC_OPTIONS_H_
