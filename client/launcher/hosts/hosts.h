// Hosts: what -H and --hostfile say. Pure.
//
//   -H h1:2,user@h2:4,[fe80::1]:2        one slot if no number is given
//   # a file                             comments, empty lines
//   h1 slots=2
//   h2:4
//
// Thread contract: values and functions; not synchronized.
#ifndef MAYPOLE_CLIENT_LAUNCHER_HOSTS_HOSTS_H_
#define MAYPOLE_CLIENT_LAUNCHER_HOSTS_HOSTS_H_

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"

namespace maypole::launcher {

inline constexpr int kMaxHosts = 256;  // machines of a job

struct Host {
  std::string name;   // as the user wrote it, without brackets
  int slots = 0;      // ranks that may run there
  int ranks = 0;      // that do run there
  bool here = false;  // this machine
};

// Whether a name is this machine's; may ask the name service.
using IsHere = std::function<bool(const std::string& name)>;

// A host that is named twice has the slots of both; all names of this machine
// are one host.
Status ParseHosts(std::string_view text, const IsHere& is_here,
                  std::vector<Host>* out);
// path: for messages.
Status ParseHostFile(const std::string& path, std::string_view text,
                     const IsHere& is_here, std::vector<Host>* out);

int SlotsOf(const std::vector<Host>& hosts);

// Host by host, each filled before the next. Requires as many slots. Hosts
// that get no rank are taken off the list.
void FillHosts(int ranks, std::vector<Host>* hosts);

// The machine's name without "user@".
std::string MachineOf(const std::string& host);

}  // namespace maypole::launcher

#endif  // MAYPOLE_CLIENT_LAUNCHER_HOSTS_HOSTS_H_
