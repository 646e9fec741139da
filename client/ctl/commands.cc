#include "client/ctl/commands.h"

#include <pwd.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/ctl/connection.h"
#include "client/ctl/json.h"
#include "client/ctl/leader.h"
#include "client/ctl/text.h"
#include "client/ctl/views.h"
#include "common/limits.h"

namespace maypole::ctl {
namespace {

constexpr std::chrono::milliseconds kWaitStep(500);
constexpr int kStatsSteps = 8;
// Moves the cursor to the first line, and clears all below.
constexpr absl::string_view kClearScreen = "\x1b[H\x1b[J";

// A dimension of the terminal, from the variable or from the terminal itself; 0
// (no limit) if stdout is a pipe or a file.
size_t TerminalSize(const char* variable, unsigned short winsize::*field,
                    size_t otherwise) {
  if (!isatty(1)) return 0;
  const char* text = std::getenv(variable);
  size_t n = 0;
  if (text != nullptr && absl::SimpleAtoi(text, &n)) return n;
  winsize size{};
  if (ioctl(1, TIOCGWINSZ, &size) != 0) return 0;
  return size.*field == 0 ? otherwise : size.*field;
}

size_t TerminalWidth() { return TerminalSize("COLUMNS", &winsize::ws_col, 80); }

size_t TerminalHeight() { return TerminalSize("LINES", &winsize::ws_row, 24); }

void Print(const std::string& text) {
  std::fputs(text.c_str(), stdout);
  std::fflush(stdout);
}

// "alice@head"
std::string Self() {
  char host[kMaxHostBytes + 1] = {};
  gethostname(host, sizeof(host) - 1);
  const passwd* user = getpwuid(geteuid());
  return absl::StrCat(
      user != nullptr ? user->pw_name : absl::StrCat("uid ", geteuid()), "@",
      host);
}

absl::Status CheckLeads(const proto::StatusReply& reply,
                        const CoordinatorClient& coordinator) {
  if (reply.role() != kStandby) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "coordinator ", coordinator.address(), " is a standby; ",
      reply.leader().empty() ? "no coordinator leads now"
                             : absl::StrCat("call the leader: --coordinator=",
                                            Printable(reply.leader()))));
}

absl::Status AskCoordinator(const CtlOptions& o,
                            const std::vector<OtherCoordinator>& others,
                            CoordinatorClient* coordinator) {
  const auto reply = coordinator->Status(o.job);
  if (!reply.ok()) return reply.status();
  if (o.command != Command::kStatus) {
    if (absl::Status s = CheckLeads(*reply, *coordinator); !s.ok()) return s;
  }
  if (o.json) {
    Print(Json(*reply) + "\n");
  } else if (o.command == Command::kStatus) {
    Print(StatusView(coordinator->address(), *reply, others, TerminalWidth()));
  } else if (o.command == Command::kJobs) {
    Print(JobsView(*reply, TerminalWidth()));
  } else {
    Print(RanksView(*reply, o.each, TerminalWidth()));
  }
  return absl::OkStatus();
}

// True if all running jobs have figures.
bool HaveStats(const proto::StatusReply& reply) {
  return std::all_of(reply.jobs().begin(), reply.jobs().end(),
                     [](const proto::JobStatus& job) {
                       return job.state() != "running" || job.has_stats();
                     });
}

// A job's first figures arrive a second after they were requested.
absl::Status AwaitStats(const CtlOptions& o, CoordinatorClient* coordinator) {
  for (int i = 0; i < kStatsSteps; ++i) {
    const auto reply = coordinator->Status(o.job, /*stats=*/true);
    if (!reply.ok() || HaveStats(*reply)) return reply.status();
    std::this_thread::sleep_for(kWaitStep);
  }
  return absl::OkStatus();
}

absl::Status Top(const CtlOptions& o, CoordinatorClient* coordinator) {
  const bool screen = isatty(1) && !o.json;
  if (!screen) {
    if (absl::Status s = AwaitStats(o, coordinator); !s.ok()) return s;
  }
  for (int look = 0; o.looks == 0 || look < o.looks; ++look) {
    if (look > 0)
      std::this_thread::sleep_for(std::chrono::seconds(o.interval_s));
    const auto reply = coordinator->Status(o.job, /*stats=*/true);
    if (!reply.ok()) return reply.status();
    if (absl::Status s = CheckLeads(*reply, *coordinator); !s.ok()) return s;
    const size_t height = TerminalHeight();
    const std::string view =
        o.json ? Json(*reply)
               : TopView(coordinator->address(), *reply, TerminalWidth(),
                         height > 1 ? height - 1 : 0);
    Print(absl::StrCat(screen ? kClearScreen : "", view, screen ? "" : "\n"));
    if (std::ferror(stdout) != 0) break;
  }
  return absl::OkStatus();
}

absl::Status Events(const CtlOptions& o, CoordinatorClient* coordinator) {
  const size_t width = TerminalWidth();
  const auto line = [&o, width](const proto::Event& e) {
    return o.json ? Json(e) + "\n" : Wrap(EventLine(e), width);
  };
  proto::EventsRequest request;
  request.set_job(o.job);
  if (o.last == 0) {
    request.set_follow(o.follow);
    return coordinator->Watch(request, [&](const proto::Event& e) {
      Print(line(e));
      return std::ferror(stdout) == 0;
    });
  }
  std::deque<std::string> last;
  absl::Status status = coordinator->Watch(request, [&](const auto& e) {
    last.push_back(line(e));
    if (last.size() > static_cast<size_t>(o.last)) last.pop_front();
    request.set_after(e.number());
    return true;
  });
  if (!status.ok()) return status;
  for (const std::string& text : last) Print(text);
  if (!o.follow) return absl::OkStatus();
  request.set_follow(true);
  return coordinator->Watch(request, [&](const proto::Event& e) {
    Print(line(e));
    return std::ferror(stdout) == 0;
  });
}

absl::Status Dashboard(const CtlOptions& o, CoordinatorClient* coordinator) {
  const auto reply = coordinator->MakeDashboardLink(o.control);
  if (!reply.ok()) return reply.status();
  Print(absl::StrCat(
      o.json ? Json(*reply) : DashboardLink(coordinator->address(), *reply),
      "\n"));
  return absl::OkStatus();
}

absl::Status Timeline(const CtlOptions& o, CoordinatorClient* coordinator) {
  proto::RecordTimelineRequest request;
  request.set_job(o.job);
  request.set_stop(o.stop);
  request.set_who(Self());
  const auto reply = coordinator->RecordTimeline(request);
  if (!reply.ok()) return reply.status();
  Print(absl::StrCat(
      o.json ? Json(*reply) : TimelineLine(o.job, reply->timeline()), "\n"));
  return absl::OkStatus();
}

absl::Status Abort(const CtlOptions& o, CoordinatorClient* coordinator) {
  proto::AbortRequest request;
  request.set_job(o.job);
  request.set_reason(o.reason);
  request.set_who(Self());
  const auto reply = coordinator->Abort(request);
  if (!reply.ok()) return reply.status();
  Print(o.json
            ? Json(*reply) + "\n"
            : absl::StrCat(
                  "job ", o.job, " is aborted; ", Count(reply->ranks(), "rank"),
                  reply->ranks() == 1 ? " was" : " were", " notified\n"));
  return absl::OkStatus();
}

// The names of nodes with jobs, so that the operator sees a typing error.
std::string OtherNodes(const proto::StatusReply& status) {
  std::set<std::string> nodes;
  for (const auto& job : status.jobs()) {
    for (const auto& n : job.nodes()) nodes.insert(n.node());
  }
  constexpr size_t kShown = 8;
  if (nodes.empty() || nodes.size() > kShown) return "";
  return absl::StrCat(" (nodes with jobs: ", absl::StrJoin(nodes, ", "), ")");
}

// Waits until no job is left on the node.
absl::Status WaitForEmpty(const CtlOptions& o, CoordinatorClient* coordinator) {
  std::string said;
  while (true) {
    const auto status = coordinator->Status("");
    if (!status.ok()) return status.status();
    const auto& drained = status->drained_nodes();
    if (std::find(drained.begin(), drained.end(), o.node) == drained.end()) {
      return absl::AbortedError(
          absl::StrCat("node ", o.node,
                       " is no longer drained: somebody used --undo, or the "
                       "coordinator was restarted"));
    }
    std::set<std::string> jobs;
    for (const auto& job : status->jobs()) {
      for (const auto& n : job.nodes()) {
        if (n.node() == o.node) jobs.insert(job.job());
      }
    }
    if (jobs.empty()) return absl::OkStatus();
    const std::string there = absl::StrJoin(jobs, ", ");
    if (!o.json && there != said) {
      Print(absl::StrCat("waiting for ", there, "\n"));
    }
    said = there;
    std::this_thread::sleep_for(kWaitStep);
  }
}

absl::Status Drain(const CtlOptions& o, CoordinatorClient* coordinator) {
  proto::DrainRequest request;
  request.set_node(o.node);
  request.set_undo(o.undo);
  request.set_who(Self());
  const auto reply = coordinator->Drain(request);
  if (!reply.ok()) return reply.status();
  if (o.json && !o.wait) {
    Print(Json(*reply) + "\n");
  } else if (o.undo) {
    Print(absl::StrCat("node ", o.node, " takes new jobs again\n"));
  } else if (!o.json) {
    std::string jobs = absl::StrJoin(reply->jobs(), ", ");
    if (jobs.empty()) {
      const auto status = coordinator->Status("");
      jobs = absl::StrCat("none", status.ok() ? OtherNodes(*status) : "");
    }
    Print(absl::StrCat(
        "node ", o.node,
        " is drained: it gets no new jobs; jobs there now: ", jobs, "\n"));
  }
  if (!o.wait) return absl::OkStatus();
  absl::Status status = WaitForEmpty(o, coordinator);
  if (!status.ok()) return status;
  Print(o.json ? Json(proto::DrainReply()) + "\n"
               : absl::StrCat("node ", o.node, " has no jobs\n"));
  return absl::OkStatus();
}

}  // namespace

absl::Status Run(const CtlOptions& options) {
  const auto found = FindLeader(options);
  if (!found.ok()) return found.status();
  CoordinatorClient* const coordinator = found->leader.get();
  absl::Status status;
  switch (options.command) {
    case Command::kStatus:
    case Command::kJobs:
    case Command::kRanks:
      status = AskCoordinator(options, found->others, coordinator);
      break;
    case Command::kTop:
      status = Top(options, coordinator);
      break;
    case Command::kDashboard:
      status = Dashboard(options, coordinator);
      break;
    case Command::kTimeline:
      status = Timeline(options, coordinator);
      break;
    case Command::kEvents:
      status = Events(options, coordinator);
      break;
    case Command::kAbort:
      status = Abort(options, coordinator);
      break;
    case Command::kDrain:
      status = Drain(options, coordinator);
      break;
  }
  if (status.ok() && std::fflush(stdout) != 0) {
    return absl::DataLossError("cannot write to stdout");
  }
  return status;
}

}  // namespace maypole::ctl
