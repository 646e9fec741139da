// The roles of facts 5 to 8, and their names in Roles(). The handlers of each
// role document its commands and answers.
//
// Thread contract: a role is the main thread of its process.
#ifndef MAYPOLE_TESTS_GPU_PROBE_FACTS_FACT_ROLES_H_
#define MAYPOLE_TESTS_GPU_PROBE_FACTS_FACT_ROLES_H_

#include "absl/status/status.h"
#include "tests/gpu/probe/lab/lab.h"

namespace maypole::probe {

// Fact 5: an owner of memory; the process that reduces it.
absl::Status PlayLender(Stage& stage);
absl::Status PlayReducer(Stage& stage);
// Fact 6: a process whose stream waits for another process; the process that
// should write the flag and is killed; one that is killed while its own stream
// waits.
absl::Status PlaySurvivor(Stage& stage);
absl::Status PlayWriter(Stage& stage);
absl::Status PlayOwnWaiter(Stage& stage);
// Fact 7: a rank.
absl::Status PlayNcclRank(Stage& stage);
// Fact 8: waiting and other streams; a process that calls CUDA while a stream
// waits.
absl::Status PlayCrowd(Stage& stage);
absl::Status PlayCaller(Stage& stage);

inline void AddFactRoles(RoleTable* roles) {
  (*roles)["lender"] = PlayLender;
  (*roles)["reducer"] = PlayReducer;
  (*roles)["survivor"] = PlaySurvivor;
  (*roles)["writer"] = PlayWriter;
  (*roles)["own waiter"] = PlayOwnWaiter;
  (*roles)["nccl rank"] = PlayNcclRank;
  (*roles)["crowd"] = PlayCrowd;
  (*roles)["caller"] = PlayCaller;
}

}  // namespace maypole::probe

#endif  // MAYPOLE_TESTS_GPU_PROBE_FACTS_FACT_ROLES_H_
