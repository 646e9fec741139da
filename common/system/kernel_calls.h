// CheckKernelCalls: the system calls without which no job can run.
//
// Purpose: on a kernel that is too old, or in a sandbox that refuses such a
// call, an agent or maypolerun reports it at its start, not in the middle of a
// job. Maypole has fallbacks for other calls: see docs/install.md.
//
//   if (Status s = CheckKernelCalls(); !s.ok()) return s;
//
// Thread contract: any thread.
#ifndef MAYPOLE_COMMON_SYSTEM_KERNEL_CALLS_H_
#define MAYPOLE_COMMON_SYSTEM_KERNEL_CALLS_H_

#include "common/status.h"

namespace maypole {

// kFailedPrecondition names the call that is refused, the kernel, and what to
// do. Other errors (no descriptors are left) are not reported: the call that
// meets them later says more.
Status CheckKernelCalls();

}  // namespace maypole

#endif  // MAYPOLE_COMMON_SYSTEM_KERNEL_CALLS_H_
