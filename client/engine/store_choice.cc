#include "client/engine/store_choice.h"

namespace maypole {
namespace {

constexpr double kNewWeight = 0.4;  // a change of the machine shows in a few
// Streamed must be clearly better: two alike would make ranks disagree.
constexpr double kClearly = 0.9;

}  // namespace

StoreChoice::Decision StoreChoice::Next() {
  const uint64_t turn = runs_++ % kPeriod;
  // Not the very first: it also meets cold pages.
  if (turn == 1) return {Store::kCached, true};
  if (turn == 2) return {Store::kStreamed, true};
  const bool streamed = streamed_ > 0 && streamed_ < kClearly * cached_;
  return {streamed ? Store::kStreamed : Store::kCached, false};
}

void StoreChoice::Record(Store store, double nanoseconds_per_byte) {
  double& average = store == Store::kCached ? cached_ : streamed_;
  average = average == 0
                ? nanoseconds_per_byte
                : average + kNewWeight * (nanoseconds_per_byte - average);
}

}  // namespace maypole
