// Conversation: commands of the parent to an actor, and its answers, in words.
//
//   // The parent:
//   auto answer = Ask(actor, "fill 7 1024", "filled", Seconds(10));
//   // The role:
//   return Serve(stage, [&](Words& words) -> absl::StatusOr<std::string> {
//     if (words[0] == "fill") ... words.Integer(1) ...
//     return "filled";
//   });
//
// Thread contract: as Channel's.
//
// Invariants: no wait without a deadline. Both ends are this program, so a word
// that is missing is an empty one, and 0 as a number.
#ifndef MAYPOLE_TESTS_GPU_PROBE_LAB_CONVERSATION_H_
#define MAYPOLE_TESTS_GPU_PROBE_LAB_CONVERSATION_H_

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/system/fd.h"
#include "tests/gpu/probe/lab/lab.h"

namespace maypole::probe {

class Words {
 public:
  explicit Words(Channel::Line line);
  size_t size() const { return words_.size(); }
  const std::string& operator[](size_t index) const;
  int64_t Integer(size_t index) const;
  double Number(size_t index) const;
  // The words from `index` on, as numbers, or as they came.
  std::vector<double> Numbers(size_t index) const;
  std::string Rest(size_t index) const;
  // The only descriptor that came along; an invalid one if none did.
  Fd TakeFd();

 private:
  std::vector<std::string> words_;
  std::vector<Fd> fds_;
};

// Expects a line, in words.
absl::StatusOr<Words> Hear(Actor& actor, std::string_view answer,
                           Duration timeout);
// Sends a command and expects its answer.
absl::StatusOr<Words> Ask(Actor& actor, std::string_view command,
                          std::string_view answer, Duration timeout,
                          std::span<const int> fds = {});
// The same for several actors at once.
absl::StatusOr<std::vector<Words>> AskAll(std::span<Actor> actors,
                                          std::string_view command,
                                          std::string_view answer,
                                          Duration timeout);

// Answers commands until the parent closes the channel, or is silent for
// kPatience. An error is sent to the parent and ends the process at once, even
// if its streams still wait.
inline constexpr Duration kPatience = Seconds(300);
absl::Status Serve(
    Stage& stage,
    const std::function<absl::StatusOr<std::string>(Words& words)>& handle);

// Nanoseconds of the clock that all processes of a machine share.
int64_t Now();

// "64 KiB", "256 MiB".
std::string SizeText(uint64_t bytes);

// Adds a row for an experiment that did not complete: a hang is a verdict
// (measured); anything else is a failure of the experiment.
void AddTrouble(Lab& lab, int fact, const std::string& name,
                const std::string& doing, const absl::Status& status);

}  // namespace maypole::probe

#endif  // MAYPOLE_TESTS_GPU_PROBE_LAB_CONVERSATION_H_
