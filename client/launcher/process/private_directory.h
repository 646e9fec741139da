// PrivateDirectory: a directory of mode 0700 for the sockets and the secret of
// one job. The constructor chooses its name, so the destructor removes it with
// its contents even if a process forked in between has created it.
//
// Thread contract: not synchronized; neither copied nor moved.
#ifndef MAYPOLE_CLIENT_LAUNCHER_PROCESS_PRIVATE_DIRECTORY_H_
#define MAYPOLE_CLIENT_LAUNCHER_PROCESS_PRIVATE_DIRECTORY_H_

#include <string>
#include <vector>

#include "common/status.h"

namespace maypole::launcher {

class PrivateDirectory {
 public:
  // wanted: false makes all calls do nothing.
  explicit PrivateDirectory(bool wanted);
  PrivateDirectory(const PrivateDirectory&) = delete;
  PrivateDirectory& operator=(const PrivateDirectory&) = delete;
  ~PrivateDirectory() { Remove(); }

  // Creates it in the first of $XDG_RUNTIME_DIR, $TMPDIR and /tmp that is
  // writable and short enough for the paths of unix sockets.
  Status Create();
  void Remove();

  // Empty before Create().
  const std::string& path() const { return path_; }

 private:
  std::vector<std::string> candidates_;  // where it may be, the best one first
  std::string name_;
  std::string path_;
};

// 256 random bits in hexadecimal.
std::string RandomHex();

// Creates a file of mode 0600 with the secret. The file must not exist yet.
Status WriteSecretFile(const std::string& path, const std::string& secret);

}  // namespace maypole::launcher

#endif  // MAYPOLE_CLIENT_LAUNCHER_PROCESS_PRIVATE_DIRECTORY_H_
