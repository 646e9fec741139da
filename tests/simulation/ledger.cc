#include "tests/simulation/ledger.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace maypole::simulation {
namespace {

// How long after a fault errors may still be caused by it: longer than all
// timeouts together.
constexpr int64_t kBlameFor = 40 * kSecond;

// The memory of the operation's result.
std::vector<std::byte> ResultMemory(const Record& r) {
  if (Gathers(r.planned->kind())) {
    const std::byte* p = r.operation->gathered.get();
    if (p == nullptr) return {};  // the size may be known
    return {p, p + r.operation->gathered_bytes};
  }
  return r.operation->in_place() ? r.input : r.output;
}

}  // namespace

EpochRecord* Ledger::Find(const std::string& key) {
  const auto it = epochs_.find(key);
  return it == epochs_.end() ? nullptr : it->second.get();
}

EpochRecord* Ledger::Begin(const std::string& key, Program program,
                           std::vector<int> node_of_rank) {
  auto& epoch = epochs_[key];
  epoch = std::make_unique<EpochRecord>();
  epoch->key = key;
  epoch->program = std::move(program);
  epoch->begun_at = stage_->scheduler.now();
  const size_t size = node_of_rank.size();
  epoch->node_of_rank = std::move(node_of_rank);
  epoch->records.resize(size);
  for (auto& records : epoch->records) {
    records.resize(epoch->program.operations.size());
  }
  epoch->set_ids.assign(epoch->program.sets.size(), -1);
  epoch->last_ranks.assign(epoch->program.joins, -1);
  if (epoch->program.deadlocks) Blame({"deadlock: "});
  epoch->over.assign(size, false);
  epoch->died.assign(size, false);
  epoch->finished.assign(size, false);
  return epoch.get();
}

void Ledger::Blame(std::vector<std::string> words) {
  causes_.push_back({stage_->scheduler.now(), std::move(words)});
}

void Ledger::Disturb() {
  for (const auto& [key, epoch] : epochs_) {
    if (!epoch->closed) epoch->program.calm = false;
  }
}

bool Ledger::IsBlamed(const std::string& text) const {
  const int64_t now = stage_->scheduler.now();
  return std::any_of(causes_.begin(), causes_.end(), [&](const Cause& cause) {
    if (now - cause.time > kBlameFor) return false;
    return std::any_of(
        cause.words.begin(), cause.words.end(),
        [&](const std::string& w) { return absl::StrContains(text, w); });
  });
}

std::string Ledger::Who(const EpochRecord& epoch, const Record& r) const {
  return absl::StrCat("epoch ", epoch.key, ", rank ", r.rank, ", ",
                      r.planned->Text());
}

// --- When an operation ends --------------------------------------------------

void Ledger::OnEnd(EpochRecord* epoch, Record* r) {
  const Status& of_operation = r->operation->status;
  const Status& status = of_operation.ok() ? r->fetched : of_operation;
  stage_->Trace("rank ", r->rank, ": ", r->planned->Text(),
                " ends: ", status.ok() ? "well" : status.message());
  if (r->done()) {
    stage_->Found(Who(*epoch, *r), ": ends twice");
    return;
  }
  r->done_at = stage_->scheduler.now();
  r->status = status;
  r->at_end = ResultMemory(*r);
  if (r->status.ok()) {
    ++stage_->counts.ended_well;
    CheckGood(*r);
  } else {
    ++stage_->counts.ended_badly;
    if (!r->left) CheckBad(*epoch, *r);
  }
  const bool overwritten = r->operation->in_place();
  // An operation that succeeds has all its input.
  const bool written = r->late_input.empty() || r->status.ok();
  if (!overwritten && written && r->input != InputOf(*r->planned, r->rank)) {
    stage_->Found(Who(*epoch, *r), ": its input has changed");
  }
}

void Ledger::CheckGood(const Record& r) {
  const std::string who =
      absl::StrCat("rank ", r.rank, ", ", r.planned->Text());
  if (!r.planned->matches) {
    stage_->Found(who, ": ends well, though the ranks submit different things");
  } else if (r.at_end != ResultOf(*r.planned, r.rank)) {
    stage_->Found(who, ": a wrong result, and no error");
  }
  if (r.planned->kind() == Kind::kAlltoall &&
      r.operation->received != ReceivedOf(*r.planned, r.rank)) {
    stage_->Found(who, ": wrong received splits");
  }
}

void Ledger::CheckBad(const EpochRecord& epoch, const Record& r) {
  const std::string& text = r.status.message();
  if (!absl::StrContains(text, std::string(Name(r.planned->kind()))) ||
      !absl::StrContains(text, r.operation->name)) {
    stage_->Found(Who(epoch, r),
                  ": an error that does not name the operation: ", text);
  }
  if (!r.mismatch()) {
    CheckEnd(epoch, Who(epoch, r), text);
    CheckIsNeeded(epoch, r);
    return;
  }
  if (r.planned->matches) {
    stage_->Found(Who(epoch, r), ": a mismatch where there is none: ", text);
  }
  const bool says_what = absl::StrContains(text, "mismatched") ||
                         absl::StrContains(text, "has joined");
  if (!says_what || !absl::StrContains(text, "rank")) {
    stage_->Found(Who(epoch, r), ": a mismatch without names: ", text);
  }
  // No data has moved.
  if (r.input != InputOf(*r.planned, r.rank)) {
    stage_->Found(Who(epoch, r), ": a mismatch, and its tensor has changed");
  }
  const auto untouched = [](std::byte b) { return b == std::byte{0xab}; };
  if (!std::all_of(r.output.begin(), r.output.end(), untouched)) {
    stage_->Found(Who(epoch, r), ": a mismatch, and its output was written");
  }
}

void Ledger::CheckEnd(const EpochRecord& epoch, const std::string& who,
                      const std::string& text) {
  if (epoch.program.calm) {
    stage_->Found(who, ": fails though nothing has happened: ", text);
  } else if (!IsBlamed(text)) {
    stage_->Found(who, ": an error that names no fault: ", text);
  }
}

// A rank that has left makes only operations of its process sets fail.
void Ledger::CheckIsNeeded(const EpochRecord& epoch, const Record& r) {
  const std::string& text = r.status.message();
  if (!absl::StrContains(text, "has shut down") ||
      absl::StrContains(text, "pending")) {
    return;
  }
  for (const int rank : r.planned->ranks) {
    if (absl::StrContains(text, absl::StrCat("rank ", rank, " "))) return;
  }
  stage_->Found(Who(epoch, r),
                ": fails due to a rank that it does not need: ", text);
}

void Ledger::CheckAnswer(const EpochRecord& epoch, const std::string& who,
                         int64_t answer, int64_t* before) {
  if (*before >= 0 && *before != answer) {
    stage_->Found("epoch ", epoch.key, ", ", who, ": is answered ", answer,
                  ", another rank was answered ", *before);
  }
  *before = answer;
}

void Ledger::OnSetAnswer(EpochRecord* epoch, int rank, size_t request,
                         const Operation& op) {
  const SetPlan& plan = epoch->program.sets[request];
  const std::string who = absl::StrCat("epoch ", epoch->key, ", rank ", rank,
                                       ", process set request ", request + 1);
  const std::string& text = op.status.message();
  stage_->Trace(who, ": ", op.status.ok() ? absl::StrCat(op.answer) : text);
  if (op.status.ok()) {
    if (plan.end != SetPlan::End::kDone) {
      stage_->Found(who, ": done, though it cannot be");
    }
    CheckAnswer(*epoch, who, op.answer, &epoch->set_ids[request]);
    return;
  }
  if (plan.end == SetPlan::End::kDiffers &&
      op.status.code() == Code::kFailedPrecondition) {
    if (!absl::StrContains(text, "rank")) {
      stage_->Found(who, ": an error that names no rank: ", text);
    }
    return;
  }
  if (plan.end == SetPlan::End::kTwin &&
      op.status.code() == Code::kInvalidArgument) {
    return;
  }
  CheckEnd(*epoch, who, text);
}

void Ledger::OnJoinAnswer(EpochRecord* epoch, int rank, size_t join,
                          const Operation& op) {
  const std::string who =
      absl::StrCat("epoch ", epoch->key, ", rank ", rank, ", join ", join + 1);
  stage_->Trace(who, ": ",
                op.status.ok() ? absl::StrCat(op.answer) : op.status.message());
  if (op.status.ok()) {
    CheckAnswer(*epoch, who, op.answer, &epoch->last_ranks[join]);
  } else {
    CheckEnd(*epoch, who, op.status.message());
  }
}

void Ledger::OnRefused(const EpochRecord& epoch, const Planned& op,
                       const Status& status) {
  if (epoch.program.calm || !IsBlamed(status.message())) {
    stage_->Found("epoch ", epoch.key, ", ", op.Text(),
                  " is refused: ", status.message());
  }
}

void Ledger::OnError(const EpochRecord& epoch, int rank,
                     const std::string& name, const Status& status) {
  CheckEnd(epoch,
           absl::StrCat("epoch ", epoch.key, ", rank ", rank, ", ", name),
           status.message());
}

void Ledger::CheckEnded(const EpochRecord& epoch, int64_t since,
                        const std::string& why) {
  for (size_t rank = 0; rank < epoch.records.size(); ++rank) {
    if (epoch.over[rank]) continue;
    for (const auto& r : epoch.records[rank]) {
      if (r == nullptr || r->done() || r->submitted_at > since) continue;
      stage_->Found(Who(epoch, *r), " is still pending long after ", why);
      return;
    }
  }
}

// --- When an epoch is over ---------------------------------------------------

void Ledger::OnOver(EpochRecord* epoch, int rank, bool died, bool finished) {
  const auto i = static_cast<size_t>(rank);
  epoch->over[i] = true;
  epoch->died[i] = died;
  epoch->finished[i] = finished;
  if (std::find(epoch->over.begin(), epoch->over.end(), false) ==
      epoch->over.end()) {
    Close(epoch);
  }
}

void Ledger::Close(EpochRecord* epoch) {
  if (std::exchange(epoch->closed, true)) return;
  const Program& program = epoch->program;
  for (size_t op = 0; op < program.operations.size(); ++op) {
    CompareOnNode(*epoch, op);
    for (size_t rank = 0; rank < epoch->records.size(); ++rank) {
      const Record* r = epoch->records[rank][op].get();
      if (r != nullptr && r->done()) CheckMemory(*r);
      const bool has_part =
          program.operations[op].HasPart(static_cast<int>(rank));
      if (program.calm && op < epoch->ends_at && has_part &&
          (r == nullptr || !r->done())) {
        stage_->Found("epoch ", epoch->key, ", rank ", rank, ", ",
                      program.operations[op].Text(),
                      " has not ended, though nothing has happened");
      }
      if (r == nullptr || !r->done() || r->status.ok()) continue;
      if (r->mismatch()) {
        ++stage_->counts.mismatches;
      }
    }
  }
}

void Ledger::CompareOnNode(const EpochRecord& epoch, size_t op) {
  std::map<int, const Record*> first;
  for (size_t rank = 0; rank < epoch.records.size(); ++rank) {
    const Record* r = epoch.records[rank][op].get();
    if (r == nullptr || !r->done() || r->left) continue;
    const Record*& other = first[epoch.node_of_rank[rank]];
    if (other == nullptr) {
      other = r;
      continue;
    }
    // A late rank may report the epoch's end, or another rank's departure,
    // instead of the reason why its operation failed (docs/board.md).
    const auto tells_of_end = [this](const Record& record) {
      const Code code = record.status.code();
      return code == Code::kAborted ||
             (code == Code::kFailedPrecondition && !record.mismatch()) ||
             (code == Code::kInternal && IsBlamed(record.status.message()));
    };
    const bool aborted = tells_of_end(*r) || tells_of_end(*other);
    const bool both_fail = !r->status.ok() && !other->status.ok();
    if (aborted && both_fail) continue;
    // A rank's own GPU has ended its part, but the epoch has ended for others.
    const bool by_rank = (r->by_rank && r->status.ok()) ||
                         (other->by_rank && other->status.ok());
    const bool mismatch = r->mismatch() || other->mismatch();
    if (by_rank && !mismatch) continue;
    if (r->status.code() != other->status.code()) {
      stage_->Found(Who(epoch, *r), ": ends with '", r->status.message(),
                    "' on this rank and with '", other->status.message(),
                    "' on rank ", other->rank);
    } else if (r->mismatch() &&
               r->status.message() != other->status.message()) {
      stage_->Found(Who(epoch, *r), ": two texts on one node: '",
                    r->status.message(), "' and '", other->status.message(),
                    "' on rank ", other->rank);
    }
  }
}

void Ledger::CheckMemory(const Record& r) {
  if (ResultMemory(r) != r.at_end) {
    stage_->Found("rank ", r.rank, ", ", r.planned->Text(),
                  ": its memory was written after it had ended");
  }
}

std::string Ledger::PendingText() const {
  std::string out;
  for (const auto& [key, epoch] : epochs_) {
    if (epoch->closed) continue;
    for (size_t rank = 0; rank < epoch->records.size(); ++rank) {
      if (epoch->over[rank]) {
        absl::StrAppend(&out, "\n  epoch ", key, ", rank ", rank,
                        epoch->died[rank] ? " has died" : " has left");
        continue;
      }
      absl::StrAppend(&out, "\n  epoch ", key, ", rank ", rank,
                      " has pending:");
      for (const auto& r : epoch->records[rank]) {
        if (r != nullptr && !r->done()) {
          absl::StrAppend(&out, " ", r->planned->Text());
        }
      }
    }
  }
  return out;
}

}  // namespace maypole::simulation
