// The description of the machine in the report.
//
// Thread contract: from the thread of the lab.
#ifndef MAYPOLE_TESTS_GPU_PROBE_LAB_MACHINE_H_
#define MAYPOLE_TESTS_GPU_PROBE_LAB_MACHINE_H_

#include "absl/status/status.h"
#include "tests/gpu/probe/lab/lab.h"

namespace maypole::probe {

// Adds kernel, processor, and an actor's description of the device and the
// versions. An error is the reason why there is no device.
absl::Status DescribeMachine(Lab& lab);

// The role "describe": opens the device, sends "machine KEY=VALUE\n..." and
// waits for the end of its channel.
void AddMachineRoles(RoleTable* roles);

}  // namespace maypole::probe

#endif  // MAYPOLE_TESTS_GPU_PROBE_LAB_MACHINE_H_
