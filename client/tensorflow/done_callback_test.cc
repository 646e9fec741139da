#include "client/tensorflow/done_callback.h"

#include <array>
#include <functional>
#include <memory>
#include <optional>

#include "gtest/gtest.h"

namespace maypole::tensorflow {
namespace {

using Function = std::function<void()>;

TF_AsyncOpKernelDoneCallback* Opaque(Function* function) {
  void* address = function;
  return static_cast<TF_AsyncOpKernelDoneCallback*>(address);
}

class DoneCallbackTest : public testing::Test {
 protected:
  // As TensorFlow does.
  void SetUp() override {
    tf.TF_RunAsyncOpKernelDoneCallback = [](TF_AsyncOpKernelDoneCallback* f) {
      void* address = f;
      (*static_cast<Function*>(address))();
    };
  }

  // The function owns a reference to `calls_`; it is too large to be stored
  // within the std::function.
  Function Counting() {
    return [calls = calls_, large = std::array<int, 20>()] {
      *calls += 1 + large[0];
    };
  }

  const std::shared_ptr<int> calls_ = std::make_shared<int>(0);
};

TEST_F(DoneCallbackTest, AFunctionOnTheStackIsMovedOut) {
  std::optional<DoneCallback> done;
  {
    Function function = Counting();
    done.emplace(Opaque(&function));
    EXPECT_EQ(function, nullptr);
  }
  EXPECT_EQ(calls_.use_count(), 2);
  done->Run();
  EXPECT_EQ(*calls_, 1);
  EXPECT_EQ(calls_.use_count(), 1);
}

TEST_F(DoneCallbackTest, AFunctionOnTheHeapStaysWhereItIs) {
  auto function = std::make_unique<Function>(Counting());
  DoneCallback done(Opaque(function.get()));
  done.Run();
  EXPECT_EQ(*calls_, 1);
  EXPECT_NE(*function, nullptr);
}

}  // namespace
}  // namespace maypole::tensorflow
