// Descriptions of a job that maypolectl and the dashboard share.
//
// Thread contract: functions of values.
#ifndef MAYPOLE_COMMON_JOB_STATUS_JOB_STATUS_H_
#define MAYPOLE_COMMON_JOB_STATUS_JOB_STATUS_H_

#include <string>
#include <vector>

#include "proto/admin.pb.h"

namespace maypole {

// The job's nodes, ordered by their smallest rank. They point into `job`.
std::vector<const proto::NodeStatus*> ByRank(const proto::JobStatus& job);

// "allreduce 'x' of process set 2". The name may have any bytes.
std::string OperationText(const proto::PendingOperation& op);

}  // namespace maypole

#endif  // MAYPOLE_COMMON_JOB_STATUS_JOB_STATUS_H_
