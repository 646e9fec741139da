// EpochBed: the nodes of an epoch, for tests of one class that needs them.
//
//   EpochBed bed(2);                // node i has ranks 2 i and 2 i + 1
//   RunIssuer runs(&bed.nodes, ...);
//   for (const auto& [node, message] : bed.Take()) ...
//
// Thread contract: not synchronized.
#ifndef MAYPOLE_COORDINATOR_CORE_TESTING_EPOCH_TESTING_H_
#define MAYPOLE_COORDINATOR_CORE_TESTING_EPOCH_TESTING_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/core/membership/departures.h"
#include "coordinator/core/membership/epoch_nodes.h"

namespace maypole::coordinator {

struct EpochBed {
  using Messages = std::vector<std::pair<size_t, proto::CoordinatorMessage>>;

  // Epoch 5 of job "j"; node i is session i + 100.
  explicit EpochBed(size_t count)
      : nodes(5, "j", Members(count), &output),
        departures(&nodes, static_cast<uint32_t>(2 * count)) {}

  static std::vector<NodeMember> Members(size_t count) {
    std::vector<NodeMember> members(count);
    for (size_t i = 0; i < count; ++i) {
      members[i].session = i + 100;
      members[i].node = absl::StrCat("n", i);
      members[i].host = absl::StrCat("h", i);
      members[i].versions = kProtocolVersions;
      members[i].version = kProtocolVersions.newest;
      members[i].ranks = {static_cast<uint32_t>(2 * i),
                          static_cast<uint32_t>(2 * i + 1)};
      members[i].pids = {static_cast<int64_t>(1000 + 2 * i),
                         static_cast<int64_t>(1001 + 2 * i)};
    }
    return members;
  }

  // What was sent to the nodes since the last call.
  Messages Take() {
    Messages all;
    for (const auto& [session, message] : std::exchange(output.messages, {})) {
      all.emplace_back(session - 100, message.ToMessage());
    }
    return all;
  }
  // The lines logged since the last call.
  std::vector<std::string> TakeLog() {
    std::vector<std::string> lines;
    for (const Action& action : std::exchange(output.facts, {})) {
      if (const Log* log = std::get_if<Log>(&action)) {
        lines.push_back(log->line);
      }
    }
    return lines;
  }

  JobOutput output;
  EpochNodes nodes;
  Departures departures;
};

}  // namespace maypole::coordinator

#endif  // MAYPOLE_COORDINATOR_CORE_TESTING_EPOCH_TESTING_H_
