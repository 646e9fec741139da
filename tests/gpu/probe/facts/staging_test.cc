#include "tests/gpu/probe/facts/staging.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "worker/backend/gpu/testing/fake_gpu.h"

namespace maypole::probe {

// Nothing is started here.
const RoleTable& Roles() {
  static const auto* const kRoles = new RoleTable;
  return *kRoles;
}

namespace {

// More than two periods, and no multiple of one.
constexpr uint64_t kElements = 2 * kPeriod + 12345;

class StagingTest : public testing::Test {
 protected:
  void SetUp() override {
    auto driver = gpu::OpenFakeDriver();
    ASSERT_TRUE(driver.ok()) << driver.status();
    driver_ = *std::move(driver);
    auto gpu = driver_->Open(gpu::FakeMachine::Uuid(0));
    ASSERT_TRUE(gpu.ok()) << gpu.status();
    gpu_ = *std::move(gpu);
    auto stream = gpu::OwnedStream::Create(*gpu_);
    ASSERT_TRUE(stream.ok()) << stream.status();
    stream_ = *std::move(stream);
    auto memory = gpu::OwnedMemory::Allocate(*gpu_, 4 * kElements);
    ASSERT_TRUE(memory.ok()) << memory.status();
    memory_ = *std::move(memory);
    auto staging = Staging::Create(*gpu_);
    ASSERT_TRUE(staging.ok()) << staging.status();
    staging_ = *std::move(staging);
  }

  SumCheck Check(DType dtype, std::vector<uint64_t> seeds) {
    const auto check = staging_.Check(stream_.get(), memory_.address(), dtype,
                                      seeds, kElements);
    EXPECT_TRUE(check.ok()) << check.status();
    return check.ok() ? *check : SumCheck();
  }

  std::unique_ptr<gpu::Driver> driver_;
  std::unique_ptr<gpu::Gpu> gpu_;
  gpu::OwnedStream stream_;
  gpu::OwnedMemory memory_;
  Staging staging_;
};

TEST_F(StagingTest, APatternFillsAllElements) {
  for (const DType dtype :
       {DType::kFloat32, DType::kFloat16, DType::kBfloat16}) {
    const Pattern pattern = {dtype, 5};
    ASSERT_TRUE(
        staging_.Put(stream_.get(), memory_.address(), pattern, kElements)
            .ok());
    const uint64_t size = SizeOf(dtype);
    for (uint64_t begin = 0; begin < kElements; begin += kPeriod / 2 + 1) {
      const Range range = {begin, std::min(kPeriod / 2 + 1, kElements - begin)};
      const auto got =
          staging_.Get(stream_.get(), memory_.address() + range.begin * size,
                       range.count * size);
      ASSERT_TRUE(got.ok()) << got.status();
      EXPECT_TRUE(*got == Encode(pattern, range)) << begin;
    }
  }
}

TEST_F(StagingTest, SumsAreChecked) {
  ASSERT_TRUE(staging_
                  .Put(stream_.get(), memory_.address(), {DType::kFloat32, 5},
                       kElements)
                  .ok());
  const SumCheck one = Check(DType::kFloat32, {5});
  EXPECT_EQ(one.wrong, std::nullopt);
  EXPECT_GE(one.checked, kSampled);
  EXPECT_EQ(one.other_bits, 0u);
  EXPECT_TRUE(Check(DType::kFloat32, {6}).wrong.has_value());
  EXPECT_TRUE(Check(DType::kFloat32, {5, 6}).wrong.has_value());
}

TEST_F(StagingTest, TheLastElementIsLookedAt) {
  ASSERT_TRUE(staging_
                  .Put(stream_.get(), memory_.address(), {DType::kFloat32, 5},
                       kElements)
                  .ok());
  ASSERT_TRUE(gpu_->Fill(stream_.get(), memory_.address() + 4 * (kElements - 1),
                         0x7fc00000, 1)
                  .ok());
  const SumCheck check = Check(DType::kFloat32, {5});
  ASSERT_TRUE(check.wrong.has_value());
  EXPECT_NE(check.wrong->find(std::to_string(kElements - 1)), std::string::npos)
      << *check.wrong;
}

TEST_F(StagingTest, WordsAreCompared) {
  ASSERT_TRUE(gpu_->Fill(stream_.get(), memory_.address(), 7, 100).ok());
  const gpu::Stream stream = stream_.get();
  EXPECT_EQ(*staging_.Holds(stream, memory_.address(), 7, 100), true);
  EXPECT_EQ(*staging_.Holds(stream, memory_.address(), 8, 100), false);
  EXPECT_EQ(*staging_.Holds(stream, memory_.address(), 7, 101), false);
}

TEST_F(StagingTest, TooMuchIsRefused) {
  EXPECT_EQ(staging_.Get(stream_.get(), memory_.address(), Staging::kBytes + 1)
                .status()
                .code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace maypole::probe
