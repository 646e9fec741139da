#include "common/wire/versions.h"

#include <algorithm>

namespace maypole {

std::string VersionsText(VersionRange versions) {
  if (versions.oldest == versions.newest) {
    return "protocol version " + std::to_string(versions.oldest);
  }
  return "protocol versions " + std::to_string(versions.oldest) + " to " +
         std::to_string(versions.newest);
}

Status ChooseVersion(const std::vector<Speaker>& speakers, uint32_t* version) {
  const auto speaks = [](const Speaker& s) {
    return s.name + " speaks " + VersionsText(s.versions);
  };
  for (const Speaker& s : speakers) {
    if (s.versions.oldest <= s.versions.newest) continue;
    return Status(Code::kInvalidArgument,
                  speaks(s) + "; the oldest must not be after the newest");
  }
  const Speaker& least = *std::min_element(
      speakers.begin(), speakers.end(), [](const Speaker& a, const Speaker& b) {
        return a.versions.newest < b.versions.newest;
      });
  for (const Speaker& s : speakers) {
    if (s.versions.oldest <= least.versions.newest) continue;
    return Status(
        Code::kFailedPrecondition,
        speaks(least) + ", but " + speaks(s) + "; upgrade " + least.name);
  }
  *version = least.versions.newest;
  return Status();
}

}  // namespace maypole
