#include "client/launcher/process/private_directory.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <vector>

#include "absl/strings/escaping.h"
#include "client/launcher/command/options.h"
#include "client/launcher/hosts/placement.h"
#include "client/launcher/process/function_files.h"

namespace maypole::launcher {
namespace {

constexpr char kPrefix[] = "/maypole-";
constexpr size_t kRandom = 10;  // characters that follow

bool SocketsFit(const std::string& directory) {
  size_t longest = directory.size() + std::strlen(kPrefix) + kRandom + 1 +
                   NodeName(std::max(kMaxNodes, kMaxHosts) - 1).size() +
                   std::strlen(".sock") + 1;
  return longest <= sizeof(sockaddr_un::sun_path);
}

std::vector<std::string> Candidates() {
  std::vector<std::string> candidates;
  for (const char* name : {"XDG_RUNTIME_DIR", "TMPDIR"}) {
    const char* value = getenv(name);
    if (value != nullptr && value[0] == '/') candidates.emplace_back(value);
  }
  candidates.emplace_back("/tmp");
  return candidates;
}

}  // namespace

PrivateDirectory::PrivateDirectory(bool wanted) {
  if (wanted) {
    candidates_ = Candidates();
    name_ = kPrefix + RandomHex().substr(0, kRandom);
  }
}

Status PrivateDirectory::Create() {
  if (candidates_.empty()) return Status();
  std::string tried;
  for (const std::string& candidate : candidates_) {
    if (!SocketsFit(candidate)) {
      tried += " " + candidate + " (its path is too long for sockets)";
      continue;
    }
    const std::string path = candidate + name_;
    if (mkdir(path.c_str(), 0700) == 0) {
      path_ = path;
      return Status();
    }
    tried += " " + candidate + " (" + std::strerror(errno) + ")";
  }
  return Status(Code::kFailedPrecondition,
                "cannot create the job's private directory; tried" + tried +
                    ": set TMPDIR to a writable directory with a short path");
}

void PrivateDirectory::Remove() {
  for (const std::string& candidate : candidates_) {
    std::error_code ignored;  // at the end there is no way to handle it
    std::filesystem::remove_all(candidate + name_, ignored);
  }
  candidates_.clear();
  path_.clear();
}

std::string RandomHex() {
  std::string bytes(32, 0);
  // For up to 256 bytes, getrandom() can only be interrupted by a signal.
  while (getrandom(bytes.data(), bytes.size(), 0) !=
         static_cast<ssize_t>(bytes.size())) {
  }
  return absl::BytesToHexString(bytes);
}

Status WriteSecretFile(const std::string& path, const std::string& secret) {
  return AppendPrivately(path, secret + "\n", O_EXCL);
}

}  // namespace maypole::launcher
