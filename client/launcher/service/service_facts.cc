#include "client/launcher/service/service_facts.h"

#include <errno.h>
#include <pwd.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client/launcher/hosts/own_addresses.h"
#include "client/launcher/process/private_directory.h"
#include "client/launcher/process/rank_start.h"
#include "common/fusion_threshold.h"
#include "common/program/derive.h"
#include "common/program/secret_file.h"
#include "common/system/fd.h"
#include "common/wire/unix_socket.h"

namespace maypole::launcher {
namespace {

std::string Variable(const char* name) {
  const char* value = getenv(name);
  return value != nullptr ? value : "";
}

// Whether a process of root or this user listens at the socket.
bool AgentListens(const std::string& path) {
  Fd socket;
  PeerCredentials peer;
  return ConnectUnix(path, &socket).ok() && PeerOf(socket.get(), &peer).ok() &&
         (peer.uid == 0 || peer.uid == geteuid());
}

std::string RunningAgent() {
  for (const std::string& path : DefaultAgentSockets()) {
    if (AgentListens(path)) return path;
  }
  return "";
}

std::string Home() {
  if (const std::string home = Variable("HOME"); !home.empty()) return home;
  const passwd* entry = getpwuid(geteuid());
  return entry != nullptr ? entry->pw_dir : "";
}

// Creates the file with a random secret; an existing file is not changed.
Status MakeSecret(const std::string& path) {
  char host[256] = {};
  gethostname(host, sizeof(host) - 1);
  const std::string partial =
      path + "." + host + "." + std::to_string(getpid());
  if (Status s = WriteSecretFile(partial, RandomHex()); !s.ok()) return s;
  const bool linked = link(partial.c_str(), path.c_str()) == 0;
  const int error = errno;
  unlink(partial.c_str());
  if (linked || error == EEXIST) return Status();
  return ErrnoStatus(error, "cannot make " + path);
}

}  // namespace

Status UserSecret(const std::string& home, std::string* out) {
  const std::string directory = home + "/.maypole";
  const std::string path = directory + "/secret";
  Status s;
  if (home.empty()) {
    s = Status(Code::kNotFound, "this user has no home directory");
  } else {
    s = ReadSecretFile(path, out);
    if (s.ok() || s.code() == Code::kPermissionDenied) return s;
    mkdir(directory.c_str(), 0700);
    s = MakeSecret(path);
    if (s.ok()) s = ReadSecretFile(path, out);
  }
  if (s.ok()) return s;
  return Status(s.code(),
                "no secret that the nodes of this job share: " + s.message() +
                    "; set MAYPOLE_TOKEN to the same random text on "
                    "all ranks");
}

Status GatherServiceFacts(const std::string& directory, ServiceFacts* out) {
  ServiceFacts f;
  f.directory = directory;
  f.coordinator = Variable("MAYPOLE_COORDINATOR");
  f.coordinator_port = Variable("MAYPOLE_COORDINATOR_PORT");
  f.secret_file = Variable("MAYPOLE_SECRET_FILE");
  f.token = Variable("MAYPOLE_TOKEN");
  // With MAYPOLE_COORDINATOR, the job does not use a running agent.
  if (f.coordinator.empty()) f.running_agent = RunningAgent();
  f.random_secret = RandomHex();
  f.random_token = RandomHex();
  f.any_address = AnyAddress();
  f.addresses = OwnAddresses();
  // Without any network, all nodes must be on this machine.
  if (f.addresses.empty()) f.addresses = {kLoopbackAddress};
  f.user_secret = [](std::string* key) { return UserSecret(Home(), key); };
  f.cluster_secret = [path = f.secret_file](std::string* key) {
    const Status s = ReadSecretFile(path, key);
    if (s.ok()) return s;
    return Status(s.code(), "MAYPOLE_SECRET_FILE: " + s.message());
  };
  f.derive = Derive;
  if (Status s = ReadFusionThreshold(getenv, &f.fusion_threshold); !s.ok()) {
    return s;
  }
  *out = std::move(f);
  return Status();
}

}  // namespace maypole::launcher
