#include "tests/kill_points/judge.h"

#include <cctype>

#include "tests/properties/player/ranks.h"

namespace maypole::kill_points {
namespace {

// A survivor must get its error within this time.
constexpr double kMostMs = 1000;

std::string Of(int rank) { return "rank " + std::to_string(rank) + ": "; }

// "rank 1" but not "rank 10".
bool Names(const std::string& text, const std::string& words) {
  for (size_t at = text.find(words); at != std::string::npos;
       at = text.find(words, at + 1)) {
    const size_t end = at + words.size();
    if (end == text.size() || !std::isdigit(text[end])) return true;
  }
  return false;
}

std::string JudgeSurvivor(const RankPart& part, const std::string& words) {
  if (part.state != State::kOver) return "has not ended";
  if (part.wrong[0] != 0) return part.wrong;
  if (!part.failed) return "got no error";
  if (!Names(part.error, words)) {
    return "the error does not say '" + words + "': " + part.error;
  }
  if (part.later[0] == 0) {
    return "an operation submitted after the error has ended well";
  }
  if (!Names(part.later, words)) {
    return "a later operation's error does not say '" + words +
           "': " + part.later;
  }
  return "";
}

// An operation that succeeded on one rank was submitted by all; and the ranks
// of a node must return the same outcome of it.
std::string CompareEnds(const Round& round, const Scoreboard& board, int a,
                        int b) {
  const auto node = [&](int rank) {
    return properties::OptionsOf(rank, round.world.ranks, round.agents, "")
        .cross_rank;
  };
  const RankPart& x = board.ranks[a];
  const RankPart& y = board.ranks[b];
  for (int n = 0; n < x.programs; ++n) {
    for (int i = 0; i < kOperations; ++i) {
      const End mine = x.ends[n][i];
      const End theirs = y.ends[n][i];
      if (mine != End::kOk || theirs == End::kOk) continue;
      if (theirs == End::kNotSubmitted || node(a) == node(b)) {
        return Of(a) + "operation " + std::to_string(i) + " of program " +
               std::to_string(n) + " ended well, on rank " + std::to_string(b) +
               (theirs == End::kError
                    ? " with an error: " + std::string(y.error)
                    : " it was never submitted");
      }
    }
  }
  return "";
}

}  // namespace

Verdict JudgeDeath(const Round& round, const Scoreboard& board, int dead,
                   int64_t died_ns, const std::string& words) {
  Verdict v;
  for (int r = 0; r < round.world.ranks; ++r) {
    if (r == dead) continue;
    const RankPart& part = board.ranks[r];
    std::string wrong = JudgeSurvivor(part, words);
    const double ms = static_cast<double>(part.ended_ns - died_ns) / 1e6;
    if (wrong.empty() && ms > kMostMs) {
      wrong = "waited " + std::to_string(ms) + " ms: " + part.error;
    }
    v.worst_ms = std::max(v.worst_ms, ms);
    if (!wrong.empty()) {
      v.wrong = Of(r) + wrong;
      return v;
    }
  }
  for (int a = 0; a < round.world.ranks; ++a) {
    for (int b = 0; b < round.world.ranks; ++b) {
      if (a == dead || b == dead) continue;
      v.wrong = CompareEnds(round, board, a, b);
      if (!v.wrong.empty()) return v;
    }
  }
  return v;
}

Verdict JudgePeace(const Round& round, const Scoreboard& board) {
  Verdict v;
  for (int r = 0; r < round.world.ranks; ++r) {
    const RankPart& part = board.ranks[r];
    if (part.state != State::kOver) v.wrong = Of(r) + "has not ended";
    if (part.failed) v.wrong = Of(r) + part.error;
    if (part.wrong[0] != 0) v.wrong = Of(r) + part.wrong;
    if (!v.wrong.empty()) return v;
  }
  return v;
}

}  // namespace maypole::kill_points
