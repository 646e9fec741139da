#include "client/api/adasum_run.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <utility>

#include "common/reduce/adasum.h"

namespace maypole {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// The longest sleep of a wait between two operations.
constexpr milliseconds kLongestSleep{100};

std::byte* Allocate(int64_t bytes) {
  return static_cast<std::byte*>(
      std::malloc(static_cast<size_t>(std::max<int64_t>(bytes, 1))));
}

Status NoMemory(int64_t bytes) {
  return Status(Code::kResourceExhausted,
                "no memory for an Adasum: " + std::to_string(bytes) + " bytes");
}

void Copy(std::byte* to, const std::byte* from, int64_t bytes) {
  if (bytes > 0) std::memcpy(to, from, static_cast<size_t>(bytes));
}

// The timeout for the rest of a wait whose timeout is a limit.
int Remaining(int timeout_ms, Clock::time_point deadline) {
  const auto left = static_cast<int>(
      std::chrono::ceil<milliseconds>(deadline - Clock::now()).count());
  // 0 would mean no limit.
  return timeout_ms >= 0 ? std::max(left, 0)
                         : kWaitInterruptible - std::max(left, 1);
}

}  // namespace

AdasumRun::AdasumRun(std::shared_ptr<Communicator> communicator,
                     std::shared_ptr<CompletionQueue> completions, int position,
                     Operations operations)
    : communicator_(std::move(communicator)),
      completions_(std::move(completions)),
      me_(static_cast<size_t>(position)),
      operations_(std::move(operations)),
      signature_(operations_[0]->signature),
      set_(operations_[0]->set),
      ranks_(static_cast<size_t>(set_->size())),
      size_(SizeOf(signature_.dtype)),
      name_(operations_[0]->name + ".adasum"),
      totals_(ranks_) {
  const auto ranks = static_cast<int64_t>(ranks_);
  for (const auto& op : operations_) {
    const int64_t elements = op->signature.Elements();
    std::vector<int64_t>& slices =
        slices_.emplace_back(ranks_, elements / ranks);
    for (int64_t r = 0; r < elements % ranks; ++r) ++slices[r];
    for (size_t r = 0; r < ranks_; ++r) totals_[r] += slices[r];
    if (!op->input_ready) awaited_inputs_.fetch_add(1);
  }
}

std::shared_ptr<Operation> AdasumRun::MakePart(
    Kind kind, DType dtype, std::vector<int64_t> shape) const {
  auto part = std::make_shared<Operation>();
  part->name = name_;
  part->set = set_;
  Signature& s = part->signature;
  s.kind = kind;
  s.dtype = dtype;
  s.op = Op::kSum;
  s.process_set = signature_.process_set;
  s.dims = static_cast<uint8_t>(shape.size());
  std::copy(shape.begin(), shape.end(), s.shape);
  return part;
}

Status AdasumRun::Prepare(std::shared_ptr<Operation>* first) {
  const int64_t total =
      std::accumulate(totals_.begin(), totals_.end(), int64_t{0});
  const auto part = MakePart(Kind::kAlltoall, signature_.dtype, {total});
  if (Status s = CheckSignature(name_, part->signature); !s.ok()) return s;
  part->splits = totals_;
  part->input = operations_[0]->input;
  part->input_ready = awaited_inputs_.load() == 0;
  if (operations_.size() > 1) {
    const int64_t bytes = total * static_cast<int64_t>(size_);
    packed_.reset(Allocate(bytes));
    if (packed_ == nullptr) return NoMemory(bytes);
    part->input = packed_.get();
    if (part->input_ready) PackInputs();
  }
  first_ = *first = part_ = part;
  return Status();
}

void AdasumRun::Begin() { Follow(part_); }

// After a failed input the others still report, but the count never reaches 0.
void AdasumRun::InputSettled(const Status& error) {
  const std::shared_ptr<Operation> first = first_.lock();
  if (first == nullptr) return;  // the job has ended meanwhile
  if (!error.ok()) {
    if (!input_failed_.exchange(true)) communicator_->InputFailed(first, error);
  } else if (awaited_inputs_.fetch_sub(1) == 1) {
    if (packed_ != nullptr) PackInputs();
    communicator_->InputReady(first);
  }
}

// Packs rank 0's slice of each tensor, then rank 1's, ...
void AdasumRun::PackInputs() {
  std::byte* to = packed_.get();
  std::vector<const std::byte*> from;
  for (const auto& op : operations_) from.push_back(op->input);
  for (size_t r = 0; r < ranks_; ++r) {
    for (size_t t = 0; t < operations_.size(); ++t) {
      const auto bytes = slices_[t][r] * static_cast<int64_t>(size_);
      Copy(to, from[t], bytes);
      to += bytes;
      from[t] += bytes;
    }
  }
}

// The completion thread may start the next part, and replace part_, at once.
void AdasumRun::Follow(std::shared_ptr<Operation> part) {
  auto completion = std::make_unique<Completion>(
      part, [run = shared_from_this()](const Operation& p) { run->OnPart(p); });
  (void)part->WhenDone(completions_, std::move(completion));
  communicator_->Want(*part);
}

void AdasumRun::StartPart(const std::shared_ptr<Operation>& part) {
  if (Status s = communicator_->Start({&part, 1}); !s.ok()) return End(s);
  {
    std::lock_guard lock(mutex_);
    part_ = part;
  }
  changed_.notify_all();
  Follow(part);
}

void AdasumRun::OnPart(const Operation& part) {
  if (!part.status.ok()) return End(part.status);
  switch (part.signature.kind) {
    case Kind::kAlltoall:
      return SumProducts(part);
    case Kind::kAllreduce:
      return GatherResults();
    default:
      return UnpackResults(part);
  }
}

void AdasumRun::SumProducts(const Operation& exchange) {
  exchange_ = part_;
  packed_.reset();
  const std::byte* row = exchange.output;
  for (const int64_t received : exchange.received) {
    // The rows of a rank that has joined or has other shapes are not used; see
    // CheckShapes().
    rows_.push_back(received == totals_[me_] ? row : nullptr);
    row += received * static_cast<int64_t>(size_);
  }
  const size_t matrix = ranks_ * ranks_;
  const size_t tensors = operations_.size();
  products_.assign((tensors + 1) * matrix, 0.0);
  std::vector<const std::byte*> rows = rows_;
  std::string shapes;
  for (size_t t = 0; t < tensors; ++t) {
    const auto elements = static_cast<size_t>(slices_[t][me_]);
    AdasumProducts(signature_.dtype, rows, elements, &products_[t * matrix]);
    for (const std::byte*& r : rows) {
      if (r != nullptr) r += elements * size_;
    }
    shapes += ShapeText(operations_[t]->signature);
  }
  // Positive, and exact in float64.
  products_[tensors * matrix + me_ * ranks_ + me_] =
      1.0 + static_cast<double>(HashBytes(shapes) >> 32);
  const auto n = static_cast<int64_t>(ranks_);
  const auto part = MakePart(Kind::kAllreduce, DType::kFloat64,
                             {static_cast<int64_t>(tensors) + 1, n, n});
  // The factors are set so that ranks that pass different ones get an error;
  // GatherResults() takes them out again.
  part->signature.prescale = signature_.prescale;
  part->signature.postscale = signature_.postscale;
  part->output = reinterpret_cast<std::byte*>(products_.data());
  part->input = part->output;
  StartPart(part);
}

void AdasumRun::GatherResults() {
  const double factor = signature_.prescale * signature_.postscale;
  if (factor != 0.0) {
    for (double& product : products_) product /= factor;
    if (Status s = CheckShapes(); !s.ok()) return End(s);
  }
  const int64_t bytes = totals_[me_] * static_cast<int64_t>(size_);
  result_.reset(Allocate(bytes));
  if (result_ == nullptr) return End(NoMemory(bytes));
  const size_t matrix = ranks_ * ranks_;
  std::byte* to = result_.get();
  for (size_t t = 0; t < operations_.size(); ++t) {
    std::vector<double> factors =
        AdasumFactors({&products_[t * matrix], matrix}, ranks_);
    for (double& f : factors) f *= factor;
    const auto elements = static_cast<size_t>(slices_[t][me_]);
    AdasumCombine(signature_.dtype, rows_, factors, elements, to);
    for (const std::byte*& r : rows_) {
      if (r != nullptr) r += elements * size_;
    }
    to += elements * size_;
  }
  exchange_.reset();
  const auto part =
      MakePart(Kind::kAllgather, signature_.dtype, {totals_[me_]});
  part->input = result_.get();
  StartPart(part);
}

void AdasumRun::UnpackResults(const Operation& gathered) {
  if (gathered.gathered_rows !=
      std::accumulate(totals_.begin(), totals_.end(), int64_t{0})) {
    return End(Joined());
  }
  const std::byte* from = gathered.output;
  std::vector<std::byte*> to;
  for (const auto& op : operations_) to.push_back(op->output);
  for (size_t r = 0; r < ranks_; ++r) {
    for (size_t t = 0; t < operations_.size(); ++t) {
      const auto bytes = slices_[t][r] * static_cast<int64_t>(size_);
      Copy(to[t], from, bytes);
      from += bytes;
      to[t] += bytes;
    }
  }
  End(Status());
}

// All ranks have the same sums, so all return an error or none does. Written so
// that NaN, from unusual factors, is no mismatch.
Status AdasumRun::CheckShapes() const {
  const double* const numbers =
      &products_[operations_.size() * ranks_ * ranks_];
  const auto number = [&](size_t r) { return numbers[r * ranks_ + r]; };
  for (size_t r = 0; r < ranks_; ++r) {
    if (number(r) < 0.5) return Joined();
  }
  for (size_t r = 1; r < ranks_; ++r) {
    if (number(r) - number(0) < 0.5 && number(0) - number(r) < 0.5) continue;
    if (number(r) != number(r) || number(0) != number(0)) continue;
    std::string own;
    for (const auto& op : operations_) {
      own += (own.empty() ? "" : ", ") + ShapeText(op->signature);
    }
    return Status(Code::kFailedPrecondition,
                  "the shapes of ranks " + std::to_string(set_->ranks[r]) +
                      " and " + std::to_string(set_->ranks[0]) +
                      " differ; this rank's are " + own +
                      "; Adasum needs the same on all ranks");
  }
  return Status();
}

Status AdasumRun::Joined() const {
  return Status(Code::kFailedPrecondition,
                "a rank has joined (it has no more inputs), and Adasum needs "
                "every rank; use Average or Sum");
}

void AdasumRun::End(const Status& status) {
  for (const auto& op : operations_) {
    op->status = status.ok() ? status : op->Explain(status);
    op->SetDone();
  }
  {
    std::lock_guard lock(mutex_);
    over_ = true;
    part_.reset();
  }
  changed_.notify_all();
  operations_.clear();
  exchange_.reset();
  packed_.reset();
  result_.reset();
}

void AdasumRun::Progress() {
  std::shared_ptr<Operation> part;
  {
    std::lock_guard lock(mutex_);
    part = part_;
  }
  if (part != nullptr) communicator_->Progress(*part);
}

Status AdasumRun::Await(int timeout_ms) {
  const int limit = LimitOfWait(timeout_ms);
  const auto deadline =
      limit < 0 ? Clock::time_point::max() : Clock::now() + milliseconds(limit);
  std::shared_ptr<Operation> part;
  for (;;) {
    {
      // The completion thread may be between two operations.
      std::unique_lock lock(mutex_);
      changed_.wait_until(
          lock, std::min(deadline, Clock::now() + kLongestSleep), [&] {
            return over_ || !part_->done.load(std::memory_order_acquire);
          });
      if (over_) return Status();
      part = part_;
    }
    if (!part->done.load(std::memory_order_acquire)) {
      const int ms = limit < 0 ? timeout_ms : Remaining(timeout_ms, deadline);
      if (Status s = communicator_->Await(*part, ms); !s.ok()) return s;
    } else if (Clock::now() >= deadline) {
      return Status(Code::kDeadlineExceeded,
                    part->Title() + " is still pending");
    } else if (timeout_ms <= kWaitInterruptible) {
      return Status(Code::kCancelled, "the wait returns while Adasum computes");
    }
  }
}

}  // namespace maypole
