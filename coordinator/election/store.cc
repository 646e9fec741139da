#include "coordinator/election/store.h"

#include "absl/strings/str_cat.h"
#include "common/limits.h"
#include "coordinator/core/text.h"

namespace maypole::coordinator {

std::string HolderValue(const std::string& address,
                        const std::string& incarnation) {
  return absl::StrCat(address, " ", incarnation);
}

std::string AddressOf(const std::string& value) {
  return Cut(value.substr(0, value.find(' ')), 2 * kMaxHostBytes);
}

}  // namespace maypole::coordinator
