#include "common/name.h"

#include <algorithm>
#include <string>

namespace maypole {
namespace {

constexpr size_t kShown = 64;  // bytes of a text in a message

bool IsNameCharacter(char c) {
  return c > ' ' && c < 0x7f && c != '\'' && c != '"' && c != '/' && c != '\\';
}

}  // namespace

std::string Quoted(std::string_view text) {
  std::string out(text.substr(0, kShown));
  std::replace_if(
      out.begin(), out.end(), [](char c) { return c < ' ' || c >= 0x7f; }, '?');
  return "'" + out + (text.size() > kShown ? "...'" : "'");
}

bool HasNameCharacters(std::string_view text) {
  return std::all_of(text.begin(), text.end(), IsNameCharacter);
}

Status CheckName(std::string_view what, std::string_view name,
                 size_t max_bytes) {
  const bool directory = name == "." || name == "..";
  if (!name.empty() && name.size() <= max_bytes && HasNameCharacters(name) &&
      !directory) {
    return Status();
  }
  std::string text = std::string(what) + " must be 1 to " +
                     std::to_string(max_bytes) +
                     " printable ASCII characters without spaces, quotes, "
                     "slashes and backslashes";
  if (directory) text += " (and neither '.' nor '..')";
  text += ", not " + Quoted(name);
  if (name.size() > max_bytes) {
    text += " (" + std::to_string(name.size()) + " characters)";
  }
  return Status(Code::kInvalidArgument, std::move(text));
}

}  // namespace maypole
