#include "client/engine/result_log.h"

#include <algorithm>
#include <utility>

#include "client/engine/result_fault.h"
#include "common/checksum/checksum.h"

namespace maypole {
namespace {

// The bytes of the result in host memory; kNoResult if there is none.
uint64_t ResultBytes(const Operation& op) {
  const bool here = op.output != nullptr && !op.ran_on_gpu;
  return here ? op.result_bytes() : session::ResultRecord::kNoResult;
}

}  // namespace

session::ResultRecord MakeResultRecord(const Operation& op, bool ok) {
  session::ResultRecord record;
  record.slot = op.slot;
  record.generation = op.generation;
  record.bytes = ok ? ResultBytes(op) : session::ResultRecord::kNoResult;
  if (record.bytes == session::ResultRecord::kNoResult) return record;
  MAYPOLE_RESULT_FAULT(op.name, op.output, record.bytes);
  record.checksum = Checksum(op.output, record.bytes);
  return record;
}

void ResultLog::Add(const session::ResultRecord& record) {
  if (records_.size() < kMaxKeptResultRecords) {
    records_.push_back(record);
  } else {
    ++dropped_;
  }
  waits_.store(true, std::memory_order_relaxed);
  // Not only in SendDue(): operations that end in Start() need no driver
  // thread.
  if (full()) static_cast<void>(SendIfRoom());
}

void ResultLog::SendDue(int64_t now_ns) {
  while (!empty()) {
    if (!since_ns_) since_ns_ = now_ns;
    if (!full() && now_ns - *since_ns_ < kResultPauseNs) return;
    if (!SendIfRoom()) return;
  }
  waits_.store(false, std::memory_order_relaxed);
}

void ResultLog::SendAll() {
  while (!empty()) {
    const session::ResultRecords message = Take();
    shell_->Send(&message, sizeof(message));
  }
}

bool ResultLog::SendIfRoom() {
  const session::ResultRecords message = Take();
  if (shell_->SendIfRoom(&message, sizeof(message))) return true;
  records_.insert(records_.begin(), message.records,
                  message.records + message.count);
  dropped_ += message.dropped;
  return false;
}

session::ResultRecords ResultLog::Take() {
  auto message = session::Make<session::ResultRecords>();
  message.count = static_cast<uint32_t>(
      std::min<size_t>(records_.size(), kMaxResultRecords));
  std::copy_n(records_.begin(), message.count, message.records);
  records_.erase(records_.begin(), records_.begin() + message.count);
  // All dropped records came after those that are kept.
  if (records_.empty()) message.dropped = std::exchange(dropped_, 0);
  since_ns_.reset();
  return message;
}

}  // namespace maypole
