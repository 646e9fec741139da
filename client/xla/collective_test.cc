#include "client/xla/collective.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace maypole::xla {
namespace {

// A library that keeps submitted operations, and ends them when the test does
// so.
struct Library {
  struct Submitted {
    maypole_operation operation;
    std::string name;
    maypole_done done = nullptr;
    void* context = nullptr;
  };

  std::vector<Submitted> operations;  // the handle is the index
  maypole_status refusal = MAYPOLE_OK;
  maypole_status on_done_status = MAYPOLE_OK;
  // An operation without a callback ends after this many waits.
  int waits_needed = 1;
  maypole_status wait_status = MAYPOLE_OK;  // of those before its end
  int waits = 0;
  std::string error;
  std::string result;
  int released = 0;
  int released_early = 0;

  bool Ended() const { return waits >= waits_needed; }
  void End(int64_t handle, maypole_status status) {
    operations[handle].done(operations[handle].context, handle, status);
  }
};

Library* library;

maypole_status SubmitGroup(const maypole_operation* operations, int32_t count,
                           int64_t* handles) {
  if (library->refusal != MAYPOLE_OK) return library->refusal;
  for (int32_t i = 0; i < count; ++i) {
    handles[i] = library->operations.size();
    library->operations.push_back({operations[i], operations[i].name});
  }
  return MAYPOLE_OK;
}

maypole_status OnDone(int64_t handle, maypole_done done, void* context) {
  if (library->on_done_status != MAYPOLE_OK) return library->on_done_status;
  library->operations[handle].done = done;
  library->operations[handle].context = context;
  return MAYPOLE_OK;
}

maypole_status Wait(int64_t, int timeout_ms) {
  if (library->Ended()) return MAYPOLE_OK;
  if (timeout_ms != 0) ++library->waits;
  return library->Ended() ? MAYPOLE_OK : library->wait_status;
}

maypole_status Poll(int64_t, int* done) {
  *done = library->Ended() ? 1 : 0;
  return MAYPOLE_OK;
}

maypole_status Result(int64_t, void** data, int64_t* bytes, int64_t* rows) {
  *data = library->result.data();
  *bytes = library->result.size();
  *rows = library->result.size() / sizeof(float);
  return MAYPOLE_OK;
}

maypole_status Release(int64_t) {
  ++library->released;
  library->released_early += library->Ended() ? 0 : 1;
  return MAYPOLE_OK;
}

const char* LastError() { return library->error.c_str(); }

}  // namespace

// What XLA's functions make.
namespace ffi {

struct Error {
  std::string text;
  int code;
};

struct Future {
  bool available = false;
  std::unique_ptr<Error> error;
};

}  // namespace ffi

namespace {

// XLA's functions, at positions that the test chooses.
struct CreateArguments {
  size_t struct_size;
  void* extensions;
  const char* text;
  int32_t code;
};

ffi::Error* CreateError(CreateArguments* arguments) {
  return new ffi::Error{arguments->text, arguments->code};
}

struct FutureArguments {
  size_t struct_size;
  void* extensions;
  ffi::Future* future;
  ffi::Error* error;
};

std::unique_ptr<ffi::Future> made;

ffi::Error* CreateFuture(FutureArguments* arguments) {
  made = std::make_unique<ffi::Future>();
  arguments->future = made.get();
  return nullptr;
}

ffi::Error* SetAvailable(FutureArguments* arguments) {
  arguments->future->available = true;
  return nullptr;
}

ffi::Error* SetError(FutureArguments* arguments) {
  arguments->future->error.reset(arguments->error);
  return nullptr;
}

// A custom call with `names.size()` results of 3 floats, and its arguments.
class Frame {
 public:
  Frame(int32_t kind, const std::string& names, int arguments, int results,
        const std::string& check = "")
      : names_(names), check_(check), kind_(kind) {
    api_.functions[5] = reinterpret_cast<void*>(&CreateError);
    api_.functions[6] = reinterpret_cast<void*>(&CreateFuture);
    api_.functions[7] = reinterpret_cast<void*>(&SetAvailable);
    api_.functions[8] = reinterpret_cast<void*>(&SetError);
    ffi::SetLayout({.major = 0,
                    .minor = 7,
                    .error_create = 5,
                    .future_create = 6,
                    .future_set_available = 7,
                    .future_set_error = 8});
    frame_.api = &api_;
    frame_.stage = ffi::kExecute;
    buffers_.resize(arguments + results);
    memory_.resize(arguments + results, std::vector<float>(4));
    for (size_t i = 0; i < buffers_.size(); ++i) {
      buffers_[i] = {.dtype = ffi::kF32,
                     .data = memory_[i].data(),
                     .rank = 1,
                     .dims = dims_};
      pointers_.push_back(&buffers_[i]);
    }
    frame_.arguments.size = arguments;
    frame_.arguments.items = pointers_.data();
    frame_.results.size = results;
    frame_.results.items = pointers_.data() + arguments;
    Add("kind", ffi::kS32, &kind_);
    Add("op", ffi::kS32, &op_);
    Add("root", ffi::kS32, &root_);
    Add("process_set", ffi::kS32, &set_);
    Add("prescale", ffi::kF64, &prescale_);
    Add("postscale", ffi::kF64, &postscale_);
    names_span_ = {names_.data(), names_.size()};
    AddAttribute("names", ffi::kStringAttribute, &names_span_);
    check_span_ = {check_.data(), check_.size()};
    AddAttribute("check", ffi::kStringAttribute, &check_span_);
    Finish();
  }

  // Its errors have codes of the test's own.
  ffi::Error* Run() {
    return xla::Run(
        functions_, [](maypole_status status) { return 1000 + status; },
        &frame_);
  }
  ffi::CallFrame& frame() { return frame_; }
  ffi::Buffer& buffer(int i) { return buffers_[i]; }
  float* memory(int i) { return memory_[i].data(); }
  void SetInt32(int i) {  // of 4 numbers
    buffers_[i].dtype = ffi::kS32;
    buffers_[i].dims = four_;
  }

 private:
  void Add(const char* name, int32_t dtype, const void* value) {
    scalars_.push_back(std::make_unique<ffi::Scalar>(dtype, value));
    AddAttribute(name, ffi::kScalarAttribute, scalars_.back().get());
  }

  void AddAttribute(const char* name, int32_t type, void* value) {
    spans_.push_back(std::make_unique<ffi::ByteSpan>(name, std::strlen(name)));
    types_.push_back(type);
    values_.push_back(value);
  }

  void Finish() {
    for (const auto& span : spans_) span_pointers_.push_back(span.get());
    frame_.attributes.size = spans_.size();
    frame_.attributes.types = types_.data();
    frame_.attributes.names = span_pointers_.data();
    frame_.attributes.values = values_.data();
  }

  frameworks::Functions functions_ = {.submit_group = &SubmitGroup,
                                      .on_done = &OnDone,
                                      .wait = &Wait,
                                      .poll = &Poll,
                                      .result = &Result,
                                      .release = &Release,
                                      .last_error = &LastError};
  ffi::Api api_ = {};
  ffi::CallFrame frame_ = {};
  std::string names_;
  std::string check_;
  ffi::ByteSpan names_span_, check_span_;
  int32_t kind_, op_ = MAYPOLE_SUM, root_ = 0, set_ = 0;
  double prescale_ = 0.5, postscale_ = 1;
  int64_t dims_[1] = {3}, four_[1] = {4};
  std::vector<std::vector<float>> memory_;
  std::vector<ffi::Buffer> buffers_;
  std::vector<ffi::Buffer*> pointers_;
  std::vector<std::unique_ptr<ffi::Scalar>> scalars_;
  std::vector<std::unique_ptr<ffi::ByteSpan>> spans_;
  std::vector<ffi::ByteSpan*> span_pointers_;
  std::vector<int32_t> types_;
  std::vector<void*> values_;
};

class CollectiveTest : public testing::Test {
 protected:
  void SetUp() override {
    library = &library_;
    BeginEpoch(0);  // none: errors name no epoch
  }

  Library library_;
};

TEST_F(CollectiveTest, AnswersTheVersionOfTheWheel) {
  Frame call(MAYPOLE_ALLREDUCE, "a", 1, 1);
  EXPECT_FALSE(ffi::AnswersVersion(call.frame()));
  struct {
    size_t struct_size;
    ffi::Version version;
    uint32_t traits;
  } metadata = {};
  struct {
    ffi::Extension base;
    void* metadata;
  } extension = {{.type = 1}, &metadata};
  call.frame().extensions = &extension.base;
  EXPECT_TRUE(ffi::AnswersVersion(call.frame()));
  EXPECT_EQ(metadata.version.minor, 7);
}

TEST_F(CollectiveTest, CompletesWhenAllOperationsHaveEnded) {
  // The third argument only makes XLA wait for it.
  Frame call(MAYPOLE_ALLREDUCE, "a\nb['x y']", 3, 2);
  ASSERT_EQ(call.Run(), nullptr);
  ASSERT_EQ(library_.operations.size(), 2u);
  const auto& second = library_.operations[1];
  EXPECT_EQ(second.name, "b['x y']");
  EXPECT_EQ(second.operation.dtype, MAYPOLE_FLOAT32);
  EXPECT_EQ(second.operation.dims, 1);
  EXPECT_EQ(second.operation.shape[0], 3);
  EXPECT_EQ(second.operation.prescale, 0.5);
  EXPECT_EQ(second.operation.input, call.memory(1));
  EXPECT_EQ(second.operation.output, call.memory(4));
  EXPECT_EQ(call.frame().future, made.get());
  library_.End(1, MAYPOLE_OK);
  EXPECT_FALSE(made->available);
  library_.End(0, MAYPOLE_OK);
  EXPECT_TRUE(made->available);
  EXPECT_EQ(library_.released, 2);
}

TEST_F(CollectiveTest, TheFirstErrorIsTheCalls) {
  Frame call(MAYPOLE_ALLREDUCE, "a\nb", 2, 2);
  ASSERT_EQ(call.Run(), nullptr);
  library_.error = "rank 1 was lost";
  library_.End(0, MAYPOLE_ABORTED);
  EXPECT_EQ(made->error, nullptr);  // `b` still uses the memory
  library_.error = "another";
  library_.End(1, MAYPOLE_INTERNAL);
  ASSERT_NE(made->error, nullptr);
  EXPECT_EQ(made->error->code, 1000 + MAYPOLE_ABORTED);
  EXPECT_EQ(made->error->text, "maypole: rank 1 was lost");
  EXPECT_FALSE(made->available);
}

TEST_F(CollectiveTest, ARefusalIsAnErrorOfTheFuture) {
  Frame call(MAYPOLE_ALLREDUCE, "a\nb", 2, 2);
  library_.refusal = MAYPOLE_ALREADY_EXISTS;
  library_.error = "'a' is pending";
  ASSERT_EQ(call.Run(), nullptr);
  ASSERT_NE(made->error, nullptr);
  EXPECT_EQ(made->error->code, 1000 + MAYPOLE_ALREADY_EXISTS);
  EXPECT_EQ(made->error->text.find("maypole: 'a' is pending (in JAX: "), 0u);
}

// jaxlib 0.4.38 can compute with the result of a failed call, without an error.
TEST_F(CollectiveTest, AFailureMakesResultsNanAndIsKept) {
  BeginEpoch(4);
  EXPECT_EQ(TakeFailure(), "");
  Frame call(MAYPOLE_ALLREDUCE, "a\nb", 2, 2);
  call.buffer(3).dtype = ffi::kS32;
  ASSERT_EQ(call.Run(), nullptr);
  library_.error = "rank 1 was lost";
  library_.End(0, MAYPOLE_ABORTED);
  library_.End(1, MAYPOLE_OK);
  const std::string text =
      "maypole: rank 1 was lost [ABORTED, membership epoch 4]";
  EXPECT_EQ(made->error->text, text);
  EXPECT_TRUE(std::isnan(call.memory(2)[0]));
  EXPECT_TRUE(std::isnan(call.memory(2)[2]));
  EXPECT_EQ(call.memory(3)[0], 0);
  EXPECT_EQ(TakeFailure(), text);
  EXPECT_EQ(TakeFailure(), "");
}

// A call of an epoch that is over is no failure of the next one.
TEST_F(CollectiveTest, AFailureBelongsToTheEpochInWhichTheCallBegan) {
  BeginEpoch(4);
  Frame call(MAYPOLE_ALLREDUCE, "a", 1, 1);
  ASSERT_EQ(call.Run(), nullptr);
  BeginEpoch(5);
  library_.End(0, MAYPOLE_ABORTED);
  EXPECT_NE(made->error->text.find("epoch 4]"), std::string::npos);
  EXPECT_EQ(TakeFailure(), "");
}

TEST_F(CollectiveTest, TheLastOperationComparesRanks) {
  constexpr int32_t kMost = std::numeric_limits<int32_t>::max();
  for (const bool left_out : {false, true}) {
    Frame call(MAYPOLE_ALLREDUCE, "a\nc", 2, 2,
               "first differs\nsecond differs");
    for (const int i : {1, 3}) call.SetInt32(i);
    int32_t own[] = {5, 7, ~5, ~7};
    if (left_out) own[1] = own[3] = kMost;
    std::memcpy(call.memory(1), own, sizeof own);
    ASSERT_EQ(call.Run(), nullptr);
    EXPECT_EQ(library_.operations.end()[-2].operation.op, MAYPOLE_SUM);
    EXPECT_EQ(library_.operations.back().operation.op, MAYPOLE_MIN);
    EXPECT_EQ(library_.operations.back().operation.prescale, 1);
    // Within the tolerance in the first, not in the second.
    const int32_t least[] = {5 - 1024, 7, ~5, ~(7 + 1025)};
    std::memcpy(call.memory(3), least, sizeof least);
    const auto last = static_cast<int64_t>(library_.operations.size()) - 1;
    library_.End(last, MAYPOLE_OK);
    library_.End(last - 1, MAYPOLE_OK);
    if (left_out) {
      EXPECT_TRUE(made->available);
      continue;
    }
    ASSERT_NE(made->error, nullptr);
    EXPECT_EQ(made->error->code, 1000 + MAYPOLE_FAILED_PRECONDITION);
    EXPECT_EQ(made->error->text, "maypole: second differs");
  }
}

// The library moves and sums them as signed ones, which ranks must not mix.
TEST_F(CollectiveTest, UnsignedArraysHaveOneDimensionMore) {
  Frame call(MAYPOLE_ALLREDUCE, "a", 1, 1);
  call.buffer(0).dtype = call.buffer(1).dtype = ffi::kU32;
  ASSERT_EQ(call.Run(), nullptr);
  const maypole_operation& operation = library_.operations[0].operation;
  EXPECT_EQ(operation.dtype, MAYPOLE_INT32);
  EXPECT_EQ(operation.dims, 2);
  EXPECT_EQ(operation.shape[1], 1);
  library_.error = "mismatched shapes";
  library_.End(0, MAYPOLE_FAILED_PRECONDITION);
  EXPECT_NE(made->error->text.find("of an unsigned or complex array"),
            std::string::npos);
}

// The operations continue, and use XLA's memory until they have ended.
TEST_F(CollectiveTest, OperationsWithoutACallbackAreAwaited) {
  Frame call(MAYPOLE_ALLREDUCE, "a\nb", 2, 2);
  library_.on_done_status = MAYPOLE_RESOURCE_EXHAUSTED;
  library_.waits_needed = 4;
  library_.wait_status = MAYPOLE_CANCELLED;  // a signal ends each of them
  ASSERT_EQ(call.Run(), nullptr);
  EXPECT_EQ(library_.waits, 4);
  EXPECT_EQ(library_.released, 2);
  EXPECT_EQ(library_.released_early, 0);
  EXPECT_TRUE(made->available);
}

TEST_F(CollectiveTest, CopiesGatheredRows) {
  Frame call(MAYPOLE_ALLGATHER, "a", 1, 1);
  ASSERT_EQ(call.Run(), nullptr);
  EXPECT_EQ(library_.operations[0].operation.output, nullptr);
  const float rows[3] = {1, 2, 3};
  library_.result.assign(reinterpret_cast<const char*>(rows), sizeof rows);
  library_.End(0, MAYPOLE_OK);
  EXPECT_TRUE(made->available);
  EXPECT_EQ(std::memcmp(call.memory(1), rows, sizeof rows), 0);
}

TEST_F(CollectiveTest, OtherRowsThanTheProgramsAreAnError) {
  Frame call(MAYPOLE_ALLGATHER, "a", 1, 1);
  ASSERT_EQ(call.Run(), nullptr);
  library_.result.assign(16, 'x');
  library_.End(0, MAYPOLE_OK);
  ASSERT_NE(made->error, nullptr);
  EXPECT_EQ(made->error->code, 1000 + MAYPOLE_FAILED_PRECONDITION);
  EXPECT_NE(made->error->text.find("'a': the result has 4 rows (16 bytes)"),
            std::string::npos);
}

TEST_F(CollectiveTest, WhatItCannotDoIsAnErrorAtOnce) {
  Frame complex(MAYPOLE_ALLREDUCE, "a", 1, 1);
  complex.buffer(0).dtype = ffi::kC64;
  std::unique_ptr<ffi::Error> error(complex.Run());
  ASSERT_NE(error, nullptr);
  EXPECT_EQ(error->code, MAYPOLE_INVALID_ARGUMENT);
  Frame unsigned_sum(MAYPOLE_ALLREDUCE, "a", 1, 1);
  unsigned_sum.buffer(0).dtype = ffi::kU32;  // as a signed one
  EXPECT_EQ(unsigned_sum.Run(), nullptr);
  library_.End(0, MAYPOLE_OK);
  Frame names(MAYPOLE_ALLREDUCE, "a\nb", 2, 1);
  error.reset(names.Run());
  ASSERT_NE(error, nullptr);
  EXPECT_EQ(error->code, MAYPOLE_INTERNAL);
  EXPECT_EQ(error->text,
            "maypole: the call's attributes or number of arrays are not those "
            "that maypole.jax gives it");
}

}  // namespace
}  // namespace maypole::xla
