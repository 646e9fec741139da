#include "tests/gpu/probe/lab/conversation.h"

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace maypole::probe {

Words::Words(Channel::Line line)
    : words_(absl::StrSplit(line.text, ' ', absl::SkipEmpty())),
      fds_(std::move(line.fds)) {}

const std::string& Words::operator[](size_t index) const {
  static const std::string* const kNone = new std::string();
  return index < words_.size() ? words_[index] : *kNone;
}

int64_t Words::Integer(size_t index) const {
  int64_t value = 0;
  return absl::SimpleAtoi((*this)[index], &value) ? value : 0;
}

double Words::Number(size_t index) const {
  double value = 0;
  return absl::SimpleAtod((*this)[index], &value) ? value : 0;
}

std::vector<double> Words::Numbers(size_t index) const {
  std::vector<double> out;
  for (; index < words_.size(); ++index) out.push_back(Number(index));
  return out;
}

std::string Words::Rest(size_t index) const {
  if (index >= words_.size()) return "";
  return absl::StrJoin(words_.begin() + static_cast<std::ptrdiff_t>(index),
                       words_.end(), " ");
}

Fd Words::TakeFd() {
  if (fds_.size() != 1) return Fd();
  return std::move(fds_.front());
}

absl::StatusOr<Words> Hear(Actor& actor, std::string_view answer,
                           Duration timeout) {
  absl::StatusOr<Channel::Line> line = actor.channel().Expect(answer, timeout);
  if (!line.ok()) return line.status();
  return Words(*std::move(line));
}

absl::StatusOr<Words> Ask(Actor& actor, std::string_view command,
                          std::string_view answer, Duration timeout,
                          std::span<const int> fds) {
  const absl::Status sent = actor.channel().Send(command, fds);
  // If it is gone, its last line says why.
  if (!sent.ok() && !absl::IsUnavailable(sent)) return sent;
  return Hear(actor, answer, timeout);
}

absl::StatusOr<std::vector<Words>> AskAll(std::span<Actor> actors,
                                          std::string_view command,
                                          std::string_view answer,
                                          Duration timeout) {
  for (Actor& actor : actors) {
    const absl::Status sent = actor.channel().Send(command);
    if (!sent.ok() && !absl::IsUnavailable(sent)) return sent;
  }
  const auto deadline = Clock::now() + timeout;
  std::vector<Words> out;
  for (Actor& actor : actors) {
    absl::StatusOr<Words> words = Hear(actor, answer, deadline - Clock::now());
    if (!words.ok()) return words.status();
    out.push_back(*std::move(words));
  }
  return out;
}

absl::Status Serve(
    Stage& stage,
    const std::function<absl::StatusOr<std::string>(Words& words)>& handle) {
  for (;;) {
    absl::StatusOr<Channel::Line> line = stage.channel().Receive(kPatience);
    if (absl::IsUnavailable(line.status())) return absl::OkStatus();
    if (!line.ok()) stage.Fail(line.status());
    Words words(*std::move(line));
    const absl::StatusOr<std::string> answer = handle(words);
    if (!answer.ok()) {
      stage.Fail(absl::Status(
          answer.status().code(),
          absl::StrCat(words[0], ": ", answer.status().message())));
    }
    const absl::Status sent = stage.channel().Send(*answer);
    if (!sent.ok()) stage.Fail(sent);
  }
}

int64_t Now() { return Clock::now().time_since_epoch().count(); }

std::string SizeText(uint64_t bytes) {
  const uint64_t kib = bytes >> 10;
  if (kib >= 1024 && kib % 1024 == 0) return absl::StrCat(kib / 1024, " MiB");
  return absl::StrCat(kib, " KiB");
}

void AddTrouble(Lab& lab, int fact, const std::string& name,
                const std::string& doing, const absl::Status& status) {
  const std::string text = absl::StrCat(doing, ": ", status.message());
  if (absl::IsDeadlineExceeded(status)) {
    lab.report().Add(
        {fact, name, Outcome::kMeasured, absl::StrCat("HANGS: ", text), {}});
    return;
  }
  lab.report().Failed(fact, name, absl::Status(status.code(), text));
}

}  // namespace maypole::probe
