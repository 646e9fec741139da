#include "worker/core/timeline/clock_offset.h"

namespace maypole::worker {

bool ClockOffset::Due(int64_t now) const {
  if (asked_) return now - asked_at_ >= kPatienceNs;
  return !ready() || now - answered_at_ >= kPeriodNs;
}

int64_t ClockOffset::Query(int64_t now) {
  asked_ = true;
  asked_at_ = now;
  return now;
}

void ClockOffset::OnReply(int64_t sent, int64_t coordinator, int64_t now) {
  if (!asked_ || sent != asked_at_ || now < sent) return;
  asked_ = false;
  answered_at_ = now;
  const int64_t half_trip = (now - sent) / 2;
  const bool better = answers_ == 0 || half_trip <= Uncertainty(now);
  if (answers_ < kFirst) ++answers_;
  if (!better) return;
  ns_ = coordinator - (sent + half_trip);
  half_trip_ = half_trip;
  measured_ = now;
}

}  // namespace maypole::worker
