#include "client/xla/collective.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <iterator>
#include <limits>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace maypole::xla {
namespace {

using frameworks::Functions;
using frameworks::kErrorMark;

// The attributes of a call, which apply to all its operations.
//
//   kind, op, root, process_set   int32, as in maypole_operation
//   prescale, postscale           double
//   names                         one for each result, with newlines between
//   check                         optional: what the last operation compares,
//                                 with newlines between (see Call::Compare())
//
// Arguments after those that have a name only make XLA wait for them.
struct Plan {
  int32_t kind;
  int32_t op;
  int32_t root;
  int32_t process_set;
  double prescale;
  double postscale;
  std::vector<std::string> names;
  std::vector<std::string> check;

  bool Checks(size_t i) const {
    return !check.empty() && i + 1 == names.size();
  }
};

std::vector<std::string> Lines(std::string_view text) {
  std::vector<std::string> lines;
  while (true) {
    const size_t end = text.find('\n');
    lines.emplace_back(text.substr(0, end));
    if (end == std::string_view::npos) return lines;
    text.remove_prefix(end + 1);
  }
}

// Returns false if the attributes are not those that this library expects.
bool ReadPlan(const ffi::CallFrame& frame, Plan* plan) {
  const ffi::Attributes& attributes = frame.attributes;
  const int32_t* const kind = ffi::FindInt32(attributes, "kind");
  const int32_t* const op = ffi::FindInt32(attributes, "op");
  const int32_t* const root = ffi::FindInt32(attributes, "root");
  const int32_t* const set = ffi::FindInt32(attributes, "process_set");
  const double* const prescale = ffi::FindDouble(attributes, "prescale");
  const double* const postscale = ffi::FindDouble(attributes, "postscale");
  const ffi::ByteSpan* const names = ffi::FindString(attributes, "names");
  if (kind == nullptr || op == nullptr || root == nullptr || set == nullptr ||
      prescale == nullptr || postscale == nullptr || names == nullptr) {
    return false;
  }
  *plan = {
      *kind, *op, *root, *set, *prescale, *postscale, Lines(names->text())};
  if (const ffi::ByteSpan* const check = ffi::FindString(attributes, "check");
      check != nullptr && !check->text().empty()) {
    plan->check = Lines(check->text());
  }
  const auto count = static_cast<int64_t>(plan->names.size());
  return count <= frame.arguments.size && count == frame.results.size;
}

bool OnlyMoves(int32_t kind) {
  return kind != MAYPOLE_ALLREDUCE && kind != MAYPOLE_REDUCESCATTER;
}

// The library's dtype; -1 if it has none. It has no unsigned integers of 32 and
// 64 bits: treated as signed, they are moved and summed correctly. Then
// ForeignDims() makes the shapes of ranks that give other types differ.
int32_t DtypeOf(const ffi::Buffer& buffer, const Plan& plan) {
  const bool bits = OnlyMoves(plan.kind) || plan.op == MAYPOLE_SUM;
  switch (buffer.dtype) {
    case ffi::kPred:
      return MAYPOLE_BOOL;
    case ffi::kS8:
      return MAYPOLE_INT8;
    case ffi::kS16:
      return MAYPOLE_INT16;
    case ffi::kS32:
      return MAYPOLE_INT32;
    case ffi::kS64:
      return MAYPOLE_INT64;
    case ffi::kU8:
      return MAYPOLE_UINT8;
    case ffi::kU16:
      return MAYPOLE_UINT16;
    case ffi::kU32:
      return bits ? MAYPOLE_INT32 : -1;
    case ffi::kU64:
      return bits ? MAYPOLE_INT64 : -1;
    case ffi::kF16:
      return MAYPOLE_FLOAT16;
    case ffi::kF32:
      return MAYPOLE_FLOAT32;
    case ffi::kF64:
      return MAYPOLE_FLOAT64;
    case ffi::kBf16:
      return MAYPOLE_BFLOAT16;
    case ffi::kC64:
      return OnlyMoves(plan.kind) ? MAYPOLE_INT64 : -1;
    default:
      return -1;
  }
}

// How many dimensions of 1 are appended to the shape, because the library sees
// another dtype (maypole/jax/_dtypes.py does the same).
int32_t ForeignDims(int32_t dtype) {
  if (dtype == ffi::kC64) return 2;
  return dtype == ffi::kU32 || dtype == ffi::kU64 ? 1 : 0;
}

bool IsFloating(int32_t dtype) {
  return dtype == ffi::kF16 || dtype == ffi::kF32 || dtype == ffi::kF64 ||
         dtype == ffi::kBf16 || dtype == ffi::kC64;
}

const char* NameOf(maypole_status code) {
  constexpr const char* kNames[] = {"OK",
                                    "CANCELLED",
                                    "UNKNOWN",
                                    "INVALID_ARGUMENT",
                                    "DEADLINE_EXCEEDED",
                                    "NOT_FOUND",
                                    "ALREADY_EXISTS",
                                    "PERMISSION_DENIED",
                                    "RESOURCE_EXHAUSTED",
                                    "FAILED_PRECONDITION",
                                    "ABORTED",
                                    "OUT_OF_RANGE",
                                    "UNIMPLEMENTED",
                                    "INTERNAL",
                                    "UNAVAILABLE",
                                    "DATA_LOSS",
                                    "UNAUTHENTICATED"};
  const auto number = static_cast<size_t>(code);
  return number < std::size(kNames) ? kNames[number] : "UNKNOWN";
}

// The first failure of the membership epoch, as long as the process has not
// taken it; see collective.h.
class Failures {
 public:
  void Begin(int64_t epoch) {
    const std::lock_guard<std::mutex> lock(mutex_);
    epoch_ = epoch;
    first_.clear();
  }

  int64_t epoch() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return epoch_;
  }

  std::string Take() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return std::exchange(first_, std::string());
  }

  // Returns the error's text, for the program.
  std::string Add(int64_t epoch, maypole_status code, const std::string& text) {
    std::string full = kErrorMark + text;
    if (epoch != 0) {
      full += std::string(" [") + NameOf(code) + ", membership epoch " +
              std::to_string(epoch) + "]";
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    if (epoch == epoch_ && first_.empty()) first_ = full;
    return full;
  }

 private:
  std::mutex mutex_;
  int64_t epoch_ = 0;  // guarded by mutex_
  std::string first_;  // guarded by mutex_
};

Failures& failures() {
  static Failures* const failures = new Failures;
  return *failures;
}

bool GivesItsOwnMemory(int32_t kind) {
  return kind == MAYPOLE_ALLGATHER || kind == MAYPOLE_ALLTOALL;
}

// All operations of one call. It deletes itself when the last one has ended.
class Call {
 public:
  Call(const Functions& functions, CodeOf code_of, const ffi::Api& api,
       Plan plan)
      : maypole_(functions),
        code_of_(code_of),
        api_(api),
        plan_(std::move(plan)) {}

  // Returns an error's text; empty if the operations can be submitted.
  std::string Prepare(const ffi::CallFrame& frame);

  // Completes `future` now or later; `call` must not be used afterwards.
  static void Submit(std::unique_ptr<Call> call, ffi::Future* future);

 private:
  struct Member {
    Call* call;
    void* output;
    int64_t bytes;
    int32_t dtype;  // XLA's
  };

  static void OnDone(void* context, int64_t handle, maypole_status status);
  void CopyResult(const Member& member, int64_t handle);
  void Compare(const Member& member);
  void Fail(maypole_status code, const std::string& text);
  void End(int64_t members);

  const Functions& maypole_;
  const CodeOf code_of_;
  const ffi::Api& api_;
  const Plan plan_;
  const int64_t epoch_ = failures().epoch();
  std::vector<maypole_operation> operations_;
  std::vector<Member> members_;
  ffi::Future* future_ = nullptr;
  std::atomic<int64_t> left_{0};
  std::mutex mutex_;
  maypole_status code_ = MAYPOLE_OK;  // guarded by mutex_: the first error
  std::string text_;                  // guarded by mutex_
};

std::string Call::Prepare(const ffi::CallFrame& frame) {
  const auto count = static_cast<int64_t>(plan_.names.size());
  for (int64_t i = 0; i < count; ++i) {
    const ffi::Buffer& in = *frame.arguments.items[i];
    const ffi::Buffer& out = *frame.results.items[i];
    maypole_operation operation = {};
    operation.struct_size = sizeof operation;
    operation.kind = plan_.kind;
    operation.dtype = DtypeOf(in, plan_);
    operation.op = plan_.op;
    operation.process_set = plan_.process_set;
    operation.root = plan_.root;
    operation.prescale = plan_.prescale;
    operation.postscale = plan_.postscale;
    operation.name = plan_.names[i].c_str();
    operation.input = in.data;
    operation.output = GivesItsOwnMemory(plan_.kind) ? nullptr : out.data;
    if (plan_.Checks(i)) {
      operation.op = MAYPOLE_MIN;
      operation.prescale = operation.postscale = 1;
    }
    const int32_t foreign = ForeignDims(in.dtype);
    if (operation.dtype < 0 || in.rank + foreign > MAYPOLE_MAX_DIMS) {
      return "'" + plan_.names[i] + "': type " + std::to_string(in.dtype) +
             " of XLA with " + std::to_string(in.rank) +
             " dimensions, expected a type that Maypole has and at most " +
             std::to_string(MAYPOLE_MAX_DIMS - foreign) + " dimensions";
    }
    operation.dims = static_cast<int32_t>(in.rank) + foreign;
    std::copy_n(in.dims, in.rank, operation.shape);
    std::fill_n(operation.shape + in.rank, foreign, 1);
    operations_.push_back(operation);
    members_.push_back({this, out.data, ffi::SizeOf(out), out.dtype});
  }
  return "";
}

void Call::Submit(std::unique_ptr<Call> call, ffi::Future* future) {
  Call* const self = call.release();
  const auto count = static_cast<int32_t>(self->operations_.size());
  self->future_ = future;
  self->left_ = count;
  std::vector<int64_t> handles(count);
  if (const maypole_status status = self->maypole_.submit_group(
          self->operations_.data(), count, handles.data());
      status != MAYPOLE_OK) {
    self->Fail(status, self->maypole_.last_error());
    self->End(count);
    return;
  }
  // `self` lives until the last member has ended, which may happen in this
  // loop.
  const Functions& functions = self->maypole_;
  for (int32_t i = 0; i < count; ++i) {
    frameworks::CallWhenDone(functions, handles[i], &Call::OnDone,
                             &self->members_[i]);
  }
}

void Call::OnDone(void* context, int64_t handle, maypole_status status) {
  const Member& member = *static_cast<Member*>(context);
  Call* const self = member.call;
  if (status != MAYPOLE_OK) {
    std::string text = self->maypole_.last_error();
    if (ForeignDims(member.dtype) != 0) {
      text +=
          " (of an unsigned or complex array: the shape given here ends with "
          "dimensions of 1 that the array lacks, which ranks with another "
          "dtype do not have)";
    }
    self->Fail(status, text);
  } else if (GivesItsOwnMemory(self->plan_.kind)) {
    self->CopyResult(member, handle);
  } else if (self->plan_.Checks(&member - self->members_.data())) {
    self->Compare(member);
  }
  self->maypole_.release(handle);
  self->End(1);
}

void Call::CopyResult(const Member& member, int64_t handle) {
  void* data = nullptr;
  int64_t bytes = 0;
  int64_t rows = 0;
  if (const maypole_status status =
          maypole_.result(handle, &data, &bytes, &rows);
      status != MAYPOLE_OK) {
    Fail(status, maypole_.last_error());
  } else if (bytes != member.bytes) {
    Fail(MAYPOLE_FAILED_PRECONDITION,
         "'" + plan_.names[&member - members_.data()] + "': the result has " +
             std::to_string(rows) + " rows (" + std::to_string(bytes) +
             " bytes), but this program was compiled for " +
             std::to_string(member.bytes) +
             " bytes: inside jit, allgather and alltoall need the same first "
             "dimension on all ranks; call them outside jit otherwise");
  } else if (bytes > 0) {
    std::memcpy(member.output, data, bytes);
  }
}

// The array has rows of a number for each line of `check`, then that number's
// complement (~). Its minimum over the ranks shows the least and the greatest
// number. Ranks that are not compared give the greatest integer for both.
void Call::Compare(const Member& member) {
  constexpr int32_t kLeftOut = std::numeric_limits<int32_t>::max();
  constexpr int64_t kTolerance = 1024;
  const auto* least = static_cast<const int32_t*>(member.output);
  const auto* own =
      static_cast<const int32_t*>(operations_[&member - members_.data()].input);
  const auto lines = static_cast<int64_t>(plan_.check.size());
  const int64_t numbers = member.bytes / static_cast<int64_t>(sizeof *least);
  for (int64_t row = 0; row + 2 * lines <= numbers; row += 2 * lines) {
    for (int64_t i = row; i < row + lines; ++i) {
      if (own[i] == kLeftOut && own[i + lines] == kLeftOut) continue;
      if (int64_t{~least[i + lines]} - least[i] > kTolerance) {
        Fail(MAYPOLE_FAILED_PRECONDITION, plan_.check[i - row]);
        return;
      }
    }
  }
}

void Call::Fail(maypole_status code, const std::string& text) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (code_ != MAYPOLE_OK) return;
  code_ = code;
  text_ = failures().Add(
      epoch_, code,
      code == MAYPOLE_ALREADY_EXISTS
          ? text +
                " (in JAX: a jitted function that is called twice at once "
                "by others, or by two threads; give each call a name= of "
                "its own)"
          : text);
}

void Call::End(int64_t members) {
  if (left_.fetch_sub(members, std::memory_order_acq_rel) != members) return;
  const ffi::Api& api = api_;
  ffi::Future* const future = future_;
  // jaxlib 0.4.38 does not see that an array has failed if it had before the
  // program that uses it began, and computes with what is in its memory: NaN.
  for (const Member& member : members_) {
    if (code_ != MAYPOLE_OK && IsFloating(member.dtype)) {
      std::memset(member.output, 0xff, member.bytes);
    }
  }
  ffi::Error* const error =
      code_ == MAYPOLE_OK ? nullptr
                          : ffi::MakeError(api, code_of_(code_), text_.c_str());
  delete this;
  ffi::Complete(api, future, error);
}

}  // namespace

void BeginEpoch(int64_t number) { failures().Begin(number); }

std::string TakeFailure() { return failures().Take(); }

ffi::Error* Run(const Functions& functions, CodeOf code_of,
                ffi::CallFrame* frame) {
  Plan plan;
  if (!ReadPlan(*frame, &plan)) {
    return ffi::MakeError(
        *frame->api, MAYPOLE_INTERNAL,
        (kErrorMark +
         std::string("the call's attributes or number of arrays are not "
                     "those that maypole.jax gives it"))
            .c_str());
  }
  auto call =
      std::make_unique<Call>(functions, code_of, *frame->api, std::move(plan));
  if (const std::string error = call->Prepare(*frame); !error.empty()) {
    return ffi::MakeError(
        *frame->api, MAYPOLE_INVALID_ARGUMENT,
        failures()
            .Add(failures().epoch(), MAYPOLE_INVALID_ARGUMENT, error)
            .c_str());
  }
  ffi::Future* future = nullptr;
  if (ffi::Error* error = ffi::MakeFuture(*frame->api, &future);
      error != nullptr) {
    return error;
  }
  frame->future = future;
  Call::Submit(std::move(call), future);
  return nullptr;
}

}  // namespace maypole::xla
