#include "worker/network/coordinator_choice.h"

#include "absl/strings/str_cat.h"

namespace maypole::worker {

absl::Status CoordinatorChoice::Join(uint64_t term) {
  if (term < joined_term_) {
    return absl::UnavailableError(absl::StrCat(
        "coordinator ", address(), " has been replaced: it leads in term ",
        term, ", and this node has joined term ", joined_term_,
        " already; trying again until the present leader answers"));
  }
  joined_term_ = term;
  return absl::OkStatus();
}

}  // namespace maypole::worker
