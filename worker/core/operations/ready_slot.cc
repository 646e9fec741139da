#include "worker/core/operations/ready_slot.h"

#include <span>

#include "absl/strings/str_cat.h"

namespace maypole::worker {
namespace {

// "" if it can be.
std::string WhatIsWrong(const Signature& s, const SlotEntry& entry) {
  const Status checked = CheckSignature(entry.name, s);
  if (!checked.ok()) return checked.message();
  if (s.kind != entry.kind || s.process_set != entry.set->id) {
    return "another kind or process set";
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
      return "splits that are negative or more than it has rows";
    }
    left -= rows;
  }
  return left == 0 ? "" : "splits that leave rows over";
}

}  // namespace

absl::Status CheckReadySlot(const ReadySlot& news, const SlotEntry& entry,
                            const std::string& node_text) {
  const std::vector<int>& here = entry.set->here;
  const size_t n = entry.set->ranks.size();
  const bool splits = entry.kind == Kind::kAlltoall;
  if (news.signatures.size() != here.size() ||
      news.splits.size() != (splits ? here.size() * n : 0)) {
    return absl::InternalError("signatures of the wrong number of ranks");
  }
  for (size_t i = 0; i < here.size(); ++i) {
    const Signature& s = news.signatures[i];
    std::string wrong = WhatIsWrong(s, entry);
    if (wrong.empty() && splits) {
      wrong = WhatIsWrong(s, std::span(news.splits).subspan(i * n, n));
    }
    if (wrong.empty()) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", here[i], " (", node_text, ") has submitted ",
                     std::string(Name(entry.kind)), " '", entry.name,
                     "' with a signature that cannot be: ", wrong));
  }
  return absl::OkStatus();
}

}  // namespace maypole::worker
