#include "client/launcher/process/gpus.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

namespace maypole::launcher {
namespace {

using Gpus = std::vector<std::string>;

TEST(GpusTest, WhatTheUserHasMadeVisibleComesFirst) {
  Gpus gpus;
  EXPECT_TRUE(FindGpus("3,GPU-12ab,,MIG-7", "/nowhere", &gpus).ok());
  EXPECT_EQ(gpus, (Gpus{"3", "GPU-12ab", "MIG-7"}));
  EXPECT_EQ(FindGpus("", "/nowhere", &gpus).code(), Code::kNotFound);
}

TEST(GpusTest, CountsTheDriversGpus) {
  const std::filesystem::path root =
      std::filesystem::path(getenv("TEST_TMPDIR")) / "gpus";
  std::filesystem::create_directories(root / "0000:17:00.0");
  std::filesystem::create_directories(root / "0000:65:00.0");
  Gpus gpus;
  EXPECT_TRUE(FindGpus(nullptr, root, &gpus).ok());
  EXPECT_EQ(gpus, (Gpus{"0", "1"}));
}

TEST(GpusTest, SaysThatThereIsNone) {
  Gpus gpus;
  const Status s = FindGpus(nullptr, "/nowhere/gpus", &gpus);
  EXPECT_EQ(
      s.message(),
      "--bind-gpus: there is no NVIDIA GPU on this host (nothing in "
      "/nowhere/gpus); set CUDA_VISIBLE_DEVICES or leave --bind-gpus out");
}

}  // namespace
}  // namespace maypole::launcher
