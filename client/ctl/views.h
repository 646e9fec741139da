// Views: what the coordinator answers, as an operator reads it.
//
// Purpose: tables of 80 columns that still say what matters with 1000 ranks:
// what is alike stands on one line.
//
// Thread contract: pure functions. width: columns of the terminal, 0: no limit.
#ifndef MAYPOLE_CLIENT_CTL_VIEWS_H_
#define MAYPOLE_CLIENT_CTL_VIEWS_H_

#include <cstddef>
#include <string>

#include "proto/admin.pb.h"

namespace maypole::ctl {

// More nodes than these stand on one line, but for what is notable.
inline constexpr size_t kMaxNodeLines = 24;
// More lines of ranks of a job than these: those of several nodes that are
// alike stand on one.
inline constexpr size_t kMaxRankLines = 32;

std::string StatusView(const std::string& address,
                       const proto::StatusReply& reply, size_t width);
std::string JobsView(const proto::StatusReply& reply, size_t width);
// each: a line for each rank.
std::string RanksView(const proto::StatusReply& reply, bool each, size_t width);
// One line, in local time.
std::string EventLine(const proto::Event& event);

}  // namespace maypole::ctl

#endif  // MAYPOLE_CLIENT_CTL_VIEWS_H_
