#include "tests/gpu/probe/facts/facts.h"

#include "tests/gpu/probe/facts/exported_memory.h"
#include "tests/gpu/probe/facts/fact_roles.h"
#include "tests/gpu/probe/facts/hand_over.h"
#include "tests/gpu/probe/facts/overlap.h"
#include "tests/gpu/probe/lab/machine.h"

namespace maypole::probe {

const std::vector<Fact>& Facts() {
  static const auto* facts = new std::vector<Fact>{
      {5, "reduction over the buffers of other processes", ReduceOfOthers},
      {8, "many waiting streams", ManyWaits},
      {3, "hand-over between processes", HandOver},
      {1, "kernels of two processes", KernelsOfTwoProcesses},
      {2, "copies beside a kernel of another process", CopiesBesideAKernel},
      {7, "two processes of one GPU in one NCCL communicator", NcclOnOneGpu},
      {4, "exported memory and deaths", ExportedMemory},
      {6, "streams that wait for the dead", WaitForTheDead},
  };
  return *facts;
}

const RoleTable& Roles() {
  static const RoleTable* table = [] {
    auto* roles = new RoleTable;
    AddMachineRoles(roles);
    (*roles)["spinner"] = PlaySpinner;
    (*roles)["copier"] = PlayCopier;
    (*roles)["first"] = PlayFirst;
    (*roles)["second"] = PlaySecond;
    (*roles)["holder"] = PlayHolder;
    (*roles)["observer"] = PlayObserver;
    AddFactRoles(roles);
    return roles;
  }();
  return *table;
}

}  // namespace maypole::probe
