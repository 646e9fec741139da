#include "tests/properties/spec/order.h"

namespace maypole::properties {
namespace {

bool Bound(const OperationSpec& a, const OperationSpec& b) {
  const bool barriers = a.kind == Kind::kBarrier || b.kind == Kind::kBarrier;
  if (a.kind == b.kind && barriers) return true;
  if (a.set != b.set || !a.name.empty() || !b.name.empty()) return false;
  return a.kind == b.kind || barriers;
}

bool Bound(const Program& program, const Unit& a, const Unit& b) {
  if (a.request >= 0 || b.request >= 0) return a.request >= 0 && b.request >= 0;
  for (const size_t i : a.operations) {
    for (const size_t j : b.operations) {
      if (Bound(program.operations[i], program.operations[j])) return true;
    }
  }
  return false;
}

// In the program's order. Now and then a rank submits a group one by one.
std::vector<Unit> UnitsOf(const Program& program, int phase, int rank,
                          Random& random) {
  std::vector<Unit> units;
  int group = -1;
  bool apart = false;
  for (size_t i = 0; i < program.operations.size(); ++i) {
    const OperationSpec& o = program.operations[i];
    if (o.phase != phase || !o.Concerns(rank)) continue;
    if (o.group != group) apart = OneIn(random, 5);
    if (o.group < 0 || o.group != group || apart) units.emplace_back();
    group = o.group;
    units.back().operations.push_back(i);
  }
  for (size_t i = 0; i < program.requests.size(); ++i) {
    if (program.requests[i].phase != phase) continue;
    units.emplace_back();
    units.back().request = static_cast<int>(i);
  }
  return units;
}

}  // namespace

std::vector<Unit> OrderOf(const Program& program, int phase, int rank,
                          Random& random) {
  std::vector<Unit> left = UnitsOf(program, phase, rank, random);
  std::vector<Unit> order;
  while (!left.empty()) {
    std::vector<size_t> free;  // bound to none before it
    for (size_t i = 0; i < left.size(); ++i) {
      bool bound = false;
      for (size_t j = 0; j < i && !bound; ++j) {
        bound = Bound(program, left[j], left[i]);
      }
      if (!bound) free.push_back(i);
    }
    const size_t next = free[Below(random, free.size())];
    order.push_back(std::move(left[next]));
    left.erase(left.begin() + static_cast<std::ptrdiff_t>(next));
  }
  return order;
}

}  // namespace maypole::properties
