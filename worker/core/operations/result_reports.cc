#include "worker/core/operations/result_reports.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/core/limits.h"

namespace maypole::worker {

absl::Status ResultReports::OnRecords(const LocalMember& member,
                                      const session::ResultRecords& message) {
  const auto local = static_cast<uint32_t>(member.local_rank);
  const auto bad = [&](const auto&... what) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", member.rank, " has sent ", what...));
  };
  if (!wanted_ || message.count > kMaxResultRecords) {
    return bad(message.count, " checksums; at most ",
               wanted_ ? kMaxResultRecords : 0, " are allowed");
  }
  results_.CountLost(message.dropped);
  for (uint32_t i = 0; i < message.count; ++i) {
    const session::ResultRecord& r = message.records[i];
    const SlotEntry* entry = slots_.Get(r.slot);
    if (entry == nullptr || entry->set->PlaceOf(local) < 0) {
      return bad("the checksum of a result of slot ", r.slot,
                 ", which is not one of its operations");
    }
    const LocalResults::Key key{r.slot, r.generation};
    // Operations of several nodes are expected from the moment of issue.
    if (!entry->set->negotiated()) {
      ResultOperation operation;
      operation.set = entry->set;
      entry->FillIdentity(&operation.identity);
      operation.generation = r.generation - entry->first;
      results_.Expect(key, std::move(operation));
    }
    results_.Add(key, local, r);
  }
  Send(/*all=*/results_.differs());
  return absl::OkStatus();
}

void ResultReports::OnNoMore(uint32_t local) {
  results_.Forget(local);
  Send(/*all=*/true);
}

absl::Status ResultReports::Expect(const proto::Run& run) {
  if (!wanted_) return absl::OkStatus();
  for (const proto::RunOperation& o : run.operations()) {
    uint32_t slot = 0;
    const SlotEntry* entry = slots_.Resolve(
        o.id(), o.has_identity() ? &o.identity() : nullptr, &slot);
    if (entry == nullptr) {
      return absl::InternalError(
          absl::StrCat("a run of operation ", o.id(), ", which is not known"));
    }
    if (!HasEqualResults(entry->kind)) continue;
    ResultOperation operation;
    operation.set = entry->set;
    entry->FillIdentity(&operation.identity);
    operation.id = o.id();
    operation.generation = o.generation();
    results_.Expect({slot, entry->GenerationOf(o.generation())},
                    std::move(operation));
  }
  return absl::OkStatus();
}

void ResultReports::OnTime(int64_t now_ms) {
  now_ms_ = now_ms;
  Send(/*all=*/false);
}

void ResultReports::Send(bool all) {
  if (output_.quiet() || results_.empty()) return;
  const bool due = all || now_ms_ - sent_ms_ >= kResultsPauseMs ||
                   results_.bytes() >= kMaxResultsBytes;
  if (!due) return;
  sent_ms_ = now_ms_;
  proto::Results taken = *results_.Take();
  proto::ExecutorMessage message;
  message.mutable_results()->set_equal(taken.equal());
  message.mutable_results()->set_unchecked(taken.unchecked());
  size_t bytes = 0;
  // When a rank leaves, many can be decided at once, and messages have a bound.
  for (proto::Result& result : *taken.mutable_results()) {
    if (bytes >= kMaxResultsBytes) {
      output_.Send(std::exchange(message, proto::ExecutorMessage()));
      bytes = 0;
    }
    bytes += result.ByteSizeLong();
    *message.mutable_results()->add_results() = std::move(result);
  }
  output_.Send(std::move(message));
}

}  // namespace maypole::worker
