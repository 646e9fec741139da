// The JSON that the dashboard's page receives once a second. It is shorter than
// the status itself, because a rank is five numbers here: a job on 1,024 nodes
// with 8 ranks each takes about 300 kB.
//
//   {"version", "uptime",
//    "jobs": [{"job", "state", "seconds", "epoch", "size", "elastic", "tier",
//              "left": why it is not frozen,
//              "stats": {"steps", "operations", "bytes", "sent", "waiting",
//                        "perRun": operations in a run, 0: unknown}
//                       or null: there are none (yet),
//              "timeline": {"state", "path", "rank", "host", "error"} or null,
//              "pending": [{"what", "missing": [node], "more": other nodes}],
//              "pendingCount",
//              "nodes": [{"node", "host", "connected", "sent", "received",
//                         "gpus": [[uuid, used, total bytes, busy percent or
//                         null]], "ranks": [[rank, state, late, waiting,
//                         pid]]}]}],
//    "events": [{"number", "time", "level", "job", "kind", "text"}]}
//
// Of a rank: `state` is 0 running, 1 waiting, 2 late, 3 left; `late` and
// `waiting` are percent, or -1 if there are no figures.
//
// Thread contract: pure.
#ifndef MAYPOLE_COORDINATOR_DASHBOARD_PAGE_DATA_H_
#define MAYPOLE_COORDINATOR_DASHBOARD_PAGE_DATA_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "coordinator/core/admin/events.h"
#include "proto/admin.pb.h"

namespace maypole::coordinator {

// {"error": text}
std::string ErrorData(absl::string_view text);
std::string PageData(const proto::StatusReply& status,
                     const std::vector<EventRing::Event>& events);

}  // namespace maypole::coordinator

#endif  // MAYPOLE_COORDINATOR_DASHBOARD_PAGE_DATA_H_
