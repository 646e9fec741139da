// What the node service has to know of its machine and user.
//
// Thread contract: functions; they ask the system.
#ifndef MAYPOLE_CLIENT_LAUNCHER_SERVICE_SERVICE_FACTS_H_
#define MAYPOLE_CLIENT_LAUNCHER_SERVICE_SERVICE_FACTS_H_

#include <string>

#include "client/launcher/service/service_core.h"
#include "common/status.h"

namespace maypole::launcher {

Status GatherServiceFacts(const std::string& directory, ServiceFacts* out);

// HMAC-SHA-256 in hexadecimal.
std::string Derive(const std::string& key, const std::string& text);

// <home>/.maypole/secret, made at the first use. All nodes that share the home
// get the same, also when two of them make it at once.
Status UserSecret(const std::string& home, std::string* out);

}  // namespace maypole::launcher

#endif  // MAYPOLE_CLIENT_LAUNCHER_SERVICE_SERVICE_FACTS_H_
