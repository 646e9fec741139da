// Operations with an engine and a libmaypole that act as the test sets them.
#include "client/mxnet/operation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <vector>

namespace maypole::mxnet {
namespace {

// The engine, libmaypole, and the calls that they received. Handles of arrays
// are numbers; a copy of handle h is h + 100, and its data are at h + 1000.
struct Fake {
  maypole_status submit_status = MAYPOLE_OK;
  maypole_status on_done_status = MAYPOLE_OK;
  maypole_status wait_status = MAYPOLE_ABORTED;
  int interruptions = 0;  // of waits, before the operation ends
  bool push_fails = false;
  std::vector<std::string> asked;
  // What the engine keeps of the operation that was pushed.
  EngineAsyncFunction run = nullptr;
  EngineDeleter remove = nullptr;
  void* parameter = nullptr;
  int priority = 0;
  // libmaypole's operation.
  maypole_operation submitted = {};
  std::string name;
  maypole_done done = nullptr;
  void* context = nullptr;
  std::string ended_with;
};
Fake* fake = nullptr;

std::string Number(const void* handle) {
  return std::to_string(reinterpret_cast<intptr_t>(handle));
}
void* Handle(intptr_t number) { return reinterpret_cast<void*>(number); }

int PushAsync(EngineAsyncFunction run, void* parameter, EngineDeleter remove,
              const void*, NDArrayHandle* read, int read_count,
              NDArrayHandle* written, int written_count, const void*,
              int priority, const char*, bool) {
  std::string asked = "push";
  for (int i = 0; i < read_count; ++i) asked += " reads " + Number(read[i]);
  for (int i = 0; i < written_count; ++i) {
    asked += " writes " + Number(written[i]);
  }
  fake->asked.push_back(asked);
  fake->run = run;
  fake->remove = remove;
  fake->parameter = parameter;
  fake->priority = priority;
  if (!fake->push_fails) return 0;
  remove(parameter);
  return -1;
}
int GetData(NDArrayHandle array, void** data) {
  *data = static_cast<char*>(array) + 1000;
  return 0;
}
int ShallowCopy(NDArrayHandle array, NDArrayHandle* copy) {
  *copy = static_cast<char*>(array) + 100;
  return 0;
}
int Free(NDArrayHandle array) {
  fake->asked.push_back("free " + Number(array));
  return 0;
}
const char* LastEngineError() { return "the engine's error"; }
void Reorder(NDArrayHandle array) {
  fake->asked.push_back("reorder " + Number(array));
}

maypole_status Submit(const maypole_operation* operation, int64_t* handle) {
  fake->submitted = *operation;
  fake->name = operation->name;
  *handle = 7;
  return fake->submit_status;
}
maypole_status OnDone(int64_t, maypole_done done, void* context) {
  if (fake->on_done_status != MAYPOLE_OK) return fake->on_done_status;
  fake->done = done;
  fake->context = context;
  return MAYPOLE_OK;
}
maypole_status Wait(int64_t, int) {
  if (fake->interruptions == 0) return fake->wait_status;
  --fake->interruptions;
  return MAYPOLE_CANCELLED;
}
maypole_status Poll(int64_t, int* done) {
  *done = fake->interruptions == 0 ? 1 : 0;
  return MAYPOLE_OK;
}
maypole_status Release(int64_t handle) {
  fake->asked.push_back("release " + std::to_string(handle));
  return MAYPOLE_OK;
}
const char* LastError() { return "rank 1 was lost"; }

// The engine's callback; it deletes the operation.
void End(void*, void*, const void* error) {
  fake->ended_with =
      error == nullptr ? "success"
                       : static_cast<const std::runtime_error*>(error)->what();
  fake->remove(fake->parameter);
}

class OperationTest : public testing::Test {
 protected:
  OperationTest() {
    fake = &fake_;
    environment_.maypole.submit = &Submit;
    environment_.maypole.on_done = &OnDone;
    environment_.maypole.wait = &Wait;
    environment_.maypole.poll = &Poll;
    environment_.maypole.release = &Release;
    environment_.maypole.last_error = &LastError;
    environment_.engine = {&PushAsync, &GetData,         &ShallowCopy,
                           &Free,      &LastEngineError, &Reorder,
                           0};
  }
  ~OperationTest() override { fake = nullptr; }

  std::string PushOne(intptr_t input, intptr_t output) {
    std::string name = "x";  // need not outlive the call
    const maypole_operation operation = {.struct_size = sizeof operation,
                                         .kind = MAYPOLE_ALLREDUCE,
                                         .name = name.c_str(),
                                         .input = Handle(input),
                                         .output = Handle(output)};
    std::string error = Push(environment_, operation, 5);
    name = "gone";
    return error;
  }
  // Does what the engine's thread does when the arrays are ready.
  void RunIt() {
    Completion completion = {&End, nullptr, nullptr};
    fake_.run(nullptr, &completion, fake_.parameter);
  }

  Fake fake_;
  Environment environment_;
};

TEST_F(OperationTest, OutOfPlace) {
  EXPECT_EQ(PushOne(1, 2), "");
  EXPECT_EQ(fake_.priority, 5);
  RunIt();
  EXPECT_EQ(fake_.name, "x");
  EXPECT_EQ(fake_.submitted.input, Handle(1101));
  EXPECT_EQ(fake_.submitted.output, Handle(1102));
  EXPECT_EQ(fake_.ended_with, "");
  fake_.done(fake_.context, 7, MAYPOLE_OK);
  EXPECT_EQ(fake_.ended_with, "success");
  EXPECT_THAT(fake_.asked,
              testing::ElementsAre("reorder 101", "push reads 101 writes 102",
                                   "release 7", "free 102", "free 101"));
}

TEST_F(OperationTest, InPlaceTheArrayIsOnlyWritten) {
  EXPECT_EQ(PushOne(1, 1), "");
  RunIt();
  EXPECT_EQ(fake_.submitted.input, fake_.submitted.output);
  fake_.done(fake_.context, 7, MAYPOLE_OK);
  EXPECT_THAT(fake_.asked,
              testing::ElementsAre("reorder 101", "push writes 101",
                                   "release 7", "free 101"));
}

TEST_F(OperationTest, AFailedOperationEndsWithMaypolesText) {
  PushOne(1, 2);
  RunIt();
  fake_.done(fake_.context, 7, MAYPOLE_ABORTED);
  EXPECT_EQ(fake_.ended_with, "rank 1 was lost");
}

TEST_F(OperationTest, ARefusedOperationEndsAtOnce) {
  fake_.submit_status = MAYPOLE_ALREADY_EXISTS;
  PushOne(1, 2);
  RunIt();
  EXPECT_EQ(fake_.ended_with, "rank 1 was lost");
  EXPECT_EQ(fake_.done, nullptr);
}

// The operation continues, and uses the arrays until it has ended.
TEST_F(OperationTest, AnOperationWithoutACallbackIsAwaited) {
  for (const maypole_status end : {MAYPOLE_OK, MAYPOLE_ABORTED}) {
    fake_.on_done_status = MAYPOLE_RESOURCE_EXHAUSTED;
    fake_.wait_status = end;
    fake_.interruptions = 2;
    PushOne(1, 2);
    RunIt();
    EXPECT_EQ(fake_.ended_with,
              end == MAYPOLE_OK ? "success" : "rank 1 was lost");
  }
}

TEST_F(OperationTest, TheEngineRefusesIt) {
  fake_.push_fails = true;
  EXPECT_EQ(PushOne(1, 2), "the engine's error");
  EXPECT_THAT(fake_.asked, testing::Contains("free 101"));
}

TEST_F(OperationTest, AnEngineThatMustBlockIsNotAsked) {
  environment_.engine.must_block = 1;
  environment_.engine.reorder = nullptr;
  EXPECT_EQ(PushOne(1, 2), "rank 1 was lost");
  EXPECT_THAT(fake_.asked,
              testing::ElementsAre("release 7", "free 102", "free 101"));
}

}  // namespace
}  // namespace maypole::mxnet
