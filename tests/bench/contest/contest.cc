#include "tests/bench/contest/contest.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <utility>

#include "common/wire/unix_socket.h"
#include "tests/bench/cpp/cases.h"

namespace maypole::bench {
namespace {

constexpr size_t kMaxMessage = 64 << 10;
constexpr int kForever = -1;

Status Invalid(const std::string& message) {
  return Status(Code::kInvalidArgument, message);
}

Status Number(const std::string& word, int64_t* out) {
  const char* end = word.data() + word.size();
  const auto [stop, error] = std::from_chars(word.data(), end, *out);
  if (error == std::errc() && stop == end && *out >= 0) return Status();
  return Invalid("'" + word + "' is not a count");
}

Status Tensors(const std::string& what, std::vector<Parameter>* out) {
  CaseOptions options;
  options.resnet = what == "resnet";
  options.sizes = options.resnet ? "" : what;
  std::vector<bench::Case> cases;
  if (Status s = MakeCases(options, &cases); !s.ok()) return s;
  *out = std::move(cases.front().tensors);
  return Status();
}

std::string Text(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.9g", value);
  return text;
}

}  // namespace

Status Environment(const char* name, std::string* value) {
  const char* found = std::getenv(name);
  if (found == nullptr) {
    return Status(Code::kFailedPrecondition,
                  std::string(name) + " is not set: tests/bench/compare.py " +
                      "starts this program");
  }
  *value = found;
  return Status();
}

Contest::Contest(Reducer* reducer)
    : reducer_(reducer), pattern_(reducer->size()) {}

Status Contest::Enter() {
  std::string contestant, conductor, start_line;
  if (Status s = Environment("BENCH_CONTESTANT", &contestant); !s.ok()) {
    return s;
  }
  if (Status s = Environment("BENCH_CONDUCTOR", &conductor); !s.ok()) return s;
  if (Status s = Environment("BENCH_START_LINE", &start_line); !s.ok()) {
    return s;
  }
  if (Status s = StartLine::Map(start_line, reducer_->rank(), reducer_->size(),
                                &start_line_);
      !s.ok()) {
    return s;
  }
  if (Status s = ConnectUnix(conductor, &conductor_); !s.ok()) return s;
  return Send("hello " + contestant + " " + std::to_string(reducer_->rank()) +
              " " + std::to_string(getpid()) + " private" +
              (reducer_->has_arena() ? " arena" : ""));
}

Status Contest::Run() {
  if (Status s = Enter(); !s.ok()) return s;
  for (;;) {
    Words words;
    if (Status s = Receive(&words); !s.ok()) return s;
    if (words.empty()) return Status();
    std::string answer = "ok";
    const Status status = Obey(words, &answer);
    if (!status.ok()) answer = "error " + status.message();
    if (Status s = Send(answer); !s.ok()) return s;
    if (!status.ok() || words[0] == "quit") return status;
  }
}

Status Contest::Send(const std::string& line) {
  return SendMessage(conductor_.get(), line.data(), line.size());
}

Status Contest::Receive(Words* words) {
  Received received;
  Status s;
  do {
    s = ReceiveMessage(conductor_.get(), kMaxMessage, kForever, &received);
  } while (s.code() == Code::kCancelled);
  std::istringstream text(
      std::string(received.data.begin(), received.data.end()));
  for (std::string word; text >> word;) words->push_back(word);
  return s;
}

Status Contest::Obey(const Words& words, std::string* answer) {
  if (words[0] == "open" && words.size() == 5) return Open(words);
  if (words[0] == "turn" && words.size() == 5) return Turn(words, answer);
  if (words[0] == "close" && words.size() == 2) return Close(words, answer);
  if (words[0] == "quit") return Status();
  return Invalid("unknown command " + words[0]);
}

Status Contest::Open(const Words& words) {
  Case c;
  c.what = words[2];
  const Storage storage =
      words[3] == "arena" ? Storage::kArena : Storage::kPrivate;
  int64_t operations = 0;
  if (Status s = Number(words[4], &operations); !s.ok()) return s;
  c.operations = static_cast<int>(operations);
  std::vector<Parameter> tensors;
  if (Status s = Tensors(c.what, &tensors); !s.ok()) return s;
  for (const Parameter& p : tensors) {
    Memory& memory = c.memory.emplace_back();
    Status s = reducer_->Allocate(storage, p.elements(), &memory);
    if (!s.ok()) return s;
    c.buffers.push_back({words[3] + "." + p.name, p.shape, memory.data});
  }
  cases_[words[1]] = std::move(c);
  return Status();
}

Status Contest::Turn(const Words& words, std::string* answer) {
  const auto found = cases_.find(words[1]);
  if (found == cases_.end()) return Invalid("case " + words[1] + " is closed");
  int64_t round = 0, warmups = 0, rounds = 0;
  if (Status s = Number(words[2], &round); !s.ok()) return s;
  if (Status s = Number(words[3], &warmups); !s.ok()) return s;
  if (Status s = Number(words[4], &rounds); !s.ok()) return s;
  *answer = "times";
  for (int64_t i = 0; i < warmups + rounds; ++i) {
    double microseconds = 0;
    Status s = Round(&found->second, round + i, &microseconds);
    if (!s.ok()) return s;
    if (i >= warmups) *answer += " " + Text(microseconds);
  }
  return Status();
}

Status Contest::Close(const Words& words, std::string* answer) {
  const auto found = cases_.find(words[1]);
  if (found == cases_.end()) return Invalid("case " + words[1] + " is closed");
  *answer = "closed " + std::to_string(found->second.reduced) + " " +
            std::to_string(found->second.in_arena);
  cases_.erase(found);
  return Status();
}

Status Contest::Round(Case* c, int64_t round, double* microseconds) {
  for (size_t t = 0; t < c->buffers.size(); ++t) {
    pattern_.Fill(reducer_->rank(), round, static_cast<int64_t>(t),
                  c->buffers[t].data);
  }
  const int64_t in_arena = reducer_->arena_operations();
  start_line_->Meet();
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < c->operations; ++i) {
    if (Status s = reducer_->Allreduce(c->buffers); !s.ok()) return s;
  }
  const std::chrono::duration<double, std::micro> took =
      std::chrono::steady_clock::now() - start;
  *microseconds = took.count() / c->operations;
  c->reduced += c->operations * static_cast<int64_t>(c->buffers.size());
  c->in_arena += reducer_->arena_operations() - in_arena;
  return Check(*c, round);
}

Status Contest::Check(const Case& c, int64_t round) const {
  const auto factor = static_cast<float>(
      std::pow(reducer_->size(), std::max(0, c.operations - 1)));
  for (size_t t = 0; t < c.buffers.size(); ++t) {
    const auto wrong = pattern_.Check(round, static_cast<int64_t>(t),
                                      c.buffers[t].data, factor);
    if (!wrong) continue;
    return Status(Code::kDataLoss,
                  "wrong result: tensor " + c.buffers[t].name + ", round " +
                      std::to_string(round) + ", index " +
                      std::to_string(wrong->index) + " of " +
                      std::to_string(c.buffers[t].data.size()) + ": got " +
                      Text(wrong->got) + ", expected " + Text(wrong->expected));
  }
  return Status();
}

int RunContest(Reducer* reducer) {
  Contest contest(reducer);
  const Status s = contest.Run();
  if (s.ok()) return 0;
  std::fprintf(stderr, "contest: rank %d of %d: %s\n", reducer->rank(),
               reducer->size(), s.message().c_str());
  return 1;
}

}  // namespace maypole::bench
