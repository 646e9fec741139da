#include "client/launcher/hosts/hosts.h"

#include <algorithm>
#include <initializer_list>
#include <utility>

#include "client/launcher/hosts/placement.h"
#include "common/limits.h"
#include "common/name.h"
#include "common/parse.h"

namespace maypole::launcher {
namespace {

constexpr std::string_view kBlank = " \t\r";
constexpr size_t kMaxName = 320;  // bytes; longer than USER@HOST can be

Status Invalid(std::string message) {
  return Status(Code::kInvalidArgument, std::move(message));
}

std::string_view Trimmed(std::string_view text) {
  size_t begin = text.find_first_not_of(kBlank);
  if (begin == text.npos) return "";
  return text.substr(begin, text.find_last_not_of(kBlank) - begin + 1);
}

// Accepts what ssh accepts as a host, except what it could take for an option.
bool IsName(std::string_view name) {
  return !name.empty() && name.size() <= kMaxName && name.front() != '-' &&
         name.front() != '@' && name.back() != '@' && HasNameCharacters(name);
}

// Splits "h2:4", "[::1]:2", "h2" or "10::1" (an IPv6 address without slots).
void SplitHost(std::string_view entry, std::string_view* name,
               std::string_view* slots) {
  *slots = "";
  if (entry.starts_with('[')) {
    size_t end = entry.find(']');
    if (end != entry.npos &&
        (end + 1 == entry.size() || entry[end + 1] == ':')) {
      *name = entry.substr(1, end - 1);
      if (end + 1 < entry.size()) *slots = entry.substr(end + 2);
      if (end + 2 == entry.size()) *slots = ":";  // ParseNumber() rejects ":"
      return;
    }
  }
  size_t colon = entry.rfind(':');
  if (colon == entry.npos || entry.find(':') != colon) {
    *name = entry;
    return;
  }
  *name = entry.substr(0, colon);
  *slots = colon + 1 < entry.size() ? entry.substr(colon + 1) : ":";
}

// where: "-H" or "hostfile:3", for messages.
Status Add(const std::string& where, std::string_view name,
           std::string_view slots, int default_slots, const IsHere& is_here,
           std::vector<Host>* out) {
  if (!IsName(name)) {
    return Invalid(where + ": " + Quoted(name) +
                   " is not a hostname; give hosts as HOST:SLOTS");
  }
  int count = default_slots;
  if (!slots.empty()) {
    if (!ParseNumber(slots, 1, kMaxRanks, &count)) {
      return Invalid(where + ": the slots of " + std::string(name) +
                     " must be a number from 1 to " +
                     std::to_string(kMaxRanks) + ", not " +
                     Quoted(slots == ":" ? "" : slots));
    }
  }
  Host host{.name = std::string(name), .slots = count};
  // With "user@" even this machine is reached through ssh.
  host.here = host.name.find('@') == host.name.npos && is_here(host.name);
  auto same = std::find_if(out->begin(), out->end(), [&](const Host& h) {
    return host.here ? h.here : h.name == host.name;
  });
  if (same != out->end()) {
    same->slots = std::min(same->slots + count, kMaxRanks);
    return Status();
  }
  if (out->size() == kMaxHosts) {
    return Invalid(where + ": at most " + std::to_string(kMaxHosts) +
                   " hosts are allowed");
  }
  out->push_back(std::move(host));
  return Status();
}

// "h1:2,h2"
Status AddList(const std::string& where, std::string_view text,
               int default_slots, const IsHere& is_here,
               std::vector<Host>* out) {
  while (true) {
    const size_t comma = text.find(',');
    std::string_view name, slots;
    SplitHost(Trimmed(text.substr(0, comma)), &name, &slots);
    Status status = Add(where, name, slots, default_slots, is_here, out);
    if (!status.ok() || comma == text.npos) return status;
    text.remove_prefix(comma + 1);
  }
}

constexpr char kExpected[] =
    "expected 'HOST slots=N', 'HOST:N', or several of the latter with commas";

// Splits "slots = 2 max_slots=4" into key and value pairs.
bool SplitSettings(
    std::string_view text,
    std::vector<std::pair<std::string_view, std::string_view>>* out) {
  while (!(text = Trimmed(text)).empty()) {
    const size_t equals = text.find('=');
    if (equals == text.npos) return false;
    const std::string_view key = Trimmed(text.substr(0, equals));
    text = Trimmed(text.substr(equals + 1));
    const size_t end = std::min(text.find_first_of(kBlank), text.size());
    if (key.empty() || key.find_first_of(kBlank) != key.npos || end == 0) {
      return false;
    }
    out->emplace_back(key, text.substr(0, end));
    text.remove_prefix(end);
  }
  return true;
}

bool IsOneOf(std::string_view key,
             std::initializer_list<std::string_view> names) {
  return std::find(names.begin(), names.end(), key) != names.end();
}

// The words after a host, as Open MPI and LAM write them.
Status ReadSettings(const std::string& where, std::string_view line,
                    std::string_view text, std::string_view* slots,
                    std::string_view* user) {
  std::vector<std::pair<std::string_view, std::string_view>> settings;
  if (!SplitSettings(text, &settings)) {
    return Invalid(where + ": " + Quoted(line) + ": " + kExpected);
  }
  for (const auto& [key, value] : settings) {
    if (IsOneOf(key, {"slots", "count", "cpu", "cpus"})) {
      *slots = value;
    } else if (IsOneOf(key, {"user", "username", "user-name", "user_name"})) {
      *user = value;
    } else if (!IsOneOf(key,
                        // Limits on starts beyond the slots, and facts from
                        // which Open MPI guesses the slots.
                        {"max_slots", "max-slots", "max_count", "max-count",
                         "sockets", "boards", "cores", "sockets_per_board",
                         "sockets-per-board", "cores_per_socket",
                         "cores-per-socket"})) {
      return Invalid(where + ": " + Quoted(line) + ": unknown word " +
                     Quoted(key) + "; " + kExpected);
    }
  }
  if (!slots->empty()) return Status();
  return Invalid(where + ": " + Quoted(line) +
                 " does not say how many slots: " + kExpected);
}

// "h1 slots=2", "h1:2", "h1:2,h2:2".
Status AddLine(const std::string& where, std::string_view line,
               int default_slots, const IsHere& is_here,
               std::vector<Host>* out) {
  const size_t blank = line.find_first_of(kBlank);
  if (line.find(',') != line.npos || blank == line.npos) {
    return AddList(where, line, default_slots, is_here, out);
  }
  std::string_view name, slots, user;
  SplitHost(line.substr(0, blank), &name, &slots);
  if (!slots.empty()) {
    return Invalid(where + ": " + Quoted(line) + ": " + kExpected);
  }
  Status status = ReadSettings(where, line, line.substr(blank), &slots, &user);
  if (!status.ok()) return status;
  std::string host(name);
  if (!user.empty()) host = std::string(user) + "@" + host;
  return Add(where, host, slots, default_slots, is_here, out);
}

}  // namespace

Status ParseHosts(std::string_view text, const IsHere& is_here,
                  std::vector<Host>* out) {
  return AddList("-H", text, 1, is_here, out);
}

Status ParseHostFile(const std::string& path, std::string_view text,
                     const IsHere& is_here, std::vector<Host>* out) {
  Status status = ParseHostLines(path, text, 1, is_here, out);
  if (!status.ok() || !out->empty()) return status;
  return Invalid(path + ": lists no host; expected lines 'HOST slots=N'");
}

Status ParseHostLines(const std::string& where, std::string_view text,
                      int default_slots, const IsHere& is_here,
                      std::vector<Host>* out) {
  for (int number = 1; !text.empty(); ++number) {
    size_t end = text.find('\n');
    std::string_view line = text.substr(0, end);
    text.remove_prefix(end == text.npos ? text.size() : end + 1);
    line = Trimmed(line.substr(0, line.find('#')));
    if (line.empty()) continue;
    Status status = AddLine(where + ":" + std::to_string(number), line,
                            default_slots, is_here, out);
    if (!status.ok()) return status;
  }
  return Status();
}

Status CheckSlots(const std::vector<Host>& hosts) {
  for (const Host& host : hosts) {
    if (host.slots <= kMaxLocalRanks) continue;
    return Invalid(host.name + " has " + std::to_string(host.slots) +
                   " slots, but the limit of one host is " +
                   std::to_string(kMaxLocalRanks));
  }
  return Status();
}

int SlotsOf(const std::vector<Host>& hosts) {
  int slots = 0;
  for (const Host& host : hosts) {
    slots = std::min(slots + host.slots, kMaxRanks);
  }
  return slots;
}

bool AnyElsewhere(const std::vector<Host>& hosts) {
  return std::any_of(hosts.begin(), hosts.end(),
                     [](const Host& host) { return !host.here; });
}

void FillHosts(int ranks, std::vector<Host>* hosts) {
  for (Host& host : *hosts) {
    host.slots = std::min(ranks, host.slots);
    ranks -= host.slots;
  }
  std::erase_if(*hosts, [](const Host& host) { return host.slots == 0; });
}

std::vector<Host> NodesHere(int ranks, int nodes) {
  std::vector<Host> hosts;
  for (int node = 0; node < nodes; ++node) {
    hosts.push_back({.name = NodeName(node),
                     .slots = ranks / nodes + (node < ranks % nodes ? 1 : 0),
                     .here = true});
  }
  return hosts;
}

std::string MachineOf(const std::string& host) {
  return host.substr(host.rfind('@') + 1);  // npos + 1 is 0
}

}  // namespace maypole::launcher
