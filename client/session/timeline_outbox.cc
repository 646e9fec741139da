#include "client/session/timeline_outbox.h"

#include <algorithm>
#include <utility>

namespace maypole {
namespace {

// The milliseconds until a message that did not fit the socket is retried.
constexpr int kAgainMs = 2;

}  // namespace

TimelineRecord RecordOf(const Operation& op, int rank) {
  TimelineRecord r;
  r.what = TimelineRecord::What::kOperation;
  r.kind = op.signature.kind;
  r.failed = !op.status.ok();
  r.rank = rank;
  r.process_set = op.signature.process_set;
  r.members = static_cast<uint32_t>(op.set->ranks.size());
  r.number = op.moments.number;
  r.bytes = op.signature.Bytes();
  r.submitted = op.moments.submitted;
  r.arrived = op.moments.arrived;
  r.begun = op.moments.begun;
  r.ended = op.moments.ended;
  r.name = op.name;
  return r;
}

void TimelineOutbox::Turn(uint32_t number) {
  if (number_ == number) return;
  number_ = number;
  buffer_.clear();
  dropped_ = 0;
}

void TimelineOutbox::Add(uint32_t word, const TimelineRecord& record) {
  std::lock_guard lock(mutex_);
  Turn(word / 2);
  if (buffer_.size() + PackedBytes(record) > kMaxBytes) {
    ++dropped_;
    return;
  }
  Append(record, &buffer_);
}

int TimelineOutbox::Step(uint32_t word, uint32_t pending, int64_t now_ms,
                         const Send& send, bool leaving) {
  const uint32_t number = word / 2;
  const bool on = word % 2 == 1;
  if (number == last_sent_) return kNever;
  if (!on && off_since_ms_ == 0) off_since_ms_ = next_ms_ = now_ms;
  if (on) off_since_ms_ = 0;
  if (now_ms < next_ms_ && !leaving) {
    return static_cast<int>(next_ms_ - now_ms);
  }
  if (sending_.empty()) {
    std::lock_guard lock(mutex_);
    Turn(number);
    std::swap(sending_, buffer_);
    sending_number_ = number;
    sending_dropped_ += std::exchange(dropped_, 0);
  }
  const int again = on ? kPeriodMs : kAgainMs;
  next_ms_ = now_ms + kAgainMs;
  if (!SendAll(send)) return kAgainMs;
  next_ms_ = now_ms + again;
  const bool late = pending > 0 && now_ms < off_since_ms_ + kLateMs;
  if ((on && !leaving) || (late && !leaving)) return again;
  {
    std::lock_guard lock(mutex_);
    if (!buffer_.empty()) return 0;  // added meanwhile
  }
  if (!SendOne({}, /*last=*/true, send).ok()) return kAgainMs;
  last_sent_ = number;
  off_since_ms_ = 0;
  return kNever;
}

bool TimelineOutbox::SendAll(const Send& send) {
  constexpr size_t kMost = sizeof(session::TimelineRecords::data);
  while (sent_ < sending_.size()) {
    const std::string_view rest = std::string_view(sending_).substr(sent_);
    const std::string_view next = rest.substr(0, WholeRecords(rest, kMost));
    if (!SendOne(next, /*last=*/false, send).ok()) return false;
    sent_ += next.size();
  }
  sending_.clear();
  sent_ = 0;
  return true;
}

Status TimelineOutbox::SendOne(std::string_view records, bool last,
                               const Send& send) {
  auto m = session::Make<session::TimelineRecords>();
  m.number = sending_number_;
  m.last = last ? 1 : 0;
  m.dropped = sending_dropped_;
  m.bytes = static_cast<uint32_t>(records.size());
  std::copy(records.begin(), records.end(), m.data);  // it may be empty
  Status s = send(&m, session::Trim(&m));
  // If the executor has gone, the records are not needed.
  if (s.code() == Code::kResourceExhausted) return s;
  sending_dropped_ = 0;
  return Status();
}

}  // namespace maypole
