#include "worker/core/operations/ready_slot.h"

#include <span>

#include "absl/strings/str_cat.h"

namespace maypole::worker {
namespace {

// Returns "" if the signature is valid for the slot.
std::string WhatIsWrong(const Signature& s, const SlotEntry& entry) {
  const Status checked = CheckSignature(entry.name, s);
  if (!checked.ok()) return checked.message();
  if (s.kind != entry.kind || s.process_set != entry.set->id) {
    return "its kind or process set is not that of the name";
  }
  if (s.kind == Kind::kBroadcast && !entry.set->Has(s.root)) {
    return absl::StrCat("its root, rank ", s.root,
                        ", is not in the process set");
  }
  return "";
}

std::string WhatIsWrong(const Signature& s, std::span<const int64_t> splits) {
  int64_t left = s.shape[0];
  for (const int64_t rows : splits) {
    if (rows < 0 || rows > left) {
      return "its splits are negative or exceed its rows";
    }
    left -= rows;
  }
  return left == 0 ? "" : "its splits do not cover all its rows";
}

}  // namespace

absl::Status CheckReadySlot(const ReadySlot& ready, const SlotEntry& entry,
                            const std::string& node_text) {
  const std::vector<int>& here = entry.set->here;
  const size_t n = entry.set->ranks.size();
  const bool splits = entry.kind == Kind::kAlltoall;
  if (ready.signatures.size() != here.size() ||
      ready.splits.size() != (splits ? here.size() * n : 0)) {
    return absl::InternalError("wrong number of signatures or splits");
  }
  for (size_t i = 0; i < here.size(); ++i) {
    const Signature& s = ready.signatures[i];
    std::string wrong = WhatIsWrong(s, entry);
    if (wrong.empty() && splits) {
      wrong = WhatIsWrong(s, std::span(ready.splits).subspan(i * n, n));
    }
    if (wrong.empty()) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", here[i], " (", node_text, ") has submitted ",
                     std::string(Name(entry.kind)), " '", entry.name,
                     "' with an invalid signature: ", wrong));
  }
  return absl::OkStatus();
}

absl::Status SubmittedTooEarly(const ReadySlot& ready, const SlotEntry& entry,
                               const std::string& node_text) {
  return absl::InvalidArgumentError(absl::StrCat(
      entry.set->RanksText(), ": those of ", node_text, " have submitted ",
      entry.Text(), " (call ", ready.generation - entry.first, ") before call ",
      entry.reported - entry.first,
      " had ended; has a process overwritten its shared memory?"));
}

}  // namespace maypole::worker
