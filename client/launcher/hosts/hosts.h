// Hosts: parses -H and --hostfile. Pure.
//
//   -H h1:2,user@h2:4,[fe80::1]:2        one slot if no number is given
//   # a file                             comments, empty lines
//   h1 slots=2                           max_slots and the like have no effect
//   h2:4
//   h3:2,h4:2
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
  int slots = 0;      // how many ranks may run there, or do
  bool here = false;  // this machine
};

// Whether a host name means this machine; may query the name service.
using IsHere = std::function<bool(const std::string& name)>;

// Appends to *out. The slots of a host that is listed several times are added
// up; all names of this machine are one host.
Status ParseHosts(std::string_view text, const IsHere& is_here,
                  std::vector<Host>* out);
// path: used in messages only.
Status ParseHostFile(const std::string& path, std::string_view text,
                     const IsHere& is_here, std::vector<Host>* out);

// As ParseHostFile(), for any text; it may list no host. where: used in
// messages only.
Status ParseHostLines(const std::string& where, std::string_view text,
                      int default_slots, const IsHere& is_here,
                      std::vector<Host>* out);

// An error if a host has more slots than a node may have ranks.
Status CheckSlots(const std::vector<Host>& hosts);

// The sum of all slots, at most kMaxRanks.
int SlotsOf(const std::vector<Host>& hosts);

// Whether one of the hosts is not this machine.
bool AnyElsewhere(const std::vector<Host>& hosts);

// Assigns ranks to hosts in order, filling each host before the next: their
// slots become the numbers of their ranks. Requires ranks <= SlotsOf(*hosts).
// Removes hosts that get no rank.
void FillHosts(int ranks, std::vector<Host>* hosts);

// The nodes node0, node1, ... on this machine: the first (ranks % nodes) nodes
// have one rank more than the others. Requires ranks >= nodes >= 1.
std::vector<Host> NodesHere(int ranks, int nodes);

// The host name without "user@".
std::string MachineOf(const std::string& host);

}  // namespace maypole::launcher

#endif  // MAYPOLE_CLIENT_LAUNCHER_HOSTS_HOSTS_H_
