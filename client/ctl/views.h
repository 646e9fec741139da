// Views: formats the coordinator's replies for an operator.
//
// Purpose: tables that are readable on a terminal of 80 columns even with 1000
// ranks: ranks and nodes that are alike share a line.
//
// Thread contract: pure functions. width: columns of the terminal; 0: no limit.
#ifndef MAYPOLE_CLIENT_CTL_VIEWS_H_
#define MAYPOLE_CLIENT_CTL_VIEWS_H_

#include <cstddef>
#include <string>
#include <vector>

#include "proto/admin.pb.h"

namespace maypole::ctl {

// With more nodes than this, only nodes with a note get their own line.
inline constexpr size_t kMaxNodeLines = 24;
// If a job needs more lines of ranks than this, ranks of different nodes that
// are alike share a line.
inline constexpr size_t kMaxRankLines = 32;

// StatusReply.role of a coordinator that does not lead.
inline constexpr char kStandby[] = "standby";

// A coordinator of the cluster besides the one whose status is shown.
struct OtherCoordinator {
  std::string address;
  std::string note;  // kStandby, or why it cannot be called
};

std::string StatusView(const std::string& address,
                       const proto::StatusReply& reply,
                       const std::vector<OtherCoordinator>& others,
                       size_t width);
// The first lines of a view: the coordinator, and what it has.
std::string Summary(const std::string& address,
                    const proto::StatusReply& reply);
// A sentence about what is wrong with the job; empty if nothing is.
std::string Trouble(const proto::JobStatus& job);
// What the jobs do now. Has at most `height` lines; 0: no limit.
std::string TopView(const std::string& address, const proto::StatusReply& reply,
                    size_t width, size_t height);
std::string JobsView(const proto::StatusReply& reply, size_t width);
// each: one line per rank.
std::string RanksView(const proto::StatusReply& reply, bool each, size_t width);
// The link; `coordinator`: its address as the caller knows it.
std::string DashboardLink(const std::string& coordinator,
                          const proto::DashboardReply& reply);
// Where the timeline is written.
std::string TimelineLine(const std::string& job,
                         const proto::TimelineStatus& timeline);
// One line, with the local time.
std::string EventLine(const proto::Event& event);

}  // namespace maypole::ctl

#endif  // MAYPOLE_CLIENT_CTL_VIEWS_H_
