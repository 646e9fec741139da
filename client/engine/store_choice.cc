#include "client/engine/store_choice.h"

namespace maypole {
namespace {

// Large enough that a change of the machine takes effect after a few trials.
constexpr double kNewWeight = 0.4;
// Streamed must be clearly faster. If both are about equal, ranks would
// disagree at random.
constexpr double kClearly = 0.9;

}  // namespace

StoreChoice::Decision StoreChoice::Next() {
  const uint64_t turn = runs_++ % kPeriod;
  // Not the very first run, which also touches cold pages.
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
