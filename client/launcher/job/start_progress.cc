#include "client/launcher/job/start_progress.h"

#include <algorithm>
#include <utility>

namespace maypole::launcher {
namespace {

constexpr size_t kMaxNames = 4;
constexpr int kMaxGroups = 6;

}  // namespace

std::string RankGroups(const std::vector<int>& ranks) {
  std::string text;
  int groups = 0;
  for (size_t i = 0; i < ranks.size();) {
    if (groups++ == kMaxGroups) return text + ",...";
    size_t last = i;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) {
      ++last;
    }
    text += (text.empty() ? "" : ",") + std::to_string(ranks[i]);
    if (last > i) text += "-" + std::to_string(ranks[last]);
    i = last + 1;
  }
  return text;
}

std::string FirstOf(const std::vector<std::string>& names) {
  std::string text;
  for (size_t i = 0; i < names.size(); ++i) {
    if (i == kMaxNames) {
      return text + " and " + std::to_string(names.size() - i) + " more";
    }
    text += (i == 0 ? "" : ", ") + names[i];
  }
  return text;
}

void StartProgress::Begin(Time now) {
  if (!due_) due_ = now + kStartPatience;
}

std::optional<LinePiece> StartProgress::Take(const std::string& text,
                                             Time now) {
  due_ = now + (width_ > 0 ? kStartRewrite : kStartRepeat);
  if (text == last_) return std::nullopt;
  LinePiece piece{.text = Cut(text),
                  .end = width_ > 0 ? LineEnd::kReturn : LineEnd::kNewline};
  last_ = text;
  return piece;
}

std::optional<LinePiece> StartProgress::End(const std::string& text) {
  due_ = std::nullopt;
  LinePiece piece{.text = Cut(text), .end = LineEnd::kNewline};
  if (std::exchange(last_, "").empty() || text.empty()) return std::nullopt;
  return piece;
}

// On a terminal a line must fit, so that it can be rewritten, and cover the
// line before it.
std::string StartProgress::Cut(std::string text) const {
  if (width_ == 0) return text;
  text.resize(std::min(text.size(), width_));
  const size_t before = std::min(last_.size(), width_);
  if (text.size() < before) text.resize(before, ' ');
  return text;
}

}  // namespace maypole::launcher
