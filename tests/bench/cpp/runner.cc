#include "tests/bench/cpp/runner.h"

#include <chrono>
#include <cstdio>
#include <string>

namespace maypole::bench {
namespace {

// As the other twin prints it: enough digits to tell any two floats apart.
std::string Text(float value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.9g", static_cast<double>(value));
  return text;
}

// One allocation per tensor, as a training program has it.
class Tensors {
 public:
  explicit Tensors(const Case& c) {
    tensors_.reserve(c.tensors.size());
    for (const Parameter& p : c.tensors) {
      auto& data = tensors_.emplace_back(static_cast<size_t>(p.elements()));
      buffers_.push_back({p.name, p.shape, data});
    }
  }

  const std::vector<Buffer>& buffers() const { return buffers_; }

 private:
  std::vector<std::vector<float>> tensors_;
  std::vector<Buffer> buffers_;
};

}  // namespace

Status Runner::Run(const Case& c, Row* row) {
  const Tensors tensors(c);
  std::vector<double> mine;
  for (int round = 0; round < c.warmup + c.rounds; ++round) {
    double microseconds = 0;
    if (Status s = Round(c, round, tensors.buffers(), &microseconds); !s.ok()) {
      return s;
    }
    if (round >= c.warmup) mine.push_back(microseconds);
  }
  std::vector<double> all;
  if (Status s = library_->Gather(mine, &all); !s.ok()) return s;
  row->label = c.label;
  row->bytes = c.bytes();
  row->tensors = static_cast<int>(c.tensors.size());
  row->times = SlowestRank(all, library_->size());
  return Status();
}

Status Runner::Round(const Case& c, int round,
                     const std::vector<Buffer>& buffers, double* microseconds) {
  ++pattern_round_;
  for (size_t t = 0; t < buffers.size(); ++t) {
    pattern_.Fill(library_->rank(), pattern_round_, static_cast<int64_t>(t),
                  buffers[t].data);
  }
  if (Status s = library_->Barrier(); !s.ok()) return s;
  const auto start = std::chrono::steady_clock::now();
  Status status = library_->Allreduce(buffers);
  const std::chrono::duration<double, std::micro> took =
      std::chrono::steady_clock::now() - start;
  if (!status.ok()) return status;
  *microseconds = took.count();
  return Check(c, round, buffers);
}

Status Runner::Check(const Case& c, int round,
                     const std::vector<Buffer>& buffers) const {
  for (size_t t = 0; t < buffers.size(); ++t) {
    const auto wrong = pattern_.Check(pattern_round_, static_cast<int64_t>(t),
                                      buffers[t].data);
    if (!wrong) continue;
    return Status(Code::kDataLoss,
                  "wrong result: case " + c.label + ", tensor " +
                      buffers[t].name + ", round " + std::to_string(round) +
                      " (of " + std::to_string(c.warmup) + " + " +
                      std::to_string(c.rounds) + "), index " +
                      std::to_string(wrong->index) + " of " +
                      std::to_string(buffers[t].data.size()) + ": got " +
                      Text(wrong->got) + ", expected " + Text(wrong->expected));
  }
  return Status();
}

}  // namespace maypole::bench
