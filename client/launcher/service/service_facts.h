// Collects what the node service must know about its machine and user.
//
// Thread contract: functions; they query the system.
#ifndef MAYPOLE_CLIENT_LAUNCHER_SERVICE_SERVICE_FACTS_H_
#define MAYPOLE_CLIENT_LAUNCHER_SERVICE_SERVICE_FACTS_H_

#include <string>

#include "client/launcher/service/service_core.h"
#include "common/status.h"

namespace maypole::launcher {

Status GatherServiceFacts(const std::string& directory, ServiceFacts* out);

// Reads <home>/.maypole/secret, and creates it on first use. All nodes that
// share the home directory get the same secret, even if two create it at once.
Status UserSecret(const std::string& home, std::string* out);

}  // namespace maypole::launcher

#endif  // MAYPOLE_CLIENT_LAUNCHER_SERVICE_SERVICE_FACTS_H_
