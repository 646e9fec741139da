#include "tests/gpu/probe/facts.h"

#include "tests/gpu/probe/machine.h"

namespace maypole::probe {

const std::vector<Fact>& Facts() {
  static const auto* facts = new std::vector<Fact>{};
  return *facts;
}

const RoleTable& Roles() {
  static const RoleTable* table = [] {
    auto* roles = new RoleTable;
    AddMachineRoles(roles);
    return roles;
  }();
  return *table;
}

}  // namespace maypole::probe
