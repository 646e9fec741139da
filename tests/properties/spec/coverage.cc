#include "tests/properties/spec/coverage.h"

#include <string>

#include "tests/properties/spec/draw.h"

namespace maypole::properties {
namespace {

constexpr const char* kFeatureNames[] = {
    "unnamed",    "grouped",     "set_of_one",  "set_in_node",
    "set_across", "with_joined", "no_elements", "scalar",
    "arena",      "mismatch",    "root_joined"};
constexpr const char* kEventNames[] = {
    "programs",   "operations", "epochs", "sets_made", "sets_removed",
    "set_errors", "joins",      "groups", "refusals"};

// It must be covered.
bool Counts(Kind kind, DType dtype, Op op) {
  if (kind == Kind::kBarrier || kind == Kind::kJoin) return false;
  if (!Reduces(kind)) return op == Op::kSum;  // it has none
  Signature s;
  s.kind = kind;
  s.dtype = dtype;
  s.op = op;
  return Exists(s);
}

int FirstConcerned(const OperationSpec& spec) {
  for (const int rank : spec.ranks) {
    if (spec.Concerns(rank)) return rank;
  }
  return -1;
}

}  // namespace

void Coverage::Count(const OperationSpec& spec, int rank) {
  if (FirstConcerned(spec) != rank) return;
  Count(Event::kOperations);
  const int kind = static_cast<int>(spec.kind);
  const auto note = [&](Feature f, bool yes) {
    if (yes) features_[kind][f] += 1;
  };
  note(kMismatch, spec.odd_one >= 0);
  note(kRootJoined, spec.odd_one < 0 && spec.MustFail());
  if (spec.MustFail()) return;
  const Op op = Reduces(spec.kind) ? spec.op : Op::kSum;
  cells_[kind][static_cast<int>(spec.dtype)][static_cast<int>(op)] += 1;
  bool empty = true;
  for (const int r : spec.ranks) empty = empty && spec.Bytes(r) == 0;
  note(kUnnamed, spec.name.empty());
  note(kGrouped, spec.group >= 0);
  note(kSetOfOne, spec.set != 0 && spec.ranks.size() == 1);
  note(kSetInNode,
       spec.set != 0 && spec.ranks.size() > 1 && spec.within_node());
  note(kSetAcross, spec.set != 0 && !spec.within_node());
  note(kWithJoined, spec.aside != 0);
  note(kNoElements, empty && spec.kind != Kind::kBarrier);
  note(kScalar, spec.shape.front().empty());
  note(kArena, spec.arena);
}

void Coverage::Print(std::FILE* to) const {
  for (int k = 0; k < kKinds; ++k) {
    const auto kind = static_cast<Kind>(k);
    const std::string name(Name(kind));
    for (int o = 0; o < kOps; ++o) {
      for (int d = 0; d < kDTypes; ++d) {
        const auto op = static_cast<Op>(o);
        const auto dtype = static_cast<DType>(d);
        if (!Counts(kind, dtype, op)) continue;
        std::fprintf(to, "count %s %s %s %ld\n", name.c_str(),
                     std::string(Name(dtype)).c_str(),
                     Reduces(kind) ? std::string(Name(op)).c_str() : "-",
                     cells_[k][d][o].load());
      }
    }
    for (int f = 0; f < kFeatures; ++f) {
      std::fprintf(to, "feature %s %s %ld\n", name.c_str(), kFeatureNames[f],
                   features_[k][f].load());
    }
  }
  for (int e = 0; e < static_cast<int>(Event::kEvents); ++e) {
    std::fprintf(to, "event %s %ld\n", kEventNames[e], events_[e].load());
  }
}

}  // namespace maypole::properties
